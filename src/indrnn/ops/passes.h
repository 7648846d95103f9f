// Passes over time, tile by tile: the recurrence forward and backward, and what batch norm needs beside them.

#pragma once

#include <algorithm>
#include <cstdlib>

#include "rows.h"

namespace indrnn {

// ---- a tile: rows [b0, b1) and columns [j0, j1), over all of time

struct Shape {
  int64_t T, B, M, N;
  bool reverse;
  const int64_t* lengths;  // (B,) or null
  const uint8_t* resets;   // (T, B), contiguous, or null
  int64_t R() const { return M * N; }
  bool plain() const { return !lengths && !resets; }
  int64_t length(int64_t b) const { return lengths ? lengths[b] : T; }
  bool reset(int64_t t, int64_t b) const { return resets && resets[t * B + b]; }
};

struct Tile {
  int64_t b0, b1, j0, j1;
};

template <class S>
struct Series {  // a (T, B, R) tensor; null where there is none
  S* data;
  int64_t stride_t, stride_b;
  S* row(int64_t t, int64_t b, int64_t j) const { return data ? data + t * stride_t + b * stride_b + j : nullptr; }
  bool rows_touch(int64_t R) const { return !data || stride_b == R; }
};

template <class A>
struct Scratch {  // freed on every way out; calloc, so that a tile's zeros come for free
  A* data;
  explicit Scratch(int64_t n) : data(static_cast<A*>(std::calloc(size_t(n), sizeof(A)))) {}
  ~Scratch() { std::free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

// A vector of N repeated as often as a run of `n` numbers that starts at column j0 needs it
template <class A>
INDRNN_INLINE void repeat(const A* vector, int64_t N, int64_t j0, int64_t n, A* to) {
  for (int64_t j = 0; j < n; ++j) to[j] = vector[(j0 + j) % N];
}

template <class S, class A>
struct Forward {
  Shape shape;
  Activation activation;
  Series<const S> x;
  Series<S> h;
  const A* u;
  const A* bias;  // (N,), or null
  A* state;       // in: h_0; out: h_last
  Affine<A> norm;  // of x, before the recurrence; constants (B, R), null where there is none
  const A* mask;   // (B, R), or null: y = mask * h
  Series<S> y;
  double *sum, *square;  // in: zeros; out: each chain's sums over h and its square; or null

  template <Activation act>
  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    // Where nothing differs between the rows of the tile and memory has no gap between them, they are one long row.
    const bool merge = shape.plain() && x.rows_touch(R) && h.rows_touch(R) && tile.j1 - tile.j0 == R;
    const int64_t group = merge ? tile.b1 - tile.b0 : 1;
    const int64_t n = group * (tile.j1 - tile.j0);
    const Scratch<A> u_row(n), bias_row(n), row(n);
    repeat(u, shape.N, tile.j0, n, u_row.data);
    if (bias) repeat(bias, shape.N, tile.j0, n, bias_row.data);
    const A* const added = bias ? bias_row.data : nullptr;
    for (int64_t step = 0; step < shape.T; ++step) {
      const int64_t t = shape.reverse ? shape.T - 1 - step : step;
      for (int64_t b = tile.b0; b < tile.b1; b += group) {
        S* const out = h.row(t, b, tile.j0);
        A* const s = state + b * R + tile.j0;
        if (t >= shape.length(b)) {
          std::memset(static_cast<void*>(out), 0, size_t(n) * sizeof(S));
          if (mask) std::memset(static_cast<void*>(y.row(t, b, tile.j0)), 0, size_t(n) * sizeof(S));
          continue;
        }
        if (shape.reset(t, b)) std::memset(s, 0, size_t(n) * sizeof(A));
        const S* const in = x.row(t, b, tile.j0);
        const int64_t at = b * R + tile.j0;
        if (norm.slope) affine_row<S, A>(n, nullptr, in, norm.at(at), row.data);
        const A* const input = norm.slope ? row.data : loaded(n, in, row.data);
        forward_row<act, S, A>(n, input, u_row.data, added, s, out);
        if (sum) sums_row<S, A>(n, out, nullptr, nullptr, sum + at, square + at);
        if (mask) {
          affine_row<S, A>(n, out, nullptr, {mask + at, nullptr, nullptr, nullptr}, row.data);
          store_row(n, row.data, y.row(t, b, tile.j0));
        }
      }
    }
  }
};

template <class S, class A>
struct Backward {
  Shape shape;
  Activation activation;
  Series<const S> grad_h, h;
  Series<S> grad_x;
  const A* u;
  const A* h_0;  // (B, R), or null for zeros
  A* carry;      // in: grad_h_last; out: grad_h_0
  A* sum_u;      // in: zeros; out: each chain's part of u's gradient, (B, R)
  A* sum_bias;   // the same for a bias: the sum of x's gradient
  Affine<A> norm;     // of grad_h, with v = h: the backward pass of a norm or dropout after the recurrence
  Series<const S> x;  // for a norm before the recurrence: with its center, (B, R), each chain's sum of grad * (x - center)
  const A* x_center;
  double *sum, *sum_x;  // in: zeros; or null

  // A sum over very many steps is added up in stretches, or rounding would grow with its length.
  static constexpr int64_t stretch = 512;

