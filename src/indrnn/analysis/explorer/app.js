"use strict";
// The page: the network runs over what is given, and every view shows the run up to the chosen step.

const data = JSON.parse(document.getElementById("data").textContent);
const numbers = Engine.floats(document.getElementById("numbers").textContent);
const network = new Engine.Network(data.program, numbers);
const byId = (id) => document.getElementById(id);

/** What is shown. */
const view = {
  input: null,
  label: "",
  right: null, // the right answer, where one is known
  run: null,
  t: 0,
  selected: null,
  neurons: [],
};

// ---- neurons

let position = 0;
for (const [layer, { size, name, u: reference }] of network.layers.entries()) {
  const u = network.get(reference);
  for (let neuron = 0; neuron < size; neuron++) {
    const memory = data.memory[layer][neuron];
    view.neurons.push({ layer, neuron, u: u[neuron], memory, activity: 0, name, index: position++ });
  }
}
const neuronAt = (layer, neuron) => view.neurons.find((each) => each.layer === layer && each.neuron === neuron);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const called = (each) => `${capital(each.name)}, neuron ${each.neuron + 1}`;

/** The states of a neuron, or what enters it, over time. */
function over(rows, { layer, neuron }) {
  const size = network.layers[layer].size;
  return Float32Array.from({ length: rows[layer].length / size }, (_, t) => rows[layer][t * size + neuron]);
}

function measure() {
  for (const each of view.neurons) {
    const [size, rows] = [network.layers[each.layer].size, view.run.states[each.layer]];
    let sum = 0;
    for (let at = each.neuron; at < rows.length; at += size) sum += Math.abs(rows[at]);
    each.activity = sum / view.run.T;
  }
  // Within a layer: 1 is the most active neuron's
  for (const layer of network.layers.keys()) {
    const own = view.neurons.filter((each) => each.layer === layer);
    const most = Math.max(...own.map((each) => each.activity)) || 1;
    for (const each of own) each.share = each.activity / most;
  }
}

// ---- a run

function give(input, label, right = null) {
  Object.assign(view, { input, label, right, run: network.run(input) });
  view.t = view.run.T - 1;
  measure();
  stop();
  const slider = byId("step");
  slider.max = view.run.T - 1;
  if (ready) renderAll();
}

let ready = false;
let source = null;

function renderAll() {
  renderStep();
  States.render();
  Dots.render();
  Table.render();
  Neuron.render();
  document.documentElement.dataset.runs = String(Number(document.documentElement.dataset.runs || 0) + 1);
}

/** What changes with the step alone. */
function renderStep() {
  byId("step").value = view.t;
  byId("step").setAttribute("aria-valuetext", `step ${view.t + 1} of ${view.run.T}`);
  const each = view.run.stride > 1 ? `, ${view.run.stride} of the input each` : "";
  byId("steps").textContent = `${data.kind === "text" ? "token" : "step"} ${view.t + 1} of ${view.run.T}${each}`;
  source.read(Math.min(view.run.inputs - 1, view.t * view.run.stride));
  Answer.render();
  if (!data.classes) Answer.history();
  States.cursor();
  Neuron.cursor();
}

// ---- playing

let playing = null;

function stop() {
  if (playing) cancelAnimationFrame(playing);
  playing = null;
  byId("play").textContent = "▶ Play";
}

function play() {
  if (playing) return stop();
  const from = view.t >= view.run.T - 1 ? 0 : view.t;
  const started = performance.now();
  const rate = Math.max(8, view.run.T / 8) / 1000; // steps in a millisecond
  byId("play").textContent = "❚❚ Pause";
  const frame = (now) => {
    view.t = Math.min(view.run.T - 1, from + Math.floor((now - started) * rate));
    renderStep();
    if (view.t < view.run.T - 1) playing = requestAnimationFrame(frame);
    else stop();
  };
  playing = requestAnimationFrame(frame);
}

// ---- the answer

