// Passes over time, tile by tile: the recurrence forward and backward, and what batch norm needs beside them.

#pragma once

#include "rows.h"
#include "threads.h"

namespace indrnn {

// ---- a tile: rows [b0, b1) and columns [j0, j1), over all of time

struct Shape {
  int64_t T, B, M, N;
  bool reverse;
  const int64_t* lengths;  // (B,) or null
  const uint8_t* resets;   // (T, B), contiguous, or null
  int64_t R() const { return M * N; }
  bool plain() const { return !lengths && !resets; }
  // How many of the steps that are left are taken at once. It decides in which order sums are added up, so it follows from
  // the shape alone: neither from the tile, which depends on the number of threads, nor from strides.
  int64_t together(int many, int64_t left) const { return plain() && left >= many ? many : 1; }
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

// A vector of N repeated as often as a run of `n` numbers that starts at column j0 needs it
template <class A>
INDRNN_INLINE void repeat(const A* vector, int64_t N, int64_t j0, int64_t n, A* to) {
  for (int64_t j = 0; j < n; ++j) to[j] = vector[(j0 + j) % N];
}

// Sums over a stretch of steps are kept in the accumulation type, then added to a sum in double: rounding does not grow
// with the length of a sequence.
constexpr int64_t stretch = 64;

// The rows of a tile. Where nothing differs between them and memory has no gap between them, they are one long row.
struct Rows {
  int64_t group, n, count;  // batch elements in a row, numbers in a row, rows
  Rows(const Shape& shape, Tile tile, bool touch)
      : group(shape.plain() && touch && tile.j1 - tile.j0 == shape.R() ? tile.b1 - tile.b0 : 1),
        n(group * (tile.j1 - tile.j0)),
        count((tile.b1 - tile.b0) / group) {}
  int64_t index(Tile tile, int64_t b) const { return (b - tile.b0) / group; }
};

// The moments of each row of a tile over a stretch; its first value is the pivot.
template <class A>
struct Stretch {
  Rows rows;
  Scratch<A> pivot, first, second;
  Scratch<int64_t> steps, merged;  // in the stretch so far, and in those before it
  Stretch(Rows rows, bool used)
      : rows(rows), pivot(used ? rows.count * rows.n : 0), first(used ? rows.count * rows.n : 0),
        second(used ? rows.count * rows.n : 0), steps(rows.count), merged(rows.count) {}
  Moments<A> at(int64_t row) const {
    const int64_t i = row * rows.n;
    return {pivot.data + i, first.data + i, second.data + i};
  }
  bool starts(int64_t row) const { return steps.data[row] == 0; }
  template <class S>
  INDRNN_INLINE void start(int64_t row, const S* values) const {
    const Moments<A> sums = at(row);
    for (int64_t j = 0; j < rows.n; ++j) {
      pivot.data[row * rows.n + j] = load(values[j]);
      sums.first[j] = sums.second[j] = A(0);
    }
    steps.data[row] = 1;
  }
  // Count steps that were added; a full stretch goes on into the moments over all of time.
  INDRNN_INLINE void add(int64_t row, int64_t taken, double* mean, double* square) const {
    if ((steps.data[row] += taken) > stretch) finish(row, mean, square);
  }
  INDRNN_INLINE void finish(int64_t row, double* mean, double* square) const {
    if (starts(row)) return;
    merge_into(rows.n, merged.data[row], steps.data[row], at(row), mean, square);
    merged.data[row] += steps.data[row];
    steps.data[row] = 0;
  }
};

template <class S, class A>
struct Forward {
  Shape shape;
  Activation activation;
  Place place;
  Series<const S> x;
  Series<S> h;
  const A* u;
  const A* bias;   // (N,), or null
  A* state;        // in: h_0; out: h_last
  Affine<A> norm;  // before the recurrence: constants (B, R)
  const A* mask;   // (B, R), or null: y = mask * h
  Series<S> y;
  double *mean, *square;  // after the recurrence: in zeros; out each chain's mean of h and sum of squares about it