  static INDRNN_INLINE void move_into(int64_t n, A* __restrict part, A* __restrict sum) {
    for (int64_t j = 0; j < n; ++j) {
      sum[j] += part[j];
      part[j] = A(0);
    }
  }

  template <Activation act>
  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const bool merge = shape.plain() && grad_h.rows_touch(R) && h.rows_touch(R) && grad_x.rows_touch(R) && x.rows_touch(R) &&
                       tile.j1 - tile.j0 == R;
    const int64_t group = merge ? tile.b1 - tile.b0 : 1;
    const int64_t n = group * (tile.j1 - tile.j0);
    const int64_t rows = (tile.b1 - tile.b0) / group;
    const Scratch<A> u_row(n), zeros(n), partial_u(rows * n), partial_bias(rows * n), row(n), entered(n);
    repeat(u, shape.N, tile.j0, n, u_row.data);
    for (int64_t step = shape.T - 1; step >= 0; --step) {
      const int64_t t = shape.reverse ? shape.T - 1 - step : step;
      const int64_t before = shape.reverse ? t + 1 : t - 1;
      for (int64_t b = tile.b0; b < tile.b1; b += group) {
        const int64_t at = b * R + tile.j0;
        A* const part_u = partial_u.data + (b - tile.b0) / group * n;
        A* const part_bias = partial_bias.data + (b - tile.b0) / group * n;
        S* const out = grad_x.row(t, b, tile.j0);
        if (t < shape.length(b)) {
          const S* const g = grad_h.row(t, b, tile.j0);
          const S* const now = h.row(t, b, tile.j0);
          const bool first = before < 0 || before >= shape.length(b);
          const bool reset = shape.reset(t, b);
          if (norm.gain) affine_row<S, A>(n, g, now, norm.at(at), row.data);
          const A* const incoming = norm.gain ? row.data : loaded(n, g, row.data);
          const A* const previous = reset || (first && !h_0) ? zeros.data
                                    : first                  ? h_0 + at
                                                             : loaded(n, h.row(before, b, tile.j0), entered.data);
          backward_row<act, S, A>(n, incoming, now, previous, u_row.data, carry + at, part_u, part_bias, out);
          if (sum) sums_row<S, A>(n, out, x.row(t, b, tile.j0), x_center + at, sum + at, sum_x + at);
          if (reset) std::memset(carry + at, 0, size_t(n) * sizeof(A));
        } else {
          std::memset(static_cast<void*>(out), 0, size_t(n) * sizeof(S));
        }
        if (step % stretch == 0) {
          move_into(n, part_u, sum_u + at);
          move_into(n, part_bias, sum_bias + at);
        }
      }
    }
  }
};

// to = gain * g + offset + slope * (v - center) at each valid step, and 0 elsewhere; `to` may be g.
template <class S, class A>
struct Combine {
  Shape shape;
  Series<const S> g, v;
  Series<S> to;
  Affine<A> by;

  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const bool merge = shape.plain() && g.rows_touch(R) && v.rows_touch(R) && tile.j1 - tile.j0 == R;
    const int64_t group = merge ? tile.b1 - tile.b0 : 1;
    const int64_t n = group * (tile.j1 - tile.j0);
    const Scratch<A> row(n);
    for (int64_t t = shape.T - 1; t >= 0; --t) {  // what was made last is in the cache still
      for (int64_t b = tile.b0; b < tile.b1; b += group) {
        S* const out = to.row(t, b, tile.j0);
        if (t < shape.length(b)) {
          const S* const from = g.row(t, b, tile.j0);
          A* const direct = std::is_same<S, A>::value && out != from ? reinterpret_cast<A*>(out) : nullptr;
          affine_row<S, A>(n, from, v.row(t, b, tile.j0), by.at(b * R + tile.j0), direct ? direct : row.data);
          if (!direct) store_row(n, row.data, out);
        } else {
          std::memset(static_cast<void*>(out), 0, size_t(n) * sizeof(S));
        }
      }
    }
  }
};

// Each chain's sums over its valid steps: of v, and of v * (w - center), or of squares where w is missing.
template <class S, class A>
struct Sums {
  Shape shape;
  Series<const S> v, w;
  const A* center;
  double *first, *second;

  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const bool merge = shape.plain() && v.rows_touch(R) && w.rows_touch(R) && tile.j1 - tile.j0 == R;
    const int64_t group = merge ? tile.b1 - tile.b0 : 1;
    const int64_t n = group * (tile.j1 - tile.j0);
    for (int64_t t = 0; t < shape.T; ++t) {
      for (int64_t b = tile.b0; b < tile.b1; b += group) {
        if (t >= shape.length(b)) continue;
        const int64_t at = b * R + tile.j0;
        const A* const c = center ? center + at : nullptr;
        sums_row<S, A>(n, v.row(t, b, tile.j0), w.row(t, b, tile.j0), c, first + at, second + at);
      }
    }
  }
};

template <class Pass>
INDRNN_INLINE void run_tile(const Pass& pass, Tile tile) {
  switch (pass.activation) {
    case Activation::relu: return pass.template run<Activation::relu>(tile);
    case Activation::tanh: return pass.template run<Activation::tanh>(tile);
    case Activation::sigmoid: return pass.template run<Activation::sigmoid>(tile);
    case Activation::identity: return pass.template run<Activation::identity>(tile);
  }
}

}  // namespace indrnn
