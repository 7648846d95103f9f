"use strict";
// Neurons: as dots, as a table, and one by itself.

const Dots = {
  across: "layer",
  up: "memory",
  colour: "activity",
  places: [],
  names: { layer: "layer", u: "recurrent weight u", memory: "memory in steps", activity: "activity" },

  start() {
    const { layer, u, memory, activity } = this.names;
    const set = (field) => (value) => {
      this[field] = value;
      this.render();
    };
    byId("axes").append(
      choice("Up", { memory, u, activity }, this.up, set("up")),
      choice("Across", { layer, u, memory, activity }, this.across, set("across")),
      choice("Colour", { activity, layer, u }, this.colour, set("colour")),
    );
    const canvas = byId("dots");
    canvas.addEventListener("click", (event) => {
      const near = this.near(event);
      if (near) select(near);
    });
    canvas.addEventListener("mousemove", (event) => {
      const near = this.near(event);
      canvas.title = near ? `${called(near)}: u = ${number(near.u, 6)}, memory ${steps(near.memory)}` : "";
      canvas.style.cursor = near ? "pointer" : "default";
    });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
      if (!by) return;
      event.preventDefault();
      const list = Filter.list();
      const at = list.indexOf(view.selected);
      if (list.length) select(list[Math.max(0, Math.min(list.length - 1, at + by))]);
    });
  },

  near(event) {
    const box = byId("dots").getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [best, least] = [null, 144];
    for (const place of this.places) {
      const away = (place.x - x) ** 2 + (place.y - y) ** 2;
      if (away < least) [best, least] = [place.each, away];
    }
    return best;
  },

  /** An axis over a length: from a neuron to its place, and its marks [place, name]. */
  axis(what, from, to) {
    const at = (share) => from + (to - from) * share;
    if (what === "layer") {
      const count = network.layers.length;
      const every = Math.ceil(count / 12);
      return {
        place: (each) => at((each.layer + 0.12 + (0.76 * (each.neuron + 0.5)) / network.layers[each.layer].size) / count),
        marks: network.layers
          .map((_, i) => [at((i + 0.5) / count), String(i + 1)])
          .filter((_, i) => i % every === 0),
      };
    }
    if (what === "memory") {
      const most = Math.max(10, 10 ** Math.ceil(Math.log10(Math.max(...view.neurons.map((each) => Math.min(each.memory ?? 1, 1e6)), data.length))));
      const scale = (memory) => 0.03 + 0.87 * (Math.log10(Math.max(0.1, memory) / 0.1) / Math.log10(most / 0.1));
      const marks = [];
      for (let mark = 0.1; mark <= most * 1.001; mark *= 10) marks.push([at(scale(mark)), mark < 1 ? "≤ 0.1" : short(Math.round(mark))]);
      return {
        place: (each) => at(each.memory == null || each.memory > most ? 0.97 : scale(each.memory)),
        marks: [...marks, [at(0.97), "∞"]],
      };
    }
    const values = view.neurons.map((each) => (what === "activity" ? each.share : each.u));
    const [low, high] = [Math.min(0, ...values), Math.max(...values, 1e-9)];
    const scale = (value) => 0.03 + (0.94 * (value - low)) / (high - low);
    return {
      place: (each) => at(scale(what === "activity" ? each.share : each.u)),
      marks: ticks(low, high).map((tick) => [at(scale(tick)), what === "activity" ? percent(tick) : number(tick)]),
    };
  },

  render() {
    const canvas = byId("dots");
    const width = Math.max(260, canvas.parentElement.clientWidth);
    const height = width < 500 ? 300 : 380;
    const context = sharp(canvas, width, height);
    const [left, right, top, bottom] = [76, 10, 12, 44];
    const [x, y] = [this.axis(this.across, left, width - right), this.axis(this.up, height - bottom, top)];
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.strokeStyle = themed("--line");
    context.fillStyle = themed("--muted");
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const [place, name] of y.marks) {
      context.beginPath();
      context.moveTo(left, place);
      context.lineTo(width - right, place);
      context.stroke();
      context.fillText(name, left - 8, place + 4);
    }
    context.textAlign = "center";
    for (const [place, name] of x.marks) context.fillText(name, place, height - bottom + 18);
    context.fillText(this.names[this.across], (left + width - right) / 2, height - 6);
    context.save();
    context.rotate(-Math.PI / 2);
    context.fillText(this.names[this.up], -(top + height - bottom) / 2, 12);
    context.restore();
    const kept = view.neurons.filter((each) => Filter.keeps(each));
    this.places = kept.map((each) => ({ each, x: x.place(each), y: y.place(each) }));
    const colour = {
      activity: (each) => sequential(Math.sqrt(each.share)),
      layer: (each) => sequential(each.layer / Math.max(1, network.layers.length - 1)),
      u: (each) => diverging(0.5 + Math.max(-1, Math.min(1, each.u)) / 2),
    }[this.colour];
    byId("colours").textContent = {
      activity: "Colour: activity within the layer, from dark (none) to yellow (the most).",
      layer: "Colour: from dark (the first layer) to yellow (the last).",
      u: "Colour: u, from orange (-1) over white (0) to blue (1).",
    }[this.colour];
    context.strokeStyle = themed("--muted");
    context.lineWidth = 0.5;
    for (const place of this.places) {
      context.beginPath();
      context.arc(place.x, place.y, 4, 0, 7);
      context.fillStyle = css(colour(place.each));
      context.fill();
      context.stroke();
    }
    const chosen = this.places.find((place) => place.each === view.selected);
    if (chosen) {
      context.strokeStyle = themed("--second");
      context.lineWidth = 3;
      context.beginPath();
      context.arc(chosen.x, chosen.y, 8, 0, 7);
      context.stroke();
    }
    canvas.setAttribute("aria-label", `${kept.length} neurons as dots, ${this.names[this.up]} over ${this.names[this.across]}. ` +
      `Arrow keys choose the next in the order of the table. Chosen: ${called(view.selected)}.`);
  },
};

