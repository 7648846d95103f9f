"use strict";
// Digits as the network reads them: strokes to 28×28 pixels placed as MNIST's, and pixels to a sequence.
const Digits = (() => {
  const SIDE = 28;
  const BOX = 20; // MNIST's digits were fitted into so many pixels a side, and centred by their centre of mass
  const RADIUS = 1.25; // of the pen, in pixels

  /** Squared distance from (x, y) to the line between two points. */
  function distance(x, y, [ax, ay], [bx, by]) {
    const [dx, dy] = [bx - ax, by - ay];
    const length = dx * dx + dy * dy;
    const at = length ? Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / length)) : 0;
    return (x - ax - at * dx) ** 2 + (y - ay - at * dy) ** 2;
  }

  /** Strokes in pixels, lists of points [x, y], as bytes; edges are grey. */
  function raster(strokes) {
    const image = new Uint8Array(SIDE * SIDE);
    for (const stroke of strokes) {
      for (let i = 0; i < stroke.length; i++) {
        const [a, b] = [stroke[Math.max(0, i - 1)], stroke[i]];
        const [left, right] = [Math.min(a[0], b[0]) - RADIUS - 1, Math.max(a[0], b[0]) + RADIUS + 1];
        const [top, bottom] = [Math.min(a[1], b[1]) - RADIUS - 1, Math.max(a[1], b[1]) + RADIUS + 1];
        for (let y = Math.max(0, Math.floor(top)); y < Math.min(SIDE, bottom); y++) {
          for (let x = Math.max(0, Math.floor(left)); x < Math.min(SIDE, right); x++) {
            const ink = RADIUS + 0.5 - Math.sqrt(distance(x + 0.5, y + 0.5, a, b));
            const value = Math.round(255 * Math.max(0, Math.min(1, ink)));
            image[y * SIDE + x] = Math.max(image[y * SIDE + x], value);
          }
        }
      }
    }
    return image;
  }

  /** The centre of mass of an image, [x, y] in pixels; null where it is empty. */
  function centre(image) {
    let [sum, x, y] = [0, 0, 0];
    image.forEach((value, i) => {
      sum += value;
      x += value * ((i % SIDE) + 0.5);
      y += value * (Math.floor(i / SIDE) + 0.5);
    });
    return sum ? [x / sum, y / sum] : null;
  }

  function moved(strokes, scale, dx, dy) {
    return strokes.map((stroke) => stroke.map(([x, y]) => [x * scale + dx, y * scale + dy]));
  }

  /** A drawing in any units as an image: fitted into 20×20 pixels, its centre of mass in the middle of 28×28. */
  function place(strokes) {
    const points = strokes.flat();
    if (!points.length) return new Uint8Array(SIDE * SIDE);
    const [xs, ys] = [points.map((point) => point[0]), points.map((point) => point[1])];
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const [width, height] = [Math.max(...xs) - left, Math.max(...ys) - top];
    const scale = (BOX - 2 * RADIUS) / Math.max(width, height, 1e-9);
    const fitted = width || height ? scale : 0;
    const [dx, dy] = [SIDE / 2 - (left + width / 2) * fitted, SIDE / 2 - (top + height / 2) * fitted];
    const first = moved(strokes, fitted, dx, dy);
    const [x, y] = centre(raster(first));
    return raster(moved(first, 1, Math.round(SIDE / 2 - x), Math.round(SIDE / 2 - y)));
  }

  /** The nearest whole number, of two the even one: as torch rounds. */
  function round(value) {
    const below = Math.floor(value);
    if (value - below !== 0.5) return Math.round(value);
    return below % 2 ? below + 1 : below;
  }

  /** Squares of so many pixels a side as their mean. */
  function shrunk(image, by) {
    if (by === 1) return image;
    const side = SIDE / by;
    const small = new Uint8Array(side * side);
    for (let i = 0; i < small.length; i++) {
      let sum = 0;
      for (let j = 0; j < by * by; j++) {
        const y = Math.floor(i / side) * by + Math.floor(j / by);
        sum += image[y * SIDE + (i % side) * by + (j % by)];
      }
      small[i] = round(Math.fround(sum / (by * by)));
    }
    return small;
  }

  /** An image as the network's input: a pixel a step, (x / 256 − 1/2) · 2, in the order of the run. */
  function sequence(image, { shrink = 1, order = null } = {}) {
    const pixels = shrunk(image, shrink);
    return Float32Array.from(pixels, (_, t) => pixels[order ? order[t] : t] / 128 - 1);
  }

  // Drawn by hand, in a box of 10 by 14: what is shown where there are no images.
  const EXAMPLES = [
    [[[5, 0], [2, 2], [0.5, 6], [1, 11], [4, 14], [7, 13], [9, 9], [9, 4], [7, 1], [5, 0]]],
    [[[5, 0], [5, 14]]],
    [[[1, 3], [2, 1], [5, 0], [8, 1], [9, 4], [7, 8], [3, 12], [1, 14], [9, 14]]],
    [[[1, 1], [5, 0], [8, 2], [8, 5], [4, 7], [8, 8], [9, 11], [6, 14], [1, 13]]],
    [[[2, 0], [1, 7], [9, 7]], [[8, 1], [7, 14]]],
    [[[9, 0], [2, 0], [2, 6], [6, 6], [9, 9], [8, 13], [4, 14], [1, 12]]],
    [[[7, 0], [3, 4], [1, 9], [2, 13], [6, 14], [8, 11], [7, 8], [4, 8], [1.5, 10]]],
    [[[1, 0], [9, 0], [6, 6], [4, 14]]],
    [[[8, 2], [5, 0], [2, 2], [3, 5], [7, 8], [8, 11], [5, 14], [2, 12], [3, 9], [7, 5], [8, 2]]],
    [[[8, 4], [6, 7], [3, 7], [2, 4], [3, 1], [6, 0], [8, 2], [8, 6], [7, 14]]],
  ];

  return { SIDE, EXAMPLES, centre, place, raster, sequence, shrunk };
})();
if (typeof module !== "undefined") module.exports = Digits;