  template <Activation act, Place place>
  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const Rows rows(shape, tile, x.rows_touch(R));
    const int64_t n = rows.n;
    const Scratch<A> u_row(n), bias_row(n), ones(n);
    std::fill_n(ones.data, n, A(1));
    repeat(u, shape.N, tile.j0, n, u_row.data);
    if (bias) repeat(bias, shape.N, tile.j0, n, bias_row.data);
    const Stretch<A> part(rows, place == Place::after);
    const int64_t direction = shape.reverse ? -1 : 1;
    constexpr int many = steps_at_once<act, S>;
    for (int64_t step = 0, taken; step < shape.T; step += taken) {
      const int64_t t = shape.reverse ? shape.T - 1 - step : step;
      // All rows of a plain shape start a stretch together, with one step.
      taken = place == Place::after && part.starts(0) ? 1 : shape.together(many, shape.T - step);
      for (int64_t b = tile.b0; b < tile.b1; b += rows.group) {
        const int64_t at = b * R + tile.j0, r = rows.index(tile, b);
        ForwardRow<S, A> row;
        row.x = x.row(t, b, tile.j0);
        row.h = h.row(t, b, tile.j0);
        row.y = (mask ? y : h).row(t, b, tile.j0);
        row.x_t = direction * x.stride_t;
        row.h_t = direction * h.stride_t;
        row.u = u_row.data;
        row.bias = bias_row.data;
        row.state = state + at;
        row.norm = norm.at(at);
        row.mask = mask ? mask + at : ones.data;
        row.sums = part.at(r);
        if (t >= shape.length(b)) {
          std::memset(static_cast<void*>(row.h), 0, size_t(n) * sizeof(S));
          if (mask) std::memset(static_cast<void*>(row.y), 0, size_t(n) * sizeof(S));
          continue;
        }
        if (shape.reset(t, b)) std::memset(row.state, 0, size_t(n) * sizeof(A));
        if (many > 1 && taken == many)
          forward_rows<act, place, many>(n, row);
        else
          forward_rows<act, place, 1>(n, row);
        if (place == Place::after) {
          if (part.starts(r))
            part.start(r, row.h);
          else
            part.add(r, taken, mean + at, square + at);
        }
      }
    }
    if (place == Place::after)
      for (int64_t b = tile.b0; b < tile.b1; b += rows.group)
        part.finish(rows.index(tile, b), mean + b * R + tile.j0, square + b * R + tile.j0);
  }
};

template <class S, class A>
struct Backward {
  Shape shape;
  Activation activation;
  Place place;
  Series<const S> grad_h, h;
  Series<S> grad_x;
  const A* u;
  const A* h_0;  // (B, R), or null for zeros
  A* carry;      // in: grad_h_last; out: grad_h_0
  double *sum_u, *sum_bias;  // in: zeros; out: each chain's part of the gradients of u and a bias, (B, R)
  Affine<A> norm;     // of grad_h, with v = h: the backward pass of a norm or dropout after the recurrence
  Series<const S> x;  // for a norm before the recurrence: with its center, (B, R), each chain's sum of grad * (x - center)
  const A* x_center;
  double* sum_x;

  template <Activation act, Place place>
  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const Rows rows(shape, tile, grad_h.rows_touch(R) && x.rows_touch(R));
    const int64_t n = rows.n, size = rows.count * n;
    const Scratch<A> u_row(n), zeros(n), ones(n), room(n), part_u(size), part_bias(size), part_x(size);
    const Scratch<S> no_gradient(n);
    std::fill_n(ones.data, n, A(1));
    constexpr int many = steps_at_once<act, S>;
    repeat(u, shape.N, tile.j0, n, u_row.data);
    const int64_t direction = shape.reverse ? 1 : -1;
    int64_t since = 0;
    for (int64_t left = shape.T, taken; left > 0; left -= taken) {
      taken = shape.together(many, left);
      const int64_t t = shape.reverse ? shape.T - left : left - 1;
      const int64_t before = t + direction * taken;  // the step whose state entered the last one taken
      since += taken;
      for (int64_t b = tile.b0; b < tile.b1; b += rows.group) {
        const int64_t at = b * R + tile.j0, r = rows.index(tile, b);
        S* const out = grad_x.row(t, b, tile.j0);
        if (t < shape.length(b)) {
          const bool first = before < 0 || before >= shape.length(b), reset = shape.reset(t, b);
          BackwardRow<S, A> row;
          row.grad_h = grad_h.data ? grad_h.row(t, b, tile.j0) : no_gradient.data;
          row.h = h.row(t, b, tile.j0);
          row.x = x.row(t, b, tile.j0);
          row.grad_x = out;
          row.grad_h_t = grad_h.data ? direction * grad_h.stride_t : 0;
          row.h_t = direction * h.stride_t;
          row.x_t = direction * x.stride_t;
          row.previous = reset || (first && !h_0) ? zeros.data
                         : first                  ? h_0 + at
                                                  : loaded(n, h.row(before, b, tile.j0), room.data);
          row.u = u_row.data;
          row.carry = carry + at;
          row.norm = norm.at(at);
          if (!norm.gain) row.norm.gain = ones.data;
          row.x_center = x_center ? x_center + at : nullptr;
          row.sum_u = part_u.data + r * n;
          row.sum_bias = part_bias.data + r * n;
          row.sum_x = part_x.data + r * n;
          if (many > 1 && taken == many)
            backward_rows<act, place, many>(n, row);
          else
            backward_rows<act, place, 1>(n, row);
          if (reset) std::memset(carry + at, 0, size_t(n) * sizeof(A));
        } else {
          std::memset(static_cast<void*>(out), 0, size_t(n) * sizeof(S));
        }
        if (since >= stretch || left == taken) {
          move_into(n, part_u.data + r * n, sum_u + at);
          move_into(n, part_bias.data + r * n, sum_bias + at);
          if (place == Place::before) move_into(n, part_x.data + r * n, sum_x + at);
        }
      }
      if (since >= stretch) since = 0;
    }
  }
};