const Answer = {
  render() {
    const { outputs, probabilities } = network.answer(view.run, view.t);
    const final = network.program.whole && view.t < view.run.T - 1 ? " (of the whole sequence)" : "";
    if (!probabilities) {
      byId("answer").textContent = Array.from(outputs, (value) => number(value, 4)).join(", ");
      const right = view.right == null ? "" : `; right is ${typeof view.right === "number" ? number(view.right, 4) : view.right}`;
      byId("summary").textContent = `The answer after ${view.t + 1} of ${view.run.T} steps${right}${final}.`;
      return;
    }
    const order = probabilities.map((_, i) => i).sort((a, b) => probabilities[b] - probabilities[a]);
    const shown = probabilities.length <= 12 ? probabilities.map((_, i) => i) : order.slice(0, 12);
    const best = order[0];
    const several = network.program.output.several;
    const held = order.filter((i) => probabilities[i] > 0.5).map((i) => data.classes[i]);
    byId("answer").textContent = several ? held.join(", ") || "none" : data.classes[best];
    byId("answer").classList.toggle("long", byId("answer").textContent.length > 12);
    const sure = several ? "" : `${percent(probabilities[best])} sure `;
    // Names of any direction of writing leave the sentence around them as it is
    const right = view.right == null ? [] : ["; right is ", element("bdi", {}, view.right)];
    const parts = [`${sure}after ${view.t + 1} of ${view.run.T} steps`, ...right, `${final}.`];
    byId("summary").replaceChildren(...(data.kind === "text" ? [`comes next with ${percent(probabilities[best])}.`] : parts));
    const rows = shown.map((i) => ({
      name: data.classes[i],
      share: probabilities[i],
      text: percent(probabilities[i]),
      strong: i === best,
    }));
    byId("outputs").replaceChildren(bars(rows, data.kind === "text" ? "What may come next" : "Probability of each class"));
  },

  /** The answers over time: a heatmap for classes, lines for numbers. */
  history() {
    const host = byId("history");
    const rows = view.run.answers.length / network.outputs;
    host.hidden = rows < 2 || data.kind === "text";
    if (host.hidden) return;
    if (!data.classes) {
      const series = Array.from({ length: network.outputs }, (_, o) => ({
        values: Array.from({ length: rows }, (_, t) => view.run.answers[t * network.outputs + o]),
      }));
      if (typeof view.right === "number") series.push({ values: new Array(rows).fill(view.right), kind: "right" });
      const label = "The answer as the sequence is read" + (typeof view.right === "number" ? ", and the right one, dashed" : "");
      host.replaceChildren(element("p", { class: "small" }, `${label}.`), lines(series, { T: rows, label, at: view.t }));
      return;
    }
    const all = Array.from({ length: rows }, (_, t) => network.answer(view.run, t).probabilities);
    const canvas = element("canvas", { class: "heat probabilities", role: "img", "aria-label": "Probability of each class over time" });
    const columns = Math.min(rows, 1000);
    const at = (x) => Math.min(rows - 1, Math.floor(((x + 0.5) * rows) / columns));
    paint(canvas, columns, network.outputs, (x, y) => sequential(all[at(x)][y]));
    const many = network.outputs > 20;
    const names = element("div", { class: "names", "aria-hidden": "true" }, ...(many ? [] : data.classes.map((name) => element("span", {}, name))));
    host.replaceChildren(
      element("p", { class: "small" }, `Probabilities as the sequence is read, from dark (0 %) to yellow (100 %)${many ? "; a row for each class, the first at the top" : ""}`),
      element("div", { class: "named" }, names, element("div", { class: "over" }, canvas, element("div", { class: "now" }))),
    );
    canvas.addEventListener("click", (event) => goTo(event, canvas));
  },
};

function goTo(event, canvas) {
  const box = canvas.getBoundingClientRect();
  view.t = Math.max(0, Math.min(view.run.T - 1, Math.floor(((event.clientX - box.left) / box.width) * view.run.T)));
  stop();
  renderStep();
}

// ---- states, layer by layer

