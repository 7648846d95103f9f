// h_t = act(x_t + b + u * h_{t-1}) on the CPU, and its backward pass.
//
// Shapes: x, h and their gradients are (T, B, R) with free strides over T and B; a row of R numbers is contiguous.
// R = M * N: u and b, of length N, repeat M times along a row. State, carry and sums are (B, R), contiguous, in the
// accumulation type A (float, or double for double); tensors over time are in the storage type S.
//
// Every (batch, row) position is a chain of its own over time. Threads share out tiles of chains, never a chain, and each
// chain adds up its own part of u's gradient, so no result depends on the number of threads. Nothing here may be
// compiled with fused multiply-add: relu and identity then give the reference's bits on every CPU.
//
// Plain C interface, no torch and no Python headers: one binary serves every version of both.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#ifdef __linux__
#include <sys/mman.h>
#endif

#ifdef _WIN32
#define INDRNN_EXPORT extern "C" __declspec(dllexport)
#else
#define INDRNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#ifdef _MSC_VER
#define INDRNN_INLINE __forceinline
#pragma fp_contract(off)
#else
#define INDRNN_INLINE inline __attribute__((always_inline))
#endif

// One binary for every x86-64: the loops are compiled twice and the loader picks. CMake checks that the compiler can.
#ifdef INDRNN_HAVE_TARGET_CLONES
#define INDRNN_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define INDRNN_CLONES
#endif

