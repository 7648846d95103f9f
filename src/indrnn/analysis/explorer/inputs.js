"use strict";
// What a person gives the network: a drawn digit, numbers to add, text, or a recorded sample.
//
// Each kind fills a card and calls `give(input, label)`; `read(t)` shows what has been read up to a step.

const Inputs = {
  // ---- pixels: draw a digit
  pixels(card, data, give) {
    const UNIT = 10; // of the pad, for each pixel
    const SIZE = Digits.SIDE * UNIT;
    const side = Digits.SIDE / data.shrink;
    let strokes = [];
    let image = new Uint8Array(SIZE);
    let pen = [SIZE / 2, SIZE / 4]; // of the keyboard
    let down = false;
    const pad = element("canvas", {
      width: 2 * SIZE,
      height: 2 * SIZE,
      class: "pad",
      tabindex: 0,
      role: "application",
      "aria-label":
        "Drawing pad for a digit. Draw with mouse or finger; or with the keyboard: arrow keys move the pen, space puts it " +
        "down or lifts it, Delete clears.",
    });
    const context = pad.getContext("2d");
    context.scale(2, 2);

    function ink() {
      context.fillStyle = themed("--pad");
      context.fillRect(0, 0, SIZE, SIZE);
      context.strokeStyle = context.fillStyle = themed("--ink");
      context.lineWidth = 22;
      context.lineCap = context.lineJoin = "round";
      for (const stroke of strokes) {
        context.beginPath();
        stroke.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
        if (stroke.length === 1) context.lineTo(stroke[0][0] + 0.01, stroke[0][1]);
        context.stroke();
      }
      if (document.activeElement === pad && pad.matches(":focus-visible")) {
        context.strokeStyle = themed(down ? "--second" : "--accent");
        context.lineWidth = 3;
        context.beginPath();
        context.arc(pen[0], pen[1], 12, 0, 7);
        context.stroke();
      }
      if (!strokes.length) {
        context.fillStyle = themed("--muted");
        context.font = "16px system-ui, sans-serif";
        context.textAlign = "center";
        context.fillText("Draw a digit here", SIZE / 2, SIZE / 2);
      }
    }

    function drawn() {
      ink();
      image = Digits.place(strokes);
      give(Digits.sequence(image, data), strokes.length ? "your drawing" : "an empty image");
    }

    function point(event) {
      const box = pad.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * SIZE, ((event.clientY - box.top) / box.height) * SIZE];
    }

    pad.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      pad.setPointerCapture(event.pointerId);
      strokes.push([point(event)]);
      ink();
      event.preventDefault();
      pad.focus({ focusVisible: false });
    });
    pad.addEventListener("pointermove", (event) => {
      if (!pad.hasPointerCapture(event.pointerId) || !strokes.length) return;
      strokes.at(-1).push(point(event));
      ink();
    });
    pad.addEventListener("pointerup", drawn);
    pad.addEventListener("pointercancel", drawn); // a phone that takes the finger for its own
    pad.addEventListener("focus", ink);
    pad.addEventListener("blur", ink);
    pad.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const move = moves[event.key];
      if (move) {
        pen = pen.map((at, i) => Math.max(0, Math.min(SIZE, at + move[i] * UNIT)));
        if (down) strokes.at(-1).push([...pen]);
      } else if (event.key === " ") {
        down = !down;
        if (down) strokes.push([[...pen]]);
        else drawn();
      } else if (event.key === "Delete" || event.key === "Backspace") {
        clear();
      } else return;
      event.preventDefault();
      ink();
    });

    function clear() {
      [strokes, down] = [[], false];
      drawn();
    }

    function show(pixels, label) {
      [strokes, down] = [[], false];
      ink();
      image = pixels;
      give(Digits.sequence(image, data), label);
    }

    const seen = element("canvas", { class: "seen", role: "img", "aria-label": "The image as the network reads it" });
    const caption = element("p", { class: "small" });
    const examples = element("div", { class: "thumbnails", role: "group", "aria-label": "Example images" });
    const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const known = data.samples.length
      ? data.samples.map((sample) => [bytes(sample.image), sample.label])
      : Digits.EXAMPLES.map((example, digit) => [Digits.place(example), String(digit)]);
    for (const [pixels, label] of known.slice(0, 20)) {
      const small = element("canvas", { "aria-hidden": "true" });
      picture(small, pixels, Digits.SIDE);
      const take = button("", () => show(pixels, `a ${label}`), { "aria-label": `Example: ${label}` });
      take.append(small);
      examples.append(take);
    }

    function choose(index) {
      show(known[index][0], `a ${known[index][1]}`);
    }

    function picture(canvas, pixels, size, until = null) {
      const reached = data.order && until != null ? new Set(data.order.slice(0, until + 1)) : null;
      paint(canvas, size, size, (x, y) => {
        const value = pixels[y * size + x];
        const read = until == null || (reached ? reached.has(y * size + x) : y * size + x <= until);
        return read ? [value, value, value] : [0, 114 + value / 4, 178 + value / 4, 60 + value / 2];
      });
    }

    card.append(
      element("h2", {}, "Draw a digit"),
      element(
        "div",
        { class: "drawing" },
        element("div", { class: "padbox" }, pad, element("div", { class: "buttons" }, button("Clear", clear))),
        element("div", { class: "reading" }, element("p", { class: "small" }, "What it reads"), seen, caption),
      ),
      element(
        "p",
        { class: "small" },
        "A drawing is fitted into 20 × 20 pixels, and its centre of mass put in the middle of 28 × 28, as MNIST's digits were. " +
          (data.samples.length ? "Or take an image that the network was not trained on:" : "Or take an example:"),
      ),
      examples,
    );
    ink();
    choose(Math.min(known.length - 1, 3));
    return {
      image: () => image,
      sample: choose,
      thumbnail(index) {
        const small = element("canvas", {});
        picture(small, known[index][0], Digits.SIDE);
        return small;
      },
      read(t) {
        picture(seen, Digits.shrunk(image, data.shrink), side, t);
        caption.textContent = `${t + 1} of ${side * side} pixels` + (data.order ? ", in the run's order" : "");
      },
      /** What belongs to steps, in the place of its pixel. */
      map(values) {
        const placed = new Float32Array(values.length);
        values.forEach((value, t) => (placed[data.order ? data.order[t] : t] = value));
        return { side, values: placed };
      },
      sequence: (index) => Digits.sequence(known[index][0], data),
      redraw: ink,
    };
  },

  // ---- adding: numbers and two marks
  adding(card, data, give) {
    const T = data.length;
    let values = [];
    let marks = [Math.floor(T / 5), Math.floor((4 * T) / 5)];
    const plot = element("div", {});
    const sum = element("p", { class: "sum" });
    const controls = element("div", { class: "markers" });

    function fresh() {
      values = Array.from({ length: T }, () => Math.round(1000 * Math.random()) / 1000);
      changed();
    }

    function sequence(numbers, marked) {
      const input = new Float32Array(2 * T);
      numbers.forEach((value, t) => (input[2 * t] = value));
      for (const mark of marked) input[2 * mark + 1] = 1;
      return input;
    }

    function changed() {
      const right = values[marks[0]] + values[marks[1]];
      sum.textContent = `${number(values[marks[0]])} + ${number(values[marks[1]])} = ${number(right, 4)}`;
      give(sequence(values, marks), `${T} numbers, of which two are to be added`, right);
    }

    function marker(index) {
      const name = ["First", "Second"][index];
      const place = element("input", { type: "range", min: 0, max: T - 1, value: marks[index], "aria-label": `${name} marked step` });
      const size = element("input", { type: "range", min: 0, max: 1, step: 0.001, "aria-label": `${name} marked number` });
      const text = element("output", {});
      function tell() {
        size.value = values[marks[index]] ?? 0;
        place.value = marks[index];
        text.textContent = `step ${marks[index] + 1}: ${number(values[marks[index]])}`;
      }
      place.addEventListener("input", () => {
        let at = Number(place.value);
        if (at === marks[1 - index]) at += at > marks[index] ? (at < T - 1 ? 1 : -1) : at > 0 ? -1 : 1;
        marks[index] = at;
        changed();
      });
      size.addEventListener("input", () => {
        values[marks[index]] = Number(size.value);
        changed();
      });
      controls.append(
        element("fieldset", {}, element("legend", {}, `${name} mark`), element("label", {}, "step", place), element("label", {}, "number", size), text),
      );
      return tell;
    }
    const tell = [marker(0), marker(1)];

    card.append(
      element("h2", {}, "Numbers to add"),
      element("p", { class: "small" }, `${T} random numbers, one a step; two of them are marked, and the answer is their sum. Move the marks.`),
      plot,
      controls,
      element("div", { class: "buttons" }, button("New numbers", fresh), sum),
    );
    fresh();
    return {
      read(t) {
        plot.replaceChildren(lines([{ values, kind: "faint" }], { T, at: t, label: "The numbers, and the two marks", marks }));
        tell.forEach((each) => each());
      },
      feature: (i) => ["number", "mark"][i],
      sequence: (index) => sequence(data.samples[index].values, data.samples[index].marks),
      sample(index) {
        [values, marks] = [[...data.samples[index].values], [...data.samples[index].marks]];
        changed();
      },
      set(numbers, marked) {
        [values, marks] = [[...numbers], [...marked]];
        changed();
      },
    };
  },

  // ---- text: type, and see what may come next
  text(card, data, give) {
    const MOST = 1000; // tokens
    const known = new Map(data.tokens.map((token, i) => [token, i]));
    let tokens = [];
    const area = element("textarea", { "aria-label": "Text for the network to read", spellcheck: "false", maxlength: 4 * MOST });
    const said = element("p", { class: "small", role: "status" });

    /** A text as parts and their numbers; parts that the vocabulary does not have are left out, and told. */
    function encode(text) {
      let parts;
      if (data.unit === "byte") parts = Array.from(new TextEncoder().encode(text), (byte) => data.tokens[byte]);
      else if (data.unit === "word") parts = text.replaceAll("\n", " <eos> ").split(/\s+/).filter(Boolean);
      else parts = Array.from(data.space == null ? text : text.replaceAll(" ", data.space));
      const index = (part) => known.get(part) ?? (data.unit === "word" ? known.get("<unk>") : undefined);
      const unknown = [...new Set(parts.filter((part) => index(part) === undefined))];
      return [parts.filter((part) => index(part) !== undefined).slice(0, MOST), index, unknown];
    }

    function typed() {
      const [parts, index, unknown] = encode(area.value);
      said.textContent = unknown.length ? `Not in its vocabulary, and left out: ${unknown.slice(0, 8).join(" ")}` : "";
      if (!parts.length) {
        said.textContent += " Type something that it knows.";
        return;
      }
      tokens = parts;
      give(Float32Array.from(parts, index), "your text");
    }

    let waiting = null;
    area.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(typed, 150);
    });

    const reading = element("p", { class: "tokens" });
    card.append(
      element("h2", {}, "Text"),
      element("p", { class: "small" }, `Type, and see which ${data.called} may come next. Move the step to see what it expected before.`),
      area,
      said,
      element("h3", {}, "What it has read"),
      reading,
    );
    area.value = data.start;
    typed();
    const shown = (token) => data.names[known.get(token) ?? known.get("<unk>")] + (data.unit === "word" ? " " : "");
    return {
      feature: (i) => `embedding ${i + 1}`,
      read(t) {
        reading.replaceChildren(...tokens.map((token, i) => element("span", { class: i === t ? "at" : i > t ? "muted" : "" }, shown(token))));
      },
      /** Values of tokens as the colour behind them: blue above 0, orange below. */
      text(values, label) {
        const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
        const spans = tokens.map((token, i) => {
          const made = element("span", { title: number(values[i]) }, shown(token));
          const share = Math.round((60 * Math.abs(values[i] ?? 0)) / most);
          made.style.backgroundColor = `color-mix(in srgb, var(${values[i] < 0 ? "--negative" : "--fill"}) ${share}%, transparent)`;
          return made;
        });
        return element("figure", {}, element("figcaption", { class: "small" }, label), element("p", { class: "tokens" }, ...spans));
      },
    };
  },

  // ---- recorded samples
  recorded(card, data, give) {
    const plot = element("div", {});
    const figure = element("div", { class: "body" });
    let current = 0;
    let first = 0; // of the features that are drawn
    const SHOWN = 6;
    const features = data.features;
    const names = Object.fromEntries(data.samples.map((sample, i) => [i, sample.label]));
    const sequences = data.samples.map((sample) => Float32Array.from(sample.values));
    const channel = (f) => (data.channels ? data.channels[f] : `feature ${f + 1}`);

    const chooser = choice("Sequence", names, "0", show);
    const select = chooser.querySelector("select");

    function show(index) {
      current = Number(index);
      select.value = String(current);
      give(sequences[current], names[current], data.samples[current].right ?? null);
    }

    /** The bodies of a sequence in one frame, on a scale that holds all of its frames. */
    function bodies(t) {
      const { joints, bones, bodies: count } = data.body;
      const values = sequences[current];
      const place = (step, joint, axis) => values[step * features + 3 * joint + axis];
      const all = [0, 1].map((axis) => {
        const found = [];
        for (let step = 0; step < values.length / features; step++) {
          for (let joint = 0; joint < joints * count; joint++) found.push(place(step, joint, axis));
        }
        return [found.reduce((a, b) => Math.min(a, b)), found.reduce((a, b) => Math.max(a, b))];
      });
      const span = Math.max(all[0][1] - all[0][0], all[1][1] - all[1][0]) || 1;
      const [width, height, margin] = [520, 260, 14];
      const scale = (height - 2 * margin) / span;
      const x = (joint) => width / 2 + scale * (place(t, joint, 0) - (all[0][0] + all[0][1]) / 2);
      const y = (joint) => height / 2 - scale * (place(t, joint, 1) - (all[1][0] + all[1][1]) / 2);
      const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, class: "lines", role: "img", "aria-label": `The skeleton in frame ${t + 1}` });
      for (let body = 0; body < count; body++) {
        const own = Array.from({ length: joints }, (_, joint) => joint + body * joints);
        if (own.every((joint) => [0, 1, 2].every((axis) => place(t, joint, axis) === 0))) continue; // it is not there
        for (const [one, two] of bones.map((bone) => bone.map((joint) => joint + body * joints))) {
          svg.append(element("line", { x1: x(one), y1: y(one), x2: x(two), y2: y(two), class: "bone" }));
        }
        for (const joint of own) svg.append(element("circle", { cx: x(joint), cy: y(joint), r: 3, class: "joint" }));
      }
      return svg;
    }

    card.append(element("h2", {}, "Recorded sequences"), element("p", { class: "small" }, data.note), element("div", { class: "controls" }, chooser));
    if (data.body) card.append(figure);
    if (features > SHOWN) {
      const groups = Object.fromEntries(
        Array.from({ length: Math.ceil(features / SHOWN) }, (_, i) => [SHOWN * i, `${channel(SHOWN * i)} to ${channel(Math.min(features, SHOWN * (i + 1)) - 1)}`]),
      );
      card.append(element("div", { class: "controls" }, choice("Drawn", groups, "0", (value) => {
        first = Number(value);
        read(Math.min(view.run.inputs - 1, view.t * view.run.stride));
      })));
    }
    card.append(plot);

    function read(t) {
      const values = sequences[current];
      const T = values.length / features;
      const last = Math.min(features, first + SHOWN);
      const series = Array.from({ length: last - first }, (_, f) => ({
        values: Array.from({ length: T }, (_, step) => values[step * features + first + f]),
        kind: `series${f}`,
      }));
      const label = `${series.length} of ${features} features over ${T} steps`;
      const legend = series.map((each, f) => element("span", { class: `key ${each.kind}` }, channel(first + f)));
      plot.replaceChildren(lines(series, { T, at: t, label }), element("p", { class: "small keys" }, ...legend));
      if (data.body) figure.replaceChildren(bodies(t));
    }
    show(0);
    return { sample: show, sequence: (index) => sequences[index], read, feature: channel };
  },
};
