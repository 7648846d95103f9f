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

#include <cmath>

#include "passes.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#ifdef _WIN32
#define INDRNN_EXPORT extern "C" __declspec(dllexport)
#else
#define INDRNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace indrnn {
namespace {

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
void add_up(const Shape& s, const double* sum, A* to) {
  const Scratch<double> total(s.N);
  for (int64_t i = 0; i < s.B * s.M; ++i)
    for (int64_t n = 0; n < s.N; ++n) total.data[n] += sum[i * s.N + n];
  for (int64_t n = 0; n < s.N; ++n) to[n] = A(total.data[n]);
}

enum class Dtype : int { float32, float64, bfloat16, float16 };

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

// One pass forward over h, or over h and y; what is missing in `pass` is null.
template <class S, class A>
void run_forward(const Forward<S, A>& pass, int threads) {
  const int64_t bytes = pass.shape.T * pass.shape.B * pass.shape.R() * int64_t(sizeof(S));
  expect_writes(pass.h.data, bytes);
  if (pass.mask) expect_writes(pass.y.data, bytes);
  run_all(pass, threads);
}

// One pass backward, with room for the chains' parts of the gradients of u and the bias
template <class S, class A>
void run_backward(Backward<S, A> pass, int threads, A* grad_u, A* grad_bias) {
  const Shape& s = pass.shape;
  const Scratch<double> sum_u(s.B * s.R()), sum_bias(s.B * s.R());
  pass.sum_u = sum_u.data;
  if (!pass.sum_bias) pass.sum_bias = sum_bias.data;
  expect_writes(pass.grad_x.data, s.T * s.B * s.R() * int64_t(sizeof(S)));
  run_all(pass, threads);
  add_up(s, pass.sum_u, grad_u);
  add_up(s, pass.sum_bias, grad_bias);
}

// ---- batch norm over batch and time

// Constants of chains, (B, R) each, and the sums they come from; all start as zeros.
template <class A>
struct Norm {
  const Shape& shape;
  const int64_t chains = shape.B * shape.R();
  const int threads;
  Scratch<double> first{chains}, second{chains}, totals{2 * shape.N}, values{shape.N};
  Scratch<A> constants{4 * chains};
  double* const total = totals.data;

  enum Place : int { gain, offset, slope, center };

  A* at(Place place) const { return constants.data + place * chains; }

  // How many numbers a neuron's statistics are of; 1 for none, whose sums are 0
  double count() const {
    int64_t steps = 0;
    for (int64_t b = 0; b < shape.B; ++b) steps += shape.length(b);
    return double(std::max<int64_t>(1, steps * shape.M));
  }

  // Set a constant from a number for each neuron, times the mask where one is given.
  template <class Value>
  const A* spread(Place place, const A* mask, Value value) const {
    for (int64_t n = 0; n < shape.N; ++n) values.data[n] = value(n);
    A* const to = at(place);
    const int64_t rows = shape.B * shape.M, N = shape.N;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (chains >= worth_a_thread)
#endif
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t n = 0; n < N; ++n) {
        const A constant = A(values.data[n]);
        to[i * N + n] = mask ? constant * mask[i * N + n] : constant;
      }
    return to;
  }

  // Both sums of each neuron: total[n] and total[N + n]
  void add_up_both(const A* mask) const {
    if (mask)
      for (int64_t i = 0; i < chains; ++i) {
        first.data[i] *= double(mask[i]);
        second.data[i] *= double(mask[i]);
      }
    add_up(shape, first.data, total);
    add_up(shape, second.data, total + shape.N);
  }

  // From the sums of values and squares; in double, for a variance is the small difference of large sums
  void moments(A* mean, A* var) const {
    add_up_both(nullptr);
    const double n = count();
    for (int64_t j = 0; j < shape.N; ++j) {
      const double m = total[j] / n;
      total[shape.N + j] = std::max(0.0, total[shape.N + j] / n - m * m);
      total[j] = m;
      mean[j] = A(m);
      var[j] = A(total[shape.N + j]);
    }
  }

  // After `moments`: mask * (weight * (v - mean) / deviation + shift)
  Affine<A> normalise(const A* weight, const A* shift, const A* mask, double eps) const {
    const auto scale = [&](int64_t n) { return double(weight[n]) / std::sqrt(total[shape.N + n] + eps); };
    return {nullptr, spread(offset, mask, [&](int64_t n) { return double(shift[n]); }), spread(slope, mask, scale),
            spread(center, nullptr, [&](int64_t n) { return total[n]; })};
  }