const States = {
  order: "memory",
  scale: "neuron",

  rows(layer) {
    const own = view.neurons.filter((each) => each.layer === layer);
    const key = { memory: (each) => Math.abs(each.u), activity: (each) => each.activity, neuron: (each) => each.neuron }[this.order];
    return own.sort((a, b) => key(a) - key(b) || a.neuron - b.neuron);
  },

  render() {
    Answer.history();
    const host = byId("states");
    if (!host.children.length) {
      for (const [layer, { name, size }] of network.layers.entries()) {
        const canvas = element("canvas", { class: "heat", role: "img" });
        canvas.addEventListener("click", (event) => {
          const box = canvas.getBoundingClientRect();
          const row = Math.floor(((event.clientY - box.top) / box.height) * size);
          select(this.rows(layer)[Math.max(0, Math.min(size - 1, row))]);
        });
        const title = element("figcaption", {}, `${capital(name)} `, element("span", { class: "muted" }, `${size} neurons`));
        host.append(element("figure", {}, title, element("div", { class: "over" }, canvas, element("div", { class: "now" }))));
      }
    }
    for (const [layer, { name, size }] of network.layers.entries()) {
      const canvas = host.children[layer].querySelector("canvas");
      const [h, T] = [view.run.states[layer], view.run.T];
      const order = this.rows(layer);
      const most = new Float32Array(size);
      let signed = false;
      for (let at = 0; at < h.length; at++) {
        most[at % size] = Math.max(most[at % size], Math.abs(h[at]));
        signed ||= h[at] < 0;
      }
      const all = Math.max(...most);
      const columns = Math.min(T, 1000);
      paint(canvas, columns, size, (x, y) => {
        const { neuron } = order[y];
        const value = h[Math.min(T - 1, Math.floor(((x + 0.5) * T) / columns)) * size + neuron];
        const relative = value / ((this.scale === "neuron" ? most[neuron] : all) || 1);
        return signed ? diverging(0.5 + relative / 2) : sequential(relative);
      });
      const silent = most.filter((value) => value === 0).length;
      canvas.setAttribute("aria-label", `States of ${name} over ${T} steps; ${silent} of ${size} neurons are silent`);
    }
    this.cursor();
  },

  cursor() {
    for (const now of document.querySelectorAll(".now")) now.style.left = `${(100 * (view.t + 0.5)) / view.run.T}%`;
  },
};

// ---- choosing a neuron

function select(each) {
  view.selected = each;
  Dots.render();
  Table.mark();
  Neuron.render();
}

/** The neurons that the filters leave, in the order that was asked for. */
const Filter = {
  layer: "all",
  memory: "all",
  sort: "memory",
  descending: true,

  kinds() {
    const [short, long] = data.bounds.map((bound) => number(bound));
    return { all: "any", short: `short, below ${short} steps`, middle: "middle", long: `long, from ${long} steps` };
  },

  keeps(each) {
    const memory = each.memory ?? Infinity;
    if (this.layer !== "all" && each.layer !== Number(this.layer)) return false;
    const kind = data.bounds.filter((bound) => memory >= bound).length;
    return this.memory === "all" || this.memory === ["short", "middle", "long"][kind];
  },

  key(each) {
    if (this.sort === "memory") return Math.abs(each.u);
    return this.sort === "layer" ? each.index : each[this.sort];
  },

  list() {
    const sign = this.descending ? -1 : 1;
    return view.neurons
      .filter((each) => this.keeps(each))
      .sort((a, b) => sign * (this.key(a) - this.key(b)) || a.index - b.index);
  },
};

function start() {
  const title = `${data.title}: IndRNN explorer`;
  document.title = title;
  byId("title").textContent = data.title;
  byId("about").textContent = data.about;
  byId("facts").append(
    ...data.facts.map(([name, value, note]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value, note ? element("small", {}, note) : null)),
    ),
  );
  byId("step").addEventListener("input", (event) => {
    stop();
    view.t = Number(event.target.value);
    renderStep();
  });
  byId("play").addEventListener("click", play);
  byId("order").append(
    choice("Rows by", { memory: "memory", activity: "activity", neuron: "number" }, "memory", (value) => {
      States.order = value;
      States.render();
    }),
    choice("Brightest is", { neuron: "each neuron's most", layer: "the layer's most" }, "neuron", (value) => {
      States.scale = value;
      States.render();
    }),
  );
  source = Inputs[data.kind](byId("input"), data.input, give);
  const last = view.neurons.filter((each) => each.layer === network.layers.length - 1);
  view.selected = last.reduce((a, b) => (b.activity > a.activity ? b : a));
  Dots.start();
  Table.start();
  ready = true;
  renderAll();
  const again = () => {
    if (source.redraw) source.redraw();
    Dots.render();
  };
  window.addEventListener("resize", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
}