namespace {

enum class Activation : int { relu, tanh, sigmoid, identity };
enum class Dtype : int { float32, float64, bfloat16, float16 };

template <class To, class From>
INDRNN_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- storage types: load to the accumulation type, store with round to nearest even

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

INDRNN_INLINE float load(float v) { return v; }
INDRNN_INLINE double load(double v) { return v; }
INDRNN_INLINE float load(BFloat16 v) { return bits_as<float>(uint32_t(v.bits) << 16); }
INDRNN_INLINE float load(Float16 v) {
  const uint32_t sign = uint32_t(v.bits & 0x8000u) << 16;
  const uint32_t magnitude = uint32_t(v.bits & 0x7fffu) << 13;
  // The exponent is 112 too small; multiplying puts it right for subnormal numbers too.
  const float scaled = bits_as<float>(magnitude) * bits_as<float>(uint32_t(127 + 112) << 23);
  const uint32_t special = magnitude | 0x7f800000u;  // Inf and NaN
  return bits_as<float>(sign | (magnitude >= 0x0f800000u ? special : bits_as<uint32_t>(scaled)));
}

INDRNN_INLINE void store(float& to, float v) { to = v; }
INDRNN_INLINE void store(double& to, double v) { to = v; }
INDRNN_INLINE void store(BFloat16& to, float v) {
  const uint32_t bits = bits_as<uint32_t>(v);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  to.bits = uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
INDRNN_INLINE void store(Float16& to, float v) {
  const uint32_t bits = bits_as<uint32_t>(v);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  // 0.5f has the spacing of Float16's subnormal numbers, so the addition rounds to them.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;    // below 2^-14
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;                // rounds past 65504
  half = magnitude > 0x7f800000u ? 0x7e00u : half;                 // NaN
  to.bits = uint16_t(sign | half);
}

// ---- activations

template <class A>
struct Exp;
template <>
struct Exp<float> {
  using Int = uint32_t;
  static constexpr int mantissa = 23, bias = 127, terms = 7;
  static constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.1219444005469057e-4f;
  static constexpr float tanh_limit = 10.0f, exp_limit = 87.0f;
};
template <>
struct Exp<double> {
  using Int = uint64_t;
  static constexpr int mantissa = 52, bias = 1023, terms = 13;
  static constexpr double round = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double ln2_high = 0.693145751953125, ln2_low = 1.4286068203094172e-6;
  static constexpr double tanh_limit = 20.0, exp_limit = 708.0;
};

constexpr double inverse_factorial(int k) { return k == 0 ? 1.0 : inverse_factorial(k - 1) / k; }

// 1/k! + r/(k+1)! + ...; a recursion and not a loop, so that it is unrolled before the loop around it is vectorised.
template <class A, int k>
INDRNN_INLINE A series(A r) {
  if constexpr (k == Exp<A>::terms)
    return A(inverse_factorial(k));
  else
    return A(inverse_factorial(k)) + r * series<A, k + 1>(r);
}

// exp(y) = scale * (1 + p): scale a power of two, p = expm1 of the remainder, |r| <= ln(2)/2, by its Taylor series.
template <class A>
INDRNN_INLINE void split_exp(A y, A& scale, A& p) {
  using Int = typename Exp<A>::Int;
  const A shifted = y * A(1.44269504088896340736) + Exp<A>::round;
  const A n = shifted - Exp<A>::round;
  const A r = (y - n * Exp<A>::ln2_high) - n * Exp<A>::ln2_low;
  const Int integer = bits_as<Int>(shifted) - bits_as<Int>(Exp<A>::round);
  scale = bits_as<A>(Int((integer + Exp<A>::bias) << Exp<A>::mantissa));
  p = r * series<A, 1>(r);
}

template <class A>
INDRNN_INLINE A tanh_of(A z) {
  const A magnitude = z < A(0) ? -z : z;
  const A limited = magnitude > Exp<A>::tanh_limit ? Exp<A>::tanh_limit : magnitude;  // NaN stays
  A scale, p;
  split_exp<A>(A(2) * limited, scale, p);
  const A e = scale * p + (scale - A(1));  // expm1(2|z|)
  const A value = e / (e + A(2));
  return z < A(0) ? -value : value;
}

template <class A>
INDRNN_INLINE A sigmoid_of(A z) {
  const A magnitude = z < A(0) ? -z : z;
  const A limited = magnitude > Exp<A>::exp_limit ? Exp<A>::exp_limit : magnitude;
  A scale, p;
  split_exp<A>(-limited, scale, p);
  const A e = magnitude > Exp<A>::exp_limit ? A(0) : scale + scale * p;  // subnormal results are rounded to 0
  return (z < A(0) ? e : A(1)) / (A(1) + e);
}

template <Activation activation, class A>
INDRNN_INLINE A activate(A z) {
  if constexpr (activation == Activation::relu) return A(0) > z ? A(0) : z;  // NaN stays
  if constexpr (activation == Activation::tanh) return tanh_of<A>(z);
  if constexpr (activation == Activation::sigmoid) return sigmoid_of<A>(z);
  return z;
}

// gradient * act'(z), from h = act(z) alone
template <Activation activation, class A>
INDRNN_INLINE A through_activation(A gradient, A h) {
  if constexpr (activation == Activation::relu) return h <= A(0) ? A(0) : gradient;
  if constexpr (activation == Activation::tanh) return gradient * (A(1) - h * h);
  if constexpr (activation == Activation::sigmoid) return gradient * (h * (A(1) - h));
  return gradient;
}

// ---- one step of one row

// A row in the accumulation type: itself, or read into `room`
template <class S, class A>
INDRNN_INLINE const A* loaded(int64_t n, const S* __restrict from, A* __restrict room) {
  if constexpr (std::is_same<S, A>::value) {
    (void)n, (void)room;
    return from;
  } else {
    if (!from) return nullptr;
    for (int64_t j = 0; j < n; ++j) room[j] = load(from[j]);
    return room;
  }
}

template <Activation activation, class S, class A>
INDRNN_INLINE void forward_row(int64_t n, const A* __restrict x, const A* __restrict u, const A* __restrict bias,
                               A* __restrict state, S* __restrict h) {
  for (int64_t j = 0; j < n; ++j) {
    const A input = bias ? x[j] + bias[j] : x[j];
    const A value = activate<activation, A>(input + u[j] * state[j]);
    state[j] = value;
    store(h[j], value);
  }
}

// `previous` is the state that entered the step: a row of h, or h_0, or zeros.
template <Activation activation, class S, class A>
INDRNN_INLINE void backward_row(int64_t n, const A* __restrict grad_h, const S* __restrict h,
                                const A* __restrict previous, const A* __restrict u, A* __restrict carry,
                                A* __restrict sum_u, A* __restrict sum_bias, S* __restrict grad_x) {
  for (int64_t j = 0; j < n; ++j) {
    const A incoming = (grad_h ? grad_h[j] : A(0)) + carry[j];
    const A delta = through_activation<activation, A>(incoming, load(h[j]));
    carry[j] = u[j] * delta;
    sum_u[j] += delta * previous[j];
    sum_bias[j] += delta;
    store(grad_x[j], delta);
  }
}

// Batch norm, its backward pass and dropout are all of one form: gain * g + offset + slope * (v - center), where the
// four are constant along a chain. g, or v with its three, may be missing.
template <class A>
struct Affine {
  const A *gain, *offset, *slope, *center;
  Affine at(int64_t i) const {
    return {gain ? gain + i : nullptr, offset ? offset + i : nullptr, slope ? slope + i : nullptr,
            center ? center + i : nullptr};
  }
};

template <class S, class A>
INDRNN_INLINE void affine_row(int64_t n, const S* __restrict g, const S* __restrict v, Affine<A> by,
                              A* __restrict to) {
  const A *__restrict gain = by.gain, *__restrict offset = by.offset, *__restrict slope = by.slope,
          *__restrict center = by.center;
  if (gain && slope) {
    for (int64_t j = 0; j < n; ++j) to[j] = gain[j] * load(g[j]) + (offset[j] + slope[j] * (load(v[j]) - center[j]));
  } else if (gain) {
    for (int64_t j = 0; j < n; ++j) to[j] = gain[j] * load(g[j]);
  } else {
    for (int64_t j = 0; j < n; ++j) to[j] = offset[j] + slope[j] * (load(v[j]) - center[j]);
  }
}

// first += v, second += v * (w - center); sums of squares where w is missing. In double: a variance is the small
// difference of large sums.
template <class S, class A>
INDRNN_INLINE void sums_row(int64_t n, const S* __restrict v, const S* __restrict w, const A* __restrict center,
                            double* __restrict first, double* __restrict second) {
  if (w) {
    for (int64_t j = 0; j < n; ++j) {
      const double value = double(load(v[j]));
      first[j] += value;
      second[j] += value * double(load(w[j]) - center[j]);
    }
  } else {
    for (int64_t j = 0; j < n; ++j) {
      const double value = double(load(v[j]));
      first[j] += value;
      second[j] += value * value;
    }
  }
}

template <class S, class A>
INDRNN_INLINE void store_row(int64_t n, const A* __restrict from, S* __restrict to) {
  for (int64_t j = 0; j < n; ++j) store(to[j], from[j]);
}

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
    for (int64_t t = 0; t < shape.T; ++t) {
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

// Not templates, and apart from the parallel region: neither goes together with target_clones.
#define INDRNN_TILE(S, A)                                                                   \
  INDRNN_CLONES void tile_of(const Forward<S, A>& pass, Tile tile) { run_tile(pass, tile); } \
  INDRNN_CLONES void tile_of(const Backward<S, A>& pass, Tile tile) { run_tile(pass, tile); } \
  INDRNN_CLONES void tile_of(const Combine<S, A>& pass, Tile tile) { pass.run(tile); }        \
  INDRNN_CLONES void tile_of(const Sums<S, A>& pass, Tile tile) { pass.run(tile); }
INDRNN_TILE(float, float)
INDRNN_TILE(double, double)
INDRNN_TILE(BFloat16, float)
INDRNN_TILE(Float16, float)

// ---- memory

// A large result is memory that the kernel of the system has yet to give, page by page, as it is first written: at
// T = 1024, B = 50, N = 128 that costs as much as the arithmetic. In large pages it costs next to nothing.
inline void expect_writes(void* data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t page = 4096;
  if (bytes < (int64_t(4) << 20)) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice: it may fail, and nothing is lost
#else
  (void)data, (void)bytes;
#endif
}

// ---- threads

constexpr int64_t smallest_tile = 256, largest_tile = 4096;  // chains: a few cache lines to half of L2
constexpr int64_t worth_a_thread = 1 << 15;                  // steps of chains

template <class Pass>
void run_all(const Pass& pass, int threads) {
  const Shape& s = pass.shape;
  const int64_t R = s.R(), chains = s.B * R;
  if (chains == 0) return;
  threads = int(std::max<int64_t>(1, std::min<int64_t>(threads, s.T * chains / worth_a_thread)));
  const int64_t share = (chains + threads - 1) / threads;
  const int64_t size = std::min(largest_tile, std::max(smallest_tile, share));
  const int64_t rows = std::max<int64_t>(1, std::min(s.B, (size + R / 2) / R)), columns = std::min(R, size);
  const int64_t down = (s.B + rows - 1) / rows, across = (R + columns - 1) / columns, tiles = down * across;
  threads = int(std::min<int64_t>(threads, tiles));
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t b = i / across * rows, j = i % across * columns;
    tile_of(pass, Tile{b, std::min(b + rows, s.B), j, std::min(j + columns, R)});
  }
}

// The sum over the chains of each neuron, in the order of memory whatever the number of threads
template <class A>
void add_up(const Shape& s, const A* sum, A* to) {
  const Scratch<double> total(s.N);
  for (int64_t i = 0; i < s.B * s.M; ++i)
    for (int64_t n = 0; n < s.N; ++n) total.data[n] += double(sum[i * s.N + n]);
  for (int64_t n = 0; n < s.N; ++n) to[n] = A(total.data[n]);
}

template <class S, class A>
struct Types {
  using Storage = S;
  using Accumulation = A;
};

// Call `run` with the types of this storage type.
template <class Run>
void with_types(int dtype, Run run) {
  switch (Dtype(dtype)) {
    case Dtype::float32: return run(Types<float, float>());
    case Dtype::float64: return run(Types<double, double>());
    case Dtype::bfloat16: return run(Types<BFloat16, float>());
    case Dtype::float16: return run(Types<Float16, float>());
  }
}

template <class A>
Affine<A> affine(const void* const* constants) {
  if (!constants) return {nullptr, nullptr, nullptr, nullptr};
  const auto at = [&](int i) { return static_cast<const A*>(constants[i]); };
  return {at(0), at(1), at(2), at(3)};
}

}  // namespace

// Below, a (T, B, R) tensor that comes from outside is given by its address and its strides over T and B; what is made
// here is contiguous. Constants and sums of chains, (B, R), are contiguous; constants, u, bias and states are in the
// accumulation type, sums in double where they are the norm's. A norm is given as four addresses: gain, offset, slope,
// center. What is null is not there.

// state: in h_0, out h_last. With a mask, y = mask * h. sum and square, if given, come in as zeros.
INDRNN_EXPORT void indrnn_forward(int dtype, int activation, int reverse, int threads, int64_t T, int64_t B, int64_t M,
                                  int64_t N, const void* x, int64_t x_t, int64_t x_b, const void* u,
                                  const void* bias, const int64_t* lengths, const uint8_t* resets, void* h, void* state,
                                  const void* const* norm, const void* mask, void* y, double* sum, double* square) {
  const Shape shape{T, B, M, N, reverse != 0, lengths, resets};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    const int64_t R = shape.R();
    const Forward<S, A> pass{shape,
                             Activation(activation),
                             {static_cast<const S*>(x), x_t, x_b},
                             {static_cast<S*>(h), B * R, R},
                             static_cast<const A*>(u),
                             static_cast<const A*>(bias),
                             static_cast<A*>(state),
                             affine<A>(norm),
                             static_cast<const A*>(mask),
                             {static_cast<S*>(y), B * R, R},
                             sum,
                             square};
    expect_writes(h, T * B * R * int64_t(sizeof(S)));
    if (y) expect_writes(y, T * B * R * int64_t(sizeof(S)));
    run_all(pass, threads);
  });
}