  // After the sums of g and g * (v - mean): mask * scale * g - scale * (S1 + (v - mean) / deviation^2 * S2) / count
  Affine<A> correct(const A* weight, const A* mean, const A* var, const A* mask, double eps) const {
    const double n = count();
    const auto rstd = [&](int64_t j) { return 1.0 / std::sqrt(double(var[j]) + eps); };
    const auto scale = [&](int64_t j) { return double(weight[j]) * rstd(j); };
    return {spread(gain, mask, scale), spread(offset, nullptr, [&](int64_t j) { return -scale(j) * total[j] / n; }),
            spread(slope, nullptr,
                   [&](int64_t j) { return -scale(j) * rstd(j) * rstd(j) * total[shape.N + j] / n; }),
            spread(center, nullptr, [&](int64_t j) { return double(mean[j]); })};
  }
};

}  // namespace
}  // namespace indrnn

// Below, a (T, B, R) tensor that comes from outside is given by its address and its strides over T and B; what is made
// here is contiguous. States, (B, R), u and other vectors of N are contiguous and in the accumulation type. What is null
// is not there.

// state: in h_0, out h_last.
INDRNN_EXPORT void indrnn_forward(int dtype, int activation, int reverse, int threads, int64_t T, int64_t B, int64_t M,
                                  int64_t N, const void* x, int64_t x_t, int64_t x_b, const void* u,
                                  const void* bias, const int64_t* lengths, const uint8_t* resets, void* h,
                                  void* state) {
  using namespace indrnn;
  const Shape shape{T, B, M, N, reverse != 0, lengths, resets};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    const int64_t R = shape.R();
    Forward<S, A> pass{};
    pass.shape = shape;
    pass.activation = Activation(activation);
    pass.x = {static_cast<const S*>(x), x_t, x_b};
    pass.h = {static_cast<S*>(h), B * R, R};
    pass.u = static_cast<const A*>(u);
    pass.bias = static_cast<const A*>(bias);
    pass.state = static_cast<A*>(state);
    run_forward(pass, threads);
  });
}

// carry: in grad_h_last, out grad_h_0.
INDRNN_EXPORT void indrnn_backward(int dtype, int activation, int reverse, int threads, int64_t T, int64_t B,
                                   int64_t M, int64_t N, const void* grad_h, int64_t g_t, int64_t g_b, const void* h,
                                   const void* u, const void* h_0, const int64_t* lengths, const uint8_t* resets,
                                   void* grad_x, void* carry, void* grad_u, void* grad_bias) {
  using namespace indrnn;
  const Shape shape{T, B, M, N, reverse != 0, lengths, resets};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    const int64_t R = shape.R();
    Backward<S, A> pass{};
    pass.shape = shape;
    pass.activation = Activation(activation);
    pass.grad_h = {static_cast<const S*>(grad_h), g_t, g_b};
    pass.h = {static_cast<const S*>(h), B * R, R};
    pass.grad_x = {static_cast<S*>(grad_x), B * R, R};
    pass.u = static_cast<const A*>(u);
    pass.h_0 = static_cast<const A*>(h_0);
    pass.carry = static_cast<A*>(carry);
    run_backward(pass, threads, static_cast<A*>(grad_u), static_cast<A*>(grad_bias));
  });
}

