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
}  // namespace indrnn