// carry: in grad_h_last, out grad_h_0. sum_u and sum_bias, of carry's size, come in as zeros and are room to work in.
INDRNN_EXPORT void indrnn_backward(int dtype, int activation, int reverse, int threads, int64_t T, int64_t B,
                                   int64_t M, int64_t N, const void* grad_h, int64_t g_t, int64_t g_b, const void* h,
                                   const void* u, const void* h_0, const int64_t* lengths, const uint8_t* resets,
                                   void* grad_x, void* carry, void* sum_u, void* grad_u, void* sum_bias,
                                   void* grad_bias, const void* const* norm, const void* x, int64_t x_t, int64_t x_b,
                                   const void* x_center, double* sum, double* sum_x) {
  const Shape shape{T, B, M, N, reverse != 0, lengths, resets};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    const int64_t R = shape.R();
    const Backward<S, A> pass{shape,
                              Activation(activation),
                              {static_cast<const S*>(grad_h), g_t, g_b},
                              {static_cast<const S*>(h), B * R, R},
                              {static_cast<S*>(grad_x), B * R, R},
                              static_cast<const A*>(u),
                              static_cast<const A*>(h_0),
                              static_cast<A*>(carry),
                              static_cast<A*>(sum_u),
                              static_cast<A*>(sum_bias),
                              affine<A>(norm),
                              {static_cast<const S*>(x), x_t, x_b},
                              static_cast<const A*>(x_center),
                              sum,
                              sum_x};
    expect_writes(grad_x, T * B * R * int64_t(sizeof(S)));
    run_all(pass, threads);
    add_up(shape, static_cast<const A*>(sum_u), static_cast<A*>(grad_u));
    add_up(shape, static_cast<const A*>(sum_bias), static_cast<A*>(grad_bias));
  });
}