const Table = {
  shown: 50,

  start() {
    const layers = { all: "all layers", ...Object.fromEntries(network.layers.map(({ name }, i) => [i, name])) };
    const again = (field) => (value) => {
      Filter[field] = value;
      this.shown = 50;
      this.render();
      Dots.render();
    };
    byId("filters").append(
      choice("Layer", layers, "all", again("layer")),
      choice("Memory", Filter.kinds(), "all", again("memory")),
    );
    for (const head of document.querySelectorAll("#table th[data-key]")) {
      const key = head.dataset.key;
      const name = head.textContent;
      head.replaceChildren(
        button(name, () => {
          Filter.descending = Filter.sort === key ? !Filter.descending : key !== "layer";
          Filter.sort = key;
          this.render();
        }),
      );
    }
  },

  render() {
    for (const head of document.querySelectorAll("#table th[data-key]")) {
      const own = head.dataset.key === Filter.sort;
      head.setAttribute("aria-sort", own ? (Filter.descending ? "descending" : "ascending") : "none");
    }
    const list = Filter.list();
    byId("rows").replaceChildren(
      ...list.slice(0, this.shown).map((each) =>
        element(
          "tr",
          { "data-index": each.index },
          element("td", {}, button(called(each), () => select(each), { class: "link" })),
          element("td", {}, number(each.u, 6)),
          element("td", {}, steps(each.memory).replace(" steps", "")),
          element("td", {}, number(each.activity)),
        ),
      ),
    );
    const rest = list.length - this.shown;
    byId("count").textContent = `${list.length} of ${view.neurons.length} neurons`;
    byId("more").hidden = rest <= 0;
    byId("more").onclick = () => {
      this.shown += 200;
      this.render();
    };
    this.mark();
  },

  mark() {
    for (const row of byId("rows").children) {
      const own = Number(row.dataset.index) === view.selected.index;
      row.toggleAttribute("aria-current", own);
    }
  },
};