// to = gain * g + offset + slope * (v - center) at each valid step, and 0 elsewhere; g is `to` or nothing.
template <class S, class A>
struct Combine {
  Shape shape;
  bool in_place;
  Series<const S> v;
  Series<S> to;
  Affine<A> by;

  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const Rows rows(shape, tile, v.rows_touch(R));
    constexpr int many = std::is_same<S, float>::value ? 4 : 1;
    for (int64_t left = shape.T, taken; left > 0; left -= taken) {  // what was made last is in the cache still
      taken = shape.together(many, left);
      const int64_t t = left - taken;
      for (int64_t b = tile.b0; b < tile.b1; b += rows.group) {
        S* const out = to.row(t, b, tile.j0);
        const S* const from = v.row(t, b, tile.j0);
        const Affine<A> here = by.at(b * R + tile.j0);
        if (t >= shape.length(b))
          std::memset(static_cast<void*>(out), 0, size_t(rows.n) * sizeof(S));
        else if (many > 1 && taken == many)
          affine_rows<many>(rows.n, in_place, from, v.stride_t, here, out, to.stride_t);
        else
          affine_rows<1>(rows.n, in_place, from, v.stride_t, here, out, to.stride_t);
      }
    }
  }
};

// Each chain's mean over its valid steps, and the sum of squares about it; both start as zeros.
template <class S, class A>
struct Statistics {
  Shape shape;
  Series<const S> v;
  double *mean, *square;

  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const Rows rows(shape, tile, v.rows_touch(R));
    const Stretch<A> part(rows, true);
    constexpr int many = std::is_same<S, float>::value ? 4 : 1;
    for (int64_t t = 0, taken; t < shape.T; t += taken) {
      taken = part.starts(0) ? 1 : shape.together(many, shape.T - t);
      for (int64_t b = tile.b0; b < tile.b1; b += rows.group) {
        if (t >= shape.length(b)) continue;
        const int64_t at = b * R + tile.j0, r = rows.index(tile, b);
        const S* const value = v.row(t, b, tile.j0);
        if (part.starts(r)) {
          part.start(r, value);
          continue;
        }
        if (many > 1 && taken == many)
          moments_rows<many>(rows.n, value, v.stride_t, part.at(r));
        else
          moments_rows<1>(rows.n, value, v.stride_t, part.at(r));
        part.add(r, taken, mean + at, square + at);
      }
    }
    for (int64_t b = tile.b0; b < tile.b1; b += rows.group)
      part.finish(rows.index(tile, b), mean + b * R + tile.j0, square + b * R + tile.j0);
  }
};

// Each chain's sums over its valid steps, of g and g * (v - center); both start as zeros.
template <class S, class A>
struct Products {
  Shape shape;
  Series<const S> g, v;
  const A* center;  // (B, R)
  double *first, *second;

