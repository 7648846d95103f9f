"use strict";
// Elements, colours, numbers as text, and plots.

const SVG = "http://www.w3.org/2000/svg"; // the name of a language, not an address
const DRAWN = new Set(["svg", "path", "line", "text", "rect", "circle", "g"]);

/** An element with attributes and children; text stays text, whatever it holds. */
function element(name, attributes = {}, ...children) {
  const made = DRAWN.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** A select with a label before it. */
function choice(label, options, value, change) {
  const select = element("select", { "aria-label": label, change: () => change(select.value) });
  for (const [key, name] of Object.entries(options)) {
    select.append(element("option", { value: key, selected: key === value }, name));
  }
  return element("label", { class: "choice" }, label, select);
}

function button(text, click, attributes = {}) {
  return element("button", { type: "button", click, ...attributes }, text);
}

// ---- colours that people with any colour vision can tell apart

const SEQUENTIAL = ["440154", "472c7a", "3b518b", "2c718e", "21908d", "27ad81", "5cc863", "aadc32", "fde725"]; // viridis
const DIVERGING = ["7f3b08", "b35806", "f1a340", "fdd9b5", "f7f7f7", "d1e5f0", "6aacd0", "2166ac", "053061"]; // orange below 0, blue above, as bars

function ramp(stops) {
  const parsed = stops.map((stop) => [0, 2, 4].map((i) => parseInt(stop.slice(i, i + 2), 16)));
  return (value) => {
    const at = Math.max(0, Math.min(1, value || 0)) * (parsed.length - 1);
    const low = Math.min(parsed.length - 2, Math.floor(at));
    return parsed[low].map((part, i) => Math.round(part + (parsed[low + 1][i] - part) * (at - low)));
  };
}
const sequential = ramp(SEQUENTIAL);
const diverging = ramp(DIVERGING);
const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- numbers

function number(value, digits = 3) {
  if (value == null) return "∞";
  if (!Number.isFinite(value)) return String(value);
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  if (value && Math.abs(value) < 1e-4) return value.toExponential(1);
  return Number(value.toPrecision(digits)).toString();
}
const short = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : number(value, 6));
const percent = (share) => (share >= 0.9995 ? "100 %" : share < 0.0005 ? "0 %" : `${(100 * share).toFixed(1)} %`);
const steps = (memory) => (memory == null ? "∞" : memory < 1 ? "< 1 step" : `${number(memory, 3)} steps`);

/** Round numbers that divide a range into about so many parts. */
function ticks(low, high, count = 4) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  const found = [];
  for (let at = Math.ceil(low / by - 1e-9) * by; at <= high + by * 1e-9; at += by) found.push(Number(at.toPrecision(10)));
  return found;
}

// ---- plots

/** A canvas that is as sharp as the screen, and its context in units of CSS pixels. */
function sharp(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Paint values, by row and column, as pixels of a canvas. */
function paint(canvas, columns, rows, colour) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let y = 0, at = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++, at += 4) {
      const [r, g, b, alpha = 255] = colour(x, y);
      image.data[at] = r;
      image.data[at + 1] = g;
      image.data[at + 2] = b;
      image.data[at + 3] = alpha;
    }
  }
  context.putImageData(image, 0, 0);
}

/** Lines over the steps of a sequence: a drawing of values at 0 … T − 1, with a mark at one step. */
function lines(series, { T, at = null, label, height = 150, marks = [] }) {
  const [width, left, right, top, bottom] = [520, 46, 8, 10, 22];
  const values = series.flatMap((each) => Array.from(each.values)).filter(Number.isFinite);
  let [low, high] = [Math.min(0, ...extreme(values, Math.min)), Math.max(0, ...extreme(values, Math.max))];
  if (high - low < 1e-12) high = low + 1;
  const x = (t) => left + ((width - left - right) * t) / Math.max(1, T - 1);
  const y = (value) => top + ((height - top - bottom) * (high - value)) / (high - low);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "lines" });
  for (const tick of ticks(low, high)) {
    svg.append(element("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" }));
    svg.append(element("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
  }
  for (const tick of ticks(1, T, 6).filter(Number.isInteger)) {
    const anchor = x(tick - 1) > width - right - 12 ? "end" : "middle"; // at the edge it would be cut off
    svg.append(element("text", { x: x(tick - 1), y: height - 6, "text-anchor": anchor }, number(tick, 6)));
  }
  for (const mark of marks) {
    svg.append(element("line", { x1: x(mark), x2: x(mark), y1: top, y2: height - bottom, class: "mark" }));
  }
  for (const each of series) {
    const path = Array.from(each.values, (value, t) => `${t ? "L" : "M"}${x(t).toFixed(1)} ${y(value).toFixed(1)}`);
    svg.append(element("path", { d: path.join(""), class: `line ${each.kind || ""}` }));
  }
  if (at != null) svg.append(element("line", { x1: x(at), x2: x(at), y1: top, y2: height - bottom, class: "cursor" }));
  return svg;
}

/** The least or greatest value, as a list of one; of none, an empty list. */
function extreme(values, pick) {
  return values.length ? [values.reduce((a, b) => pick(a, b))] : [];
}

/** Horizontal bars with names and values: rows of {name, share, text, strong, click}. */
function bars(rows, label) {
  const list = element("ul", { class: "bars", "aria-label": label });
  for (const row of rows) {
    const name = row.click ? button(row.name, row.click, { class: "link" }) : element("span", {}, row.name);
    const fill = element("span", { class: `fill${row.share < 0 ? " negative" : ""}` });
    fill.style.width = `${(100 * Math.min(1, Math.abs(row.share))).toFixed(2)}%`;
    const bar = element("span", { class: "bar", "aria-hidden": "true" }, fill);
    list.append(element("li", { class: row.strong ? "strong" : "" }, name, bar, element("span", { class: "value" }, row.text)));
  }
  return list;
}