const Neuron = {
  pending: null,

  render() {
    const each = view.selected;
    byId("neuron").textContent = called(each);
    const facts = [
      ["u", number(each.u, 5)],
      ["memory", steps(each.memory)],
      ["activity", number(each.activity)],
      ["active steps", percent(over(view.run.states, each).filter((value) => value !== 0).length / view.run.T)],
    ];
    byId("measures").replaceChildren(
      ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    );
    this.cursor();
    this.excited(each);
    this.reads(each);
    this.samples(each);
    this.lost(each);
  },

  cursor() {
    const each = view.selected;
    const label = `State h of ${called(each)} over the steps`;
    const values = over(view.run.states, each);
    byId("state").replaceChildren(lines([{ values }], { T: view.run.T, at: view.t, label, height: 160 }));
    if (source.text) byId("state").append(source.text(values, "Its state after each token"));
  },

  /** What enters the neuron at each step, W x + b. */
  excited(each) {
    const drive = over(view.run.drives, each);
    const most = drive.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
    const host = byId("drive");
    if (source.map) {
      const { side, values } = source.map(drive);
      const canvas = element("canvas", { class: "map", role: "img", "aria-label": "What enters the neuron at each pixel: blue excites, orange inhibits" });
      paint(canvas, side, side, (x, y) => diverging(0.5 + values[y * side + x] / most / 2));
      host.replaceChildren(canvas, element("p", { class: "small" }, `At each pixel: blue excites it, orange inhibits it (± ${number(most)}).`));
    } else if (source.text) {
      host.closest(".pair").classList.add("stacked");
      host.replaceChildren(source.text(drive, "At each token, before the recurrence"));
    } else {
      host.closest(".pair").classList.add("stacked");
      host.replaceChildren(lines([{ values: drive }], { T: view.run.T, label: "What enters the neuron at each step", height: 130 }));
    }
  },

  /** What a feature is called: by the data, where it is one of theirs. */
  feature({ piece, i }) {
    if (piece.layer != null) return `${piece.name}, neuron ${i + 1}`;
    if (piece.name === "input" && source.feature) return source.feature(i);
    return piece.size > 1 ? `${piece.name} ${i + 1}` : piece.name;
  },

  /** The largest input weights. */
  reads(each) {
    const { weight, sources } = network.layers[each.layer];
    const host = byId("weights");
    const places = sources.flatMap((piece) => Array.from({ length: piece.size }, (_, i) => ({ piece, i })));
    if (!weight) {
      host.replaceChildren(element("p", { class: "small" }, `It has no input weights: it reads ${this.feature(places[each.neuron % places.length])}.`));
      return;
    }
    const columns = weight.shape[1];
    const own = Array.from(network.get(weight).subarray(each.neuron * columns, (each.neuron + 1) * columns));
    const order = own.map((_, i) => i).sort((a, b) => Math.abs(own[b]) - Math.abs(own[a])).slice(0, 8);
    const most = Math.abs(own[order[0]]) || 1;
    const rows = order.map((column) => {
      const { piece, i } = places[column];
      const from = piece.layer == null ? null : neuronAt(piece.layer, i);
      return {
        name: this.feature(places[column]),
        share: own[column] / most,
        text: (own[column] > 0 ? "+" : "") + number(own[column]),
        click: from ? () => select(from) : null,
      };
    });
    const rest = columns > rows.length ? `The ${rows.length} largest of ${columns}.` : "";
    host.replaceChildren(bars(rows, "Input weights"), element("p", { class: "small" }, rest));
  },

  /** The recorded samples that it is most active in. */
  samples(each) {
    const host = byId("exciting");
    host.parentElement.hidden = !data.activity;
    if (!data.activity) return;
    const [count, size] = data.activity.shape;
    const all = network.get(data.activity);
    const own = Array.from({ length: count }, (_, i) => all[i * size + each.index]);
    const order = own.map((_, i) => i).sort((a, b) => own[b] - own[a]).slice(0, 8);
    host.replaceChildren(
      ...order.map((i) => {
        const { label } = data.input.samples[i];
        const choose = button("", () => source.sample(i), { "aria-label": `Show sample ${label}, activity ${number(own[i])}` });
        choose.append(source.thumbnail ? source.thumbnail(i) : element("span", {}, label), element("small", {}, number(own[i], 2)));
        return choose;
      }),
    );
  },

  /** What the answer is without it. */
  lost(each) {
    const host = byId("lost");
    host.replaceChildren(element("p", { class: "small" }, "…"));
    clearTimeout(this.pending);
    this.pending = setTimeout(() => {
      const without = { layer: each.layer, neuron: each.neuron };
      const rest = network.run(view.input, { without, before: view.run });
      const [before, after] = [network.answer(view.run), network.answer(rest)];
      const parts = [this.difference(before, after)];
      if (data.input.samples && data.input.samples.length && source.sequence && data.kind !== "text") {
        const count = data.input.samples.length;
        parts.push(button(`Measure on all ${count} samples`, () => this.measured(each, host), { class: "quiet" }));
      }
      host.replaceChildren(...parts);
    }, 30);
  },

  difference(before, after) {
    if (!before.probabilities) {
      const [first, second] = [before, after].map(({ outputs }) => Array.from(outputs, (value) => number(value, 4)).join(", "));
      return element("p", {}, `${first} with it, `, element("strong", {}, second), " without it.");
    }
    const best = before.probabilities.indexOf(Math.max(...before.probabilities));
    const now = after.probabilities.indexOf(Math.max(...after.probabilities));
    const [first, second] = [percent(before.probabilities[best]), percent(after.probabilities[best])];
    const [was, is] = [best, now].map((i) => element("span", {}, "“", element("bdi", {}, data.classes[i]), "”"));
    const turned = now === best ? [] : [" The answer turns into ", is, `, ${percent(after.probabilities[now])}.`];
    return element("p", {}, was, `: ${first} with it, `, element("strong", {}, second), " without it.", ...turned);
  },

  /** Over all samples, one after the other, so that the page stays alive. */
  measured(each, host) {
    const without = { layer: each.layer, neuron: each.neuron };
    const text = element("p", { class: "small" });
    host.lastChild.replaceWith(text);
    const count = data.input.samples.length;
    let [changed, difference] = [0, 0];
    const next = (i) => {
      if (view.selected !== each) return;
      if (i < count) {
        const input = source.sequence(i);
        const before = network.run(input);
        const [a, b] = [network.answer(before), network.answer(network.run(input, { without, before }))];
        const rows = [a, b].map(({ probabilities, outputs }) => probabilities || Array.from(outputs));
        changed += rows[0].indexOf(Math.max(...rows[0])) !== rows[1].indexOf(Math.max(...rows[1]));
        difference += Math.max(...rows[0].map((value, o) => Math.abs(value - rows[1][o])));
        text.textContent = `${i + 1} of ${count} samples …`;
        setTimeout(() => next(i + 1), 0);
        return;
      }
      text.textContent = data.classes
        ? `Over ${count} samples: ${changed} answers change; the probability that changes most does so by ${percent(difference / count)} on average.`
        : `Over ${count} samples the answer changes by ${number(difference / count)} on average.`;
    };
    next(0);
  },
};

start();