// With batch norm before or after the recurrence, and y = mask * that, mask (B, R). y is null where it would be h.
INDRNN_EXPORT void indrnn_norm_forward(int dtype, int activation, int before, int threads, int64_t T, int64_t B,
                                       int64_t M, int64_t N, const void* x, int64_t x_t, int64_t x_b, const void* u,
                                       const void* bias, const void* weight, const void* shift, const void* mask,
                                       const int64_t* lengths, const uint8_t* resets, double eps, void* h, void* y,
                                       void* state, void* mean, void* var) {
  using namespace indrnn;
  const Shape shape{T, B, M, N, false, lengths, resets};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    const int64_t R = shape.R();
    const Norm<A> norm{shape, B * R, threads};
    const auto vector = [](const void* data) { return static_cast<const A*>(data); };
    const auto moments = [&] { norm.moments(static_cast<A*>(mean), static_cast<A*>(var)); };
    Forward<S, A> pass{};
    pass.shape = shape;
    pass.activation = Activation(activation);
    pass.x = {static_cast<const S*>(x), x_t, x_b};
    pass.h = {static_cast<S*>(h), B * R, R};
    pass.y = {static_cast<S*>(y), B * R, R};
    pass.u = vector(u);
    pass.state = static_cast<A*>(state);
    pass.place = before ? Place::before : Place::after;
    if (before) {  // the norm takes any bias away again
      run_all(Sums<S, A>{shape, pass.x, {}, nullptr, norm.first.data, norm.second.data}, threads);
      moments();
      pass.norm = norm.normalise(vector(weight), vector(shift), nullptr, eps);
      pass.mask = vector(mask);
      run_forward(pass, threads);
    } else {
      pass.bias = vector(bias);
      pass.sum = norm.first.data;
      pass.square = norm.second.data;
      run_forward(pass, threads);
      moments();
      expect_writes(y, T * B * R * int64_t(sizeof(S)));
      const Series<const S> made{static_cast<const S*>(h), B * R, R};
      run_all(Combine<S, A>{shape, false, made, pass.y, norm.normalise(vector(weight), vector(shift), vector(mask), eps)},
              threads);
    }
  });
}

// x is needed for a norm before the recurrence alone; mean and var are of the forward pass.
INDRNN_EXPORT void indrnn_norm_backward(int dtype, int activation, int before, int threads, int64_t T, int64_t B,
                                        int64_t M, int64_t N, const void* grad_y, int64_t g_t, int64_t g_b,
                                        const void* x, int64_t x_t, int64_t x_b, const void* h, const void* u,
                                        const void* h_0, const void* weight, const void* mean, const void* var,
                                        const void* mask, const int64_t* lengths, const uint8_t* resets, double eps,
                                        void* grad_x, void* carry, void* grad_u, void* grad_bias, void* grad_weight,
                                        void* grad_shift) {
  using namespace indrnn;
  const Shape shape{T, B, M, N, false, lengths, resets};
  with_types(dtype, [&](auto types) {
    using S = typename decltype(types)::Storage;
    using A = typename decltype(types)::Accumulation;
    const int64_t R = shape.R();
    const Norm<A> norm{shape, B * R, threads};
    const auto vector = [](const void* data) { return static_cast<const A*>(data); };
    const auto correct = [&](const A* by) { return norm.correct(vector(weight), vector(mean), vector(var), by, eps); };
    const A* const center = norm.spread(Norm<A>::center, nullptr, [&](int64_t n) { return double(vector(mean)[n]); });
    Backward<S, A> pass{};
    pass.shape = shape;
    pass.activation = Activation(activation);
    pass.grad_h = {static_cast<const S*>(grad_y), g_t, g_b};
    pass.h = {static_cast<const S*>(h), B * R, R};
    pass.grad_x = {static_cast<S*>(grad_x), B * R, R};
    pass.u = vector(u);
    pass.h_0 = vector(h_0);
    pass.carry = static_cast<A*>(carry);
    pass.place = before ? Place::before : Place::after;
    if (before) {
      pass.norm.gain = vector(mask);
      pass.x = {static_cast<const S*>(x), x_t, x_b};
      pass.x_center = center;
      pass.sum_bias = norm.first.data;
      pass.sum_x = norm.second.data;
    } else {
      run_all(Sums<S, A>{shape, pass.grad_h, pass.h, center, norm.first.data, norm.second.data}, threads);
      norm.add_up_both(vector(mask));
      pass.norm = correct(vector(mask));
    }
    run_backward(pass, threads, static_cast<A*>(grad_u), static_cast<A*>(grad_bias));
    if (before) {
      norm.add_up_both(nullptr);
      run_all(Combine<S, A>{shape, true, pass.x, pass.grad_x, correct(nullptr)}, threads);
      std::fill_n(static_cast<A*>(grad_bias), N, A(0));
    }
    for (int64_t n = 0; n < N; ++n) {
      static_cast<A*>(grad_weight)[n] = A(norm.total[N + n] / std::sqrt(double(vector(var)[n]) + eps));
      static_cast<A*>(grad_shift)[n] = A(norm.total[n]);
    }
  });
}
