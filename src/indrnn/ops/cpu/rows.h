// What happens to one row of numbers in one step: storage types, activations, and the loops the compiler vectorises.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef _MSC_VER
#define INDRNN_INLINE __forceinline
#pragma fp_contract(off)
#else
#define INDRNN_INLINE inline __attribute__((always_inline))
#endif
// Before a loop over a row: its iterations do not depend on each other. `restrict` cannot say so of one tensor's steps.
#if defined(_MSC_VER)
#define INDRNN_APART __pragma(loop(ivdep))
#elif defined(__clang__)
#define INDRNN_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDRNN_APART _Pragma("GCC ivdep")
#endif

namespace indrnn {

enum class Activation : int { relu, tanh, sigmoid, identity };

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

// ---- a few steps of one row
//
// Below, `..._t` is the distance in memory from one step to the next, in the order of the pass; S is the type of tensors
// over time and A that of everything else.

// Several steps go together where they are cheap beside memory: what is constant along a chain is then read once for all.
template <Activation activation, class S>
constexpr int steps_at_once = activation == Activation::relu && std::is_same<S, float>::value ? 4 : 1;

// Where batch norm stands
enum class Place : int { nowhere, before, after };

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

// Sums of v - pivot and its square over a few steps of each chain
template <class A>
struct Moments {
  const A* pivot;
  A *first, *second;
};

template <class S, class A>
struct ForwardRow {
  const S* x;
  S *h, *y;  // y may be h
  int64_t x_t, h_t;
  const A *u, *bias;
  A* state;
  Affine<A> norm;  // of x, for a norm before the recurrence
  const A* mask;   // y = mask * h there
  Moments<A> sums;  // of h, for a norm after it
};

template <Activation activation, Place place, int steps, class S, class A>
INDRNN_INLINE void forward_rows(int64_t n, const ForwardRow<S, A>& row) {
  const S* x = row.x;
  S *h = row.h, *y = row.y;  // h may be x, and y may be h
  const A *__restrict u = row.u, *__restrict bias = row.bias, *__restrict offset = row.norm.offset,
          *__restrict slope = row.norm.slope, *__restrict center = row.norm.center, *__restrict mask = row.mask,
          *__restrict pivot = row.sums.pivot;
  A *__restrict state = row.state, *__restrict first = row.sums.first, *__restrict second = row.sums.second;
  const int64_t x_t = row.x_t, h_t = row.h_t;
  INDRNN_APART
  for (int64_t j = 0; j < n; ++j) {
    A now = state[j], sum = A(0), square = A(0);
    for (int k = 0; k < steps; ++k) {
      A input = load(x[k * x_t + j]);
      if constexpr (place == Place::before) input = offset[j] + slope[j] * (input - center[j]);
      if constexpr (place != Place::before) input += bias[j];
      now = activate<activation, A>(input + u[j] * now);
      S stored;
      store(stored, now);
      h[k * h_t + j] = stored;
      if constexpr (place == Place::before) store(y[k * h_t + j], mask[j] * load(stored));
      if constexpr (place == Place::after) {
        const A away = load(stored) - pivot[j];
        sum += away;
        square += away * away;
      }
    }
    state[j] = now;
    if constexpr (place == Place::after) {
      first[j] += sum;
      second[j] += square;
    }
  }
}

template <class S, class A>
struct BackwardRow {
  const S *grad_h, *h, *x;
  S* grad_x;
  int64_t grad_h_t, h_t, x_t;
  const A* previous;  // the state that entered the last of the steps: a row of h, or h_0, or zeros
  const A* u;
  A* carry;
  Affine<A> norm;     // of grad_h, with v = h; for a norm before the recurrence its gain alone
  const A* x_center;  // for a norm before it, and sum_x
  A *sum_u, *sum_bias, *sum_x;
};

template <Activation activation, Place place, int steps, class S, class A>
INDRNN_INLINE void backward_rows(int64_t n, const BackwardRow<S, A>& row) {
  const S *__restrict grad_h = row.grad_h, *__restrict h = row.h, *__restrict x = row.x;
  S* __restrict grad_x = row.grad_x;
  const A *__restrict previous = row.previous, *__restrict u = row.u, *__restrict gain = row.norm.gain,
          *__restrict offset = row.norm.offset, *__restrict slope = row.norm.slope, *__restrict center = row.norm.center,
          *__restrict x_center = row.x_center;
  A *__restrict carry = row.carry, *__restrict sum_u = row.sum_u, *__restrict sum_bias = row.sum_bias,
    *__restrict sum_x = row.sum_x;
  const int64_t grad_h_t = row.grad_h_t, h_t = row.h_t, x_t = row.x_t;
  INDRNN_APART
  for (int64_t j = 0; j < n; ++j) {
    A from_later = carry[j], here = load(h[j]), of_u = A(0), of_bias = A(0), of_x = A(0);
    for (int k = 0; k < steps; ++k) {
      const A entered = k + 1 < steps ? load(h[(k + 1) * h_t + j]) : previous[j];
      A incoming = load(grad_h[k * grad_h_t + j]);
      if constexpr (place == Place::after) incoming = gain[j] * incoming + (offset[j] + slope[j] * (here - center[j]));
      if constexpr (place == Place::before) incoming *= gain[j];
      const A delta = through_activation<activation, A>(incoming + from_later, here);
      from_later = u[j] * delta;
      of_u += delta * entered;
      of_bias += delta;
      if constexpr (place == Place::before) of_x += delta * (load(x[k * x_t + j]) - x_center[j]);
      store(grad_x[k * h_t + j], delta);
      here = entered;
    }
    carry[j] = from_later;
    sum_u[j] += of_u;
    sum_bias[j] += of_bias;
    if constexpr (place == Place::before) sum_x[j] += of_x;
  }
}

// to = gain * to + offset + slope * (v - center), or without its first term
template <int steps, class S, class A>
INDRNN_INLINE void affine_rows(int64_t n, bool in_place, const S* __restrict v, int64_t v_t, Affine<A> by,
                               S* __restrict to, int64_t to_t) {
  const A *__restrict gain = by.gain, *__restrict offset = by.offset, *__restrict slope = by.slope,
          *__restrict center = by.center;
  if (in_place) {
    INDRNN_APART
    for (int64_t j = 0; j < n; ++j)
      for (int k = 0; k < steps; ++k) {
        const A other = offset[j] + slope[j] * (load(v[k * v_t + j]) - center[j]);
        store(to[k * to_t + j], gain[j] * load(to[k * to_t + j]) + other);
      }
  } else {
    INDRNN_APART
    for (int64_t j = 0; j < n; ++j)
      for (int k = 0; k < steps; ++k) {
        store(to[k * to_t + j], offset[j] + slope[j] * (load(v[k * v_t + j]) - center[j]));
      }
  }
}

template <int steps, class S, class A>
INDRNN_INLINE void moments_rows(int64_t n, const S* __restrict v, int64_t v_t, Moments<A> sums) {
  const A* __restrict pivot = sums.pivot;
  A *__restrict first = sums.first, *__restrict second = sums.second;
  INDRNN_APART
  for (int64_t j = 0; j < n; ++j) {
    A sum = A(0), square = A(0);
    for (int k = 0; k < steps; ++k) {
      const A away = load(v[k * v_t + j]) - pivot[j];
      sum += away;
      square += away * away;
    }
    first[j] += sum;
    second[j] += square;
  }
}

// first += g, second += g * (v - center)
template <int steps, class S, class A>
INDRNN_INLINE void products_rows(int64_t n, const S* __restrict g, int64_t g_t, const S* __restrict v, int64_t v_t,
                                 const A* __restrict center, A* __restrict first, A* __restrict second) {
  INDRNN_APART
  for (int64_t j = 0; j < n; ++j) {
    A sum = A(0), product = A(0);
    for (int k = 0; k < steps; ++k) {
      const A value = load(g[k * g_t + j]);
      sum += value;
      product += value * (load(v[k * v_t + j]) - center[j]);
    }
    first[j] += sum;
    second[j] += product;
  }
}

// A row in the accumulation type: itself, or read into `room`
template <class S, class A>
INDRNN_INLINE const A* loaded(int64_t n, const S* __restrict from, A* __restrict room) {
  if constexpr (std::is_same<S, A>::value) {
    (void)n, (void)room;
    return from;
  } else {
    INDRNN_APART
    for (int64_t j = 0; j < n; ++j) room[j] = load(from[j]);
    return room;
  }
}

// Sums over few steps, in the accumulation type, move on into those over all of time, in double.
template <class A>
INDRNN_INLINE void move_into(int64_t n, A* __restrict part, double* __restrict sum) {
  INDRNN_APART
  for (int64_t j = 0; j < n; ++j) {
    sum[j] += double(part[j]);
    part[j] = A(0);
  }
}

// to += each of the rows, in the order of memory
inline void add_rows(int64_t rows, int64_t n, const double* __restrict from, double* __restrict to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) to[j] += from[i * n + j];
}

// The moments of `count` more numbers of each chain join those of the `before` numbers that it had: their mean, and the
// sum of squares about it (the pairwise formula of Chan, Golub and LeVeque). No large sums are subtracted from each other,
// so the variance of numbers far from 0 is not lost.
template <class A>
INDRNN_INLINE void merge_into(int64_t n, int64_t before, int64_t count, Moments<A> part, double* __restrict mean,
                              double* __restrict square) {
  const A *__restrict pivot = part.pivot, *__restrict first = part.first, *__restrict second = part.second;
  const double each = 1.0 / double(count), weight = double(count) / double(before + count), pull = double(before) * weight;
  INDRNN_APART
  for (int64_t j = 0; j < n; ++j) {
    const double from_pivot = double(first[j]) * each;
    const double inside = double(second[j]) - double(first[j]) * from_pivot;
    const double away = (double(pivot[j]) + from_pivot) - mean[j];
    mean[j] += weight * away;
    square[j] += (inside < 0.0 ? 0.0 : inside) + pull * away * away;  // NaN stays; pull first: 0 times a square may be NaN
  }
}

}  // namespace indrnn