// to = gain * g + offset + slope * (v - center), and 0 past the end of a sequence; `to` may be g.
INDRNN_EXPORT void indrnn_combine(int dtype, int threads, int64_t T, int64_t B, int64_t M, int64_t N, const void* g,
                                  int64_t g_t, int64_t g_b, const void* v, int64_t v_t, int64_t v_b,
                                  const int64_t* lengths, const void* const* norm, void* to) {
  const Shape shape{T, B, M, N, false, lengths, nullptr};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    const int64_t R = shape.R();
    if (to != g) expect_writes(to, T * B * R * int64_t(sizeof(S)));
    run_all(Combine<S, A>{shape,
                          {static_cast<const S*>(g), g_t, g_b},
                          {static_cast<const S*>(v), v_t, v_b},
                          {static_cast<S*>(to), B * R, R},
                          affine<A>(norm)},
            threads);
  });
}

// first, second: in zeros; out each chain's sums of v, and of v * (w - center), or of squares where w is null.
INDRNN_EXPORT void indrnn_sums(int dtype, int threads, int64_t T, int64_t B, int64_t M, int64_t N, const void* v,
                               int64_t v_t, int64_t v_b, const void* w, int64_t w_t, int64_t w_b,
                               const int64_t* lengths, const void* center, double* first, double* second) {
  const Shape shape{T, B, M, N, false, lengths, nullptr};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    run_all(Sums<S, A>{shape,
                       {static_cast<const S*>(v), v_t, v_b},
                       {static_cast<const S*>(w), w_t, w_b},
                       static_cast<const A*>(center),
                       first,
                       second},
            threads);
  });
}

// The sum of chains' sums, (B * M, N), over all but neurons, in the order of memory
INDRNN_EXPORT void indrnn_add_up(int64_t B, int64_t M, int64_t N, const double* sums, double* to) {
  add_up(Shape{0, B, M, N, false, nullptr, nullptr}, sums, to);
}