  INDRNN_INLINE void run(Tile tile) const {
    const int64_t R = shape.R();
    const Rows rows(shape, tile, g.rows_touch(R) && v.rows_touch(R));
    const int64_t n = rows.n, size = rows.count * n;
    const Scratch<A> part_first(size), part_second(size);
    constexpr int many = std::is_same<S, float>::value ? 4 : 1;
    int64_t since = 0;
    for (int64_t left = shape.T, taken; left > 0; left -= taken) {
      taken = shape.together(many, left);
      since += taken;
      const int64_t t = shape.T - left;
      for (int64_t b = tile.b0; b < tile.b1; b += rows.group) {
        const int64_t at = b * R + tile.j0, r = rows.index(tile, b);
        A *const sum = part_first.data + r * n, *const product = part_second.data + r * n;
        const S *const gradient = g.row(t, b, tile.j0), *const value = v.row(t, b, tile.j0);
        if (t < shape.length(b)) {
          if (many > 1 && taken == many)
            products_rows<many>(n, gradient, g.stride_t, value, v.stride_t, center + at, sum, product);
          else
            products_rows<1>(n, gradient, g.stride_t, value, v.stride_t, center + at, sum, product);
        }
        if (since >= stretch || left == taken) {
          move_into(n, sum, first + at);
          move_into(n, product, second + at);
        }
      }
      if (since >= stretch) since = 0;
    }
  }
};

template <Activation activation, class Pass>
INDRNN_INLINE void run_placed(const Pass& pass, Tile tile) {
  switch (pass.place) {
    case Place::nowhere: return pass.template run<activation, Place::nowhere>(tile);
    case Place::before: return pass.template run<activation, Place::before>(tile);
    case Place::after: return pass.template run<activation, Place::after>(tile);
  }
}

template <class Pass>
INDRNN_INLINE void run_activated(const Pass& pass, Tile tile) {
  switch (pass.activation) {
    case Activation::relu: return run_placed<Activation::relu>(pass, tile);
    case Activation::tanh: return run_placed<Activation::tanh>(pass, tile);
    case Activation::sigmoid: return run_placed<Activation::sigmoid>(pass, tile);
    case Activation::identity: return run_placed<Activation::identity>(pass, tile);
  }
}

template <class S, class A>
INDRNN_INLINE void run_tile(const Forward<S, A>& pass, Tile tile) {
  run_activated(pass, tile);
}
template <class S, class A>
INDRNN_INLINE void run_tile(const Backward<S, A>& pass, Tile tile) {
  run_activated(pass, tile);
}
template <class Pass>
INDRNN_INLINE void run_tile(const Pass& pass, Tile tile) {
  pass.run(tile);
}

// All of a tile; returns the bytes that could not be allocated, or `nothing`. Defined in tiles_full.cpp and tiles_half.cpp,
// which compile side by side.
#define INDRNN_DECLARE_TILES(S, A)                     \
  int64_t tile_of(const Forward<S, A>&, Tile tile);    \
  int64_t tile_of(const Backward<S, A>&, Tile tile);   \
  int64_t tile_of(const Combine<S, A>&, Tile tile);    \
  int64_t tile_of(const Statistics<S, A>&, Tile tile); \
  int64_t tile_of(const Products<S, A>&, Tile tile);
INDRNN_DECLARE_TILES(float, float)
INDRNN_DECLARE_TILES(double, double)
INDRNN_DECLARE_TILES(BFloat16, float)
INDRNN_DECLARE_TILES(Float16, float)

// One binary for every x86-64: the loops are compiled twice and the loader picks. CMake checks that the compiler can.
#ifdef INDRNN_HAVE_TARGET_CLONES
#define INDRNN_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define INDRNN_CLONES
#endif
// Not templates, and apart from the parallel region: neither goes together with target_clones. Nor do exceptions: GCC takes
// it that a function with clones throws none, and one that does ends the process.
#define INDRNN_DEFINE_TILE(Pass, S, A)                               \
  INDRNN_CLONES int64_t tile_of(const Pass<S, A>& pass, Tile tile) { \
    try {                                                            \
      run_tile(pass, tile);                                          \
    } catch (const NoMemory& error) {                                \
      return error.bytes;                                            \
    }                                                                \
    return nothing;                                                  \
  }
#define INDRNN_DEFINE_TILES(S, A)      \
  INDRNN_DEFINE_TILE(Forward, S, A)    \
  INDRNN_DEFINE_TILE(Backward, S, A)   \
  INDRNN_DEFINE_TILE(Combine, S, A)    \
  INDRNN_DEFINE_TILE(Statistics, S, A) \
  INDRNN_DEFINE_TILE(Products, S, A)

}  // namespace indrnn
