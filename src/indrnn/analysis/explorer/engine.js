"use strict";
// A trained network in plain JavaScript: the program that program.py wrote, run over a sequence.
//
// A program is a list of nodes, each from features (T, inputs) to features (T, outputs), row after row in one array:
//   unit       [Weight →] [norm →] h_t = σ(x_t + b + u h_{t−1}) [→ norm]
//   linear     W x + b
//   relu       max(x, 0)
//   residual   x + body(x)
//   dense      x beside body(x)
//   embedding  token numbers (T, 1) to vectors
//   convolution  over this step and those before it, norm, relu; with a stride, ⌈T / stride⌉ rows are left
const Engine = (() => {
  const ACTIVATIONS = {
    relu: (z) => (z > 0 ? z : z === z ? 0 : z),
    tanh: Math.tanh,
    sigmoid: (z) => 1 / (1 + Math.exp(-z)),
    identity: (z) => z,
  };

  /** Numbers of a base64 text: little-endian float32. */
  function floats(base64) {
    const text = atob(base64.replace(/\s/g, ""));
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const view = new DataView(bytes.buffer);
    const result = new Float32Array(bytes.length / 4);
    for (let i = 0; i < result.length; i++) result[i] = view.getFloat32(4 * i, true);
    return result;
  }

  /** x (T, inputs) times weight (outputs, inputs), plus bias: (T, outputs). */
  function linear(x, T, weight, bias, outputs) {
    const inputs = weight.length / outputs;
    const y = new Float32Array(T * outputs);
    for (let t = 0; t < T; t++) {
      const row = t * inputs;
      for (let o = 0; o < outputs; o++) {
        let sum = 0;
        for (let i = 0, w = o * inputs; i < inputs; i++) sum += weight[w + i] * x[row + i];
        y[t * outputs + o] = bias ? sum + bias[o] : sum;
      }
    }
    return y;
  }

  /** Features beside each other: (T, a) and (T, b) to (T, a + b). */
  function beside(x, y, T) {
    const [a, b] = [x.length / T, y.length / T];
    const both = new Float32Array(T * (a + b));
    for (let t = 0; t < T; t++) {
      both.set(x.subarray(t * a, (t + 1) * a), t * (a + b));
      both.set(y.subarray(t * b, (t + 1) * b), t * (a + b) + a);
    }
    return both;
  }

  function softmax(logits) {
    const most = Math.max(...logits);
    const parts = Array.from(logits, (value) => Math.exp(value - most));
    const sum = parts.reduce((a, b) => a + b, 0);
    return parts.map((part) => part / sum);
  }

  class Network {
    /** Of a program, and the numbers that its references {at, shape} point into. */
    constructor(program, numbers) {
      this.program = program;
      this.layers = program.layers;
      this.numbers = numbers;
      this.outputs = program.output.weight.shape[0];
    }

    /** The numbers of a reference; null for none. */
    get(reference) {
      if (!reference) return null;
      const size = reference.shape.reduce((a, b) => a * b, 1);
      return this.numbers.subarray(reference.at, reference.at + size);
    }

    /**
     * Run over a sequence.
     *
     * input: (T, features), row after row. without: {layer, neuron}, whose state is held at 0. before: the result of a
     * run of the same input, of which the parts below that neuron are taken and not computed again.
     *
     * Returns T, the steps that the layers see, one for `stride` steps of the input; answers (T, outputs), what would be answered were this step the last, or (1, outputs) where an answer
     * needs the whole sequence; and for each layer states h and drives, what enters the recurrence, both (T, size).
     */
    run(input, { without = null, before = null } = {}) {
      let T = input.length / this.program.inputs;
      const result = { inputs: T, stride: 1, states: [], drives: [], features: [] };
      let x = input;
      let changed = !before || !without;
      for (const [number, node] of this.program.nodes.entries()) {
        changed ||= layersOf(node).some((layer) => layer >= without.layer);
        if (changed) {
          x = this._node(node, x, T, result, without);
        } else {
          x = before.features[number];
          for (const layer of layersOf(node)) {
            result.states[layer] = before.states[layer];
            result.drives[layer] = before.drives[layer];
          }
        }
        result.features.push(x);
        if (node.op === "convolution") {
          T = Math.ceil(T / node.stride);
          result.stride *= node.stride;
        }
      }
      result.T = T;
      result.answers = this._answers(x, T);
      return result;
    }

    _nodes(nodes, x, T, result, without) {
      for (const node of nodes) x = this._node(node, x, T, result, without);
      return x;
    }

    _node(node, x, T, result, without) {
      switch (node.op) {
        case "unit":
          return this._unit(node, x, T, result, without);
        case "linear":
          return linear(x, T, this.get(node.weight), this.get(node.bias), node.weight.shape[0]);
        case "convolution":
          return this._convolution(node, x, T);
        case "relu":
          return x.map(ACTIVATIONS.relu);
        case "residual":
          return this._nodes(node.body, x, T, result, without).map((y, i) => x[i] + y);
        case "dense":
          return beside(x, this._nodes(node.body, x, T, result, without), T);
        case "embedding": {
          const [weight, size] = [this.get(node.weight), node.weight.shape[1]];
          const y = new Float32Array(T * size);
          for (let t = 0; t < T; t++) y.set(weight.subarray(x[t] * size, (x[t] + 1) * size), t * size);
          return y;
        }
        default:
          throw new Error(`no such node: ${node.op}`);
      }
    }

    _convolution(node, x, T) {
      const [weight, [size, inputs, kernel]] = [this.get(node.weight), node.weight.shape];
      const rows = Math.ceil(T / node.stride);
      const y = new Float32Array(rows * size);
      for (let row = 0; row < rows; row++) {
        for (let o = 0; o < size; o++) {
          let sum = 0;
          for (let k = 0; k < kernel; k++) {
            const t = row * node.stride - (kernel - 1) + k;
            if (t < 0) continue; // before the first step there are zeros
            for (let i = 0; i < inputs; i++) sum += weight[(o * inputs + i) * kernel + k] * x[t * inputs + i];
          }
          y[row * size + o] = sum;
        }
      }
      return this._norm(node.norm, y, rows, size).map(ACTIVATIONS.relu);
    }

    _unit(node, x, T, result, without) {
      const [size, u, bias, norm] = [node.size, this.get(node.u), this.get(node.bias), node.norm];
      let z = node.weight ? linear(x, T, this.get(node.weight), null, size) : Float32Array.from(x);
      if (bias) for (let i = 0; i < z.length; i++) z[i] += bias[i % size];
      if (norm && norm.place === "before") z = this._norm(norm, z, T, size);
      const h = new Float32Array(T * size);
      const activate = ACTIVATIONS[node.activation];
      const forwards = node.bidirectional ? size / 2 : size; // the other half goes from the last step to the first
      const held = without && without.layer === node.layer ? without.neuron : -1;
      for (let n = 0; n < size; n++) {
        if (n === held) continue;
        const [first, by] = n < forwards ? [n, size] : [(T - 1) * size + n, -size];
        let state = 0;
        for (let t = 0, at = first; t < T; t++, at += by) {
          state = Math.fround(activate(z[at] + u[n] * state));
          h[at] = state;
        }
      }
      result.states[node.layer] = h;
      result.drives[node.layer] = z;
      return norm && norm.place === "after" ? this._norm(norm, h, T, size) : h;
    }

    _norm(norm, x, T, size) {
      const y = new Float32Array(x.length);
      const [mean, scale, shift] = [this.get(norm.mean), this.get(norm.scale), this.get(norm.shift)];
      for (let t = 0; t < T; t++) {
        const row = t * size;
        let [center, factor, own] = [0, 1, 0];
        if (norm.kind === "layer" || norm.kind === "rms") {
          let [sum, squares] = [0, 0];
          if (norm.kind === "layer") for (let n = 0; n < size; n++) sum += x[row + n];
          center = sum / size;
          for (let n = 0; n < size; n++) squares += (x[row + n] - center) ** 2;
          factor = 1 / Math.sqrt(squares / size + norm.eps);
        } else {
          own = norm.kind === "step" ? (t % norm.steps) * size : 0;
        }
        for (let n = 0; n < size; n++) {
          const away = mean ? x[row + n] - mean[own + n] : x[row + n] - center;
          y[row + n] = away * factor * (scale ? scale[own + n] : 1) + (shift ? shift[n] : 0);
        }
      }
      return y;
    }

    _answers(x, T) {
      const { weight, bias, pool } = this.program.output;
      const size = weight.shape[1];
      let rows = x;
      let count = T;
      if (pool === "mean") {
        rows = new Float32Array(x.length);
        for (let n = 0; n < size; n++) {
          for (let t = 0, sum = 0; t < T; t++) {
            sum += x[t * size + n];
            rows[t * size + n] = sum / (t + 1);
          }
        }
      }
      if (this.program.whole) {
        // Of the last step that each direction reads, or of the mean over all
        const last = rows.slice((T - 1) * size);
        if (pool === "last") last.set(x.subarray(size / 2, size), size / 2);
        [rows, count] = [last, 1];
      }
      return linear(rows, count, this.get(weight), this.get(bias), this.outputs);
    }

    /** The answer at a step of a run: its outputs, and as probabilities where there are classes. */
    answer(run, t = run.T - 1) {
      const row = Math.min(t, run.answers.length / this.outputs - 1) * this.outputs;
      const outputs = run.answers.subarray(row, row + this.outputs);
      const { classes, several } = this.program.output;
      const probabilities = several ? Array.from(outputs, ACTIVATIONS.sigmoid) : classes ? softmax(outputs) : null;
      return { outputs, probabilities };
    }
  }

  /** The layers of a node. */
  function layersOf(node) {
    return node.op === "unit" ? [node.layer] : (node.body || []).flatMap(layersOf);
  }

  return { Network, floats, softmax };
})();
if (typeof module !== "undefined") module.exports = Engine;
