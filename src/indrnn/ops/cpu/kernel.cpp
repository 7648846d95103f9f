// h_t = act(x_t + b + u * h_{t-1}) on the CPU, and its backward pass.
//
// Shapes: x, h and their gradients are (T, B, R) with free strides over T and B; a row of R numbers is contiguous.
// R = M * N: u and b, of length N, repeat M times along a row. State, carry and sums are (B, R), contiguous, in the
// accumulation type A (float, or double for double); tensors over time are in the storage type S.
//
// Every (batch, row) position is a chain of its own over time. Threads share out tiles of chains, never a chain, and each
// chain adds up its own part of u's gradient, in an order that follows from the shape alone, so no result depends on the
// number of threads. Nothing here may be compiled with fused multiply-add: relu and identity then give the reference's bits
// on every CPU.
//
// Plain C interface, no torch and no Python headers: one binary serves every version of both.

#include <cmath>
#include <cstring>

#include "passes.h"

#ifdef __linux__
#include <sys/mman.h>
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
  threads = int(std::max<int64_t>(1, std::min<int64_t>(granted(threads), s.T * chains / worth_a_thread)));
  const int64_t share = (chains + threads - 1) / threads;
  const int64_t size = std::min(largest_tile, std::max(smallest_tile, share));
  const int64_t rows = std::max<int64_t>(1, std::min(s.B, (size + R / 2) / R)), columns = std::min(R, size);
  const int64_t down = (s.B + rows - 1) / rows, across = (R + columns - 1) / columns;
  in_parallel(threads, down * across, [&](int64_t i) {
    const FlushToZero flush;
    Tile tile;
    tile.b0 = i / across * rows;
    tile.b1 = std::min(tile.b0 + rows, s.B);
    tile.j0 = i % across * columns;
    tile.j1 = std::min(tile.j0 + columns, R);
    return tile_of(pass, tile);
  });
}

// The sum over the chains of each neuron, in the order of memory whatever the number of threads
template <class A>
void add_up(const Shape& s, const double* sum, A* to) {
  const Scratch<double> total(s.N);
  add_rows(s.B * s.M, s.N, sum, total.data);
  for (int64_t n = 0; n < s.N; ++n) to[n] = A(total.data[n]);
}

template <class S, class A>
struct Types {
  using Storage = S;
  using Accumulation = A;
};

// Call `run` with the types of this storage type; false for one that is not known.
template <class Run>
bool with_types(int32_t dtype, const Run& run) {
  switch (Dtype(dtype)) {
    case Dtype::float32: return run(Types<float, float>()), true;
    case Dtype::float64: return run(Types<double, double>()), true;
    case Dtype::bfloat16: return run(Types<BFloat16, float>()), true;
    case Dtype::float16: return run(Types<Float16, float>()), true;
  }
  return false;
}

Shape shape_of(const Call& call) {
  Shape shape;
  shape.T = call.T;
  shape.B = call.B;
  shape.M = call.M;
  shape.N = call.N;
  shape.reverse = call.reverse != 0;
  shape.lengths = call.lengths;
  shape.resets = call.resets;
  return shape;
}

template <class S>
Series<S> strided(S* data, int64_t stride_t, int64_t stride_b) {
  Series<S> series;
  series.data = data;
  series.stride_t = stride_t;
  series.stride_b = stride_b;
  return series;
}

template <class S>
Series<S> contiguous(S* data, const Shape& shape) {
  return strided(data, shape.B * shape.R(), shape.R());
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

// Constants of chains, (B, R) each, and the sums or moments they come from; all start as zeros.
template <class A>
struct Norm {
  const Shape& shape;
  const int64_t chains;
  const int threads;
  Scratch<double> first, second, totals, values;
  Scratch<A> constants;
  double* const total;

  Norm(const Shape& shape, int threads)
      : shape(shape), chains(shape.B * shape.R()), threads(threads), first(chains), second(chains), totals(2 * shape.N),
        values(shape.N), constants(4 * chains), total(totals.data) {}

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
    const int64_t N = shape.N;
    in_parallel(chains >= worth_a_thread ? threads : 1, shape.B * shape.M, [&](int64_t i) {
      for (int64_t n = 0; n < N; ++n) {
        const A constant = A(values.data[n]);
        to[i * N + n] = mask ? constant * mask[i * N + n] : constant;
      }
      return nothing;
    });
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

  // Mean and biased variance of each neuron, in total[n] and total[N + n], from each chain's mean and sum of squares about
  // it, in `first` and `second`. Means are added up as distances from the first of them, so that sums stay small.
  void moments(A* mean, A* var) const {
    const int64_t N = shape.N;
    const double n = count();
    double *const middle = total, *const square = total + N, *origin = nullptr;
    for_chains([&](int64_t i, double steps) {
      if (!origin) origin = first.data + i;
      for (int64_t j = 0; j < N; ++j) middle[j] += steps * (first.data[i + j] - origin[j]);
    });
    for (int64_t j = 0; j < N; ++j) middle[j] = middle[j] / n + (origin ? origin[j] : 0.0);
    for_chains([&](int64_t i, double steps) {
      for (int64_t j = 0; j < N; ++j) {
        const double away = first.data[i + j] - middle[j];
        square[j] += second.data[i + j] + steps * away * away;
      }
    });
    for (int64_t j = 0; j < N; ++j) {
      square[j] /= n;
      mean[j] = A(middle[j]);
      var[j] = A(square[j]);
    }
  }

  // For each N chains that have steps, in the order of memory: where they begin, and how many steps
  template <class Work>
  void for_chains(const Work& work) const {
    for (int64_t b = 0; b < shape.B; ++b)
      for (int64_t m = 0; m < shape.M; ++m)
        if (shape.length(b) > 0) work((b * shape.M + m) * shape.N, double(shape.length(b)));
  }

  // After `moments`: mask * (weight * (v - mean) / deviation + shift); what rounding takes from the mean, the shift gets.
  Affine<A> normalise(const A* weight, const A* shift, const A* mask, double eps) const {
    const auto scale = [&](int64_t n) { return double(weight[n]) / std::sqrt(total[shape.N + n] + eps); };
    const auto shifted = [&](int64_t n) { return double(shift[n]) + scale(n) * (double(A(total[n])) - total[n]); };
    Affine<A> by{};
    by.offset = spread(offset, mask, shifted);
    by.slope = spread(slope, mask, scale);
    by.center = spread(center, nullptr, [&](int64_t n) { return total[n]; });
    return by;
  }

  // After the sums of g and g * (v - mean): mask * scale * g - scale * (S1 + (v - mean) / deviation^2 * S2) / count
  Affine<A> correct(const A* weight, const A* mean, const A* var, const A* mask, double eps) const {
    const double n = count();
    const auto rstd = [&](int64_t j) { return 1.0 / std::sqrt(double(var[j]) + eps); };
    const auto scale = [&](int64_t j) { return double(weight[j]) * rstd(j); };
    Affine<A> by{};
    by.gain = spread(gain, mask, scale);
    by.offset = spread(offset, nullptr, [&](int64_t j) { return -scale(j) * total[j] / n; });
    by.slope = spread(slope, nullptr, [&](int64_t j) { return -scale(j) * rstd(j) * rstd(j) * total[shape.N + j] / n; });
    by.center = spread(center, nullptr, [&](int64_t j) { return double(mean[j]); });
    return by;
  }
};

// ---- the passes that are exported, in the types of one storage type

template <class S, class A>
void forward(const ForwardCall& call) {
  Forward<S, A> pass{};
  pass.shape = shape_of(call.call);
  pass.activation = Activation(call.call.activation);
  pass.x = strided(static_cast<const S*>(call.x), call.x_t, call.x_b);
  pass.h = contiguous(static_cast<S*>(call.h), pass.shape);
  pass.u = static_cast<const A*>(call.u);
  pass.bias = static_cast<const A*>(call.bias);
  pass.state = static_cast<A*>(call.state);
  run_forward(pass, call.call.threads);
}

template <class S, class A>
void backward(const BackwardCall& call) {
  Backward<S, A> pass{};
  pass.shape = shape_of(call.call);
  pass.activation = Activation(call.call.activation);
  pass.grad_h = strided(static_cast<const S*>(call.grad_h), call.g_t, call.g_b);
  pass.h = contiguous(static_cast<const S*>(call.h), pass.shape);
  pass.grad_x = contiguous(static_cast<S*>(call.grad_x), pass.shape);
  pass.u = static_cast<const A*>(call.u);
  pass.h_0 = static_cast<const A*>(call.h_0);
  pass.carry = static_cast<A*>(call.carry);
  run_backward(pass, call.call.threads, static_cast<A*>(call.grad_u), static_cast<A*>(call.grad_bias));
}

template <class S, class A>
void norm_forward(const NormForwardCall& call) {
  const int threads = call.call.threads;
  const Shape shape = shape_of(call.call);
  const Norm<A> norm(shape, threads);
  const auto vector = [](const void* data) { return static_cast<const A*>(data); };
  const auto moments = [&] { norm.moments(static_cast<A*>(call.mean), static_cast<A*>(call.var)); };
  const auto normalise = [&](const A* mask) {
    return norm.normalise(vector(call.weight), vector(call.shift), mask, call.eps);
  };
  Forward<S, A> pass{};
  pass.shape = shape;
  pass.activation = Activation(call.call.activation);
  pass.x = strided(static_cast<const S*>(call.x), call.x_t, call.x_b);
  pass.h = contiguous(static_cast<S*>(call.h), shape);
  pass.y = contiguous(static_cast<S*>(call.y), shape);
  pass.u = vector(call.u);
  pass.state = static_cast<A*>(call.state);
  if (call.before) {  // the norm takes any bias away again
    Statistics<S, A> statistics;
    statistics.shape = shape;
    statistics.v = pass.x;
    statistics.mean = norm.first.data;
    statistics.square = norm.second.data;
    run_all(statistics, threads);
    moments();
    pass.place = Place::before;
    pass.norm = normalise(nullptr);
    pass.mask = vector(call.mask);
    run_forward(pass, threads);
  } else {
    pass.place = Place::after;
    pass.bias = vector(call.bias);
    pass.mean = norm.first.data;
    pass.square = norm.second.data;
    run_forward(pass, threads);
    moments();
    expect_writes(call.y, shape.T * shape.B * shape.R() * int64_t(sizeof(S)));
    Combine<S, A> combine;
    combine.shape = shape;
    combine.in_place = false;
    combine.v = contiguous(static_cast<const S*>(call.h), shape);
    combine.to = pass.y;
    combine.by = normalise(vector(call.mask));
    run_all(combine, threads);
  }
}

template <class S, class A>
void norm_backward(const NormBackwardCall& call) {
  const int threads = call.call.threads;
  const Shape shape = shape_of(call.call);
  const Norm<A> norm(shape, threads);
  const auto vector = [](const void* data) { return static_cast<const A*>(data); };
  const A *const weight = vector(call.weight), *const mean = vector(call.mean), *const var = vector(call.var);
  const A* const center = norm.spread(Norm<A>::center, nullptr, [&](int64_t n) { return double(mean[n]); });
  Backward<S, A> pass{};
  pass.shape = shape;
  pass.activation = Activation(call.call.activation);
  pass.grad_h = strided(static_cast<const S*>(call.grad_y), call.g_t, call.g_b);
  pass.h = contiguous(static_cast<const S*>(call.h), shape);
  pass.grad_x = contiguous(static_cast<S*>(call.grad_x), shape);
  pass.u = vector(call.u);
  pass.h_0 = vector(call.h_0);
  pass.carry = static_cast<A*>(call.carry);
  if (call.before) {
    pass.place = Place::before;
    pass.norm.gain = vector(call.mask);
    pass.x = strided(static_cast<const S*>(call.x), call.x_t, call.x_b);
    pass.x_center = center;
    pass.sum_bias = norm.first.data;
    pass.sum_x = norm.second.data;
  } else {
    Products<S, A> products;
    products.shape = shape;
    products.g = pass.grad_h;
    products.v = pass.h;
    products.center = center;
    products.first = norm.first.data;
    products.second = norm.second.data;
    run_all(products, threads);
    norm.add_up_both(vector(call.mask));
    pass.place = Place::after;
    pass.norm = norm.correct(weight, mean, var, vector(call.mask), call.eps);
  }
  run_backward(pass, threads, static_cast<A*>(call.grad_u), static_cast<A*>(call.grad_bias));
  if (call.before) {
    norm.add_up_both(nullptr);
    Combine<S, A> combine;
    combine.shape = shape;
    combine.in_place = true;
    combine.v = pass.x;
    combine.to = pass.grad_x;
    combine.by = norm.correct(weight, mean, var, nullptr, call.eps);
    run_all(combine, threads);
    std::fill_n(static_cast<A*>(call.grad_bias), shape.N, A(0));
  }
  for (int64_t n = 0; n < shape.N; ++n) {
    static_cast<A*>(call.grad_weight)[n] = A(norm.total[shape.N + n] / std::sqrt(double(var[n]) + call.eps));
    static_cast<A*>(call.grad_shift)[n] = A(norm.total[n]);
  }
}

}  // namespace
}  // namespace indrnn

// ---- what Python calls

// For kernel.py to compare, before it calls anything else: the version, and the size of the struct that a pass takes
INDRNN_EXPORT int32_t indrnn_version() { return indrnn::abi_version; }

INDRNN_EXPORT int64_t indrnn_size(const char* pass) {
  using namespace indrnn;
  if (!std::strcmp(pass, "forward")) return sizeof(ForwardCall);
  if (!std::strcmp(pass, "backward")) return sizeof(BackwardCall);
  if (!std::strcmp(pass, "norm_forward")) return sizeof(NormForwardCall);
  if (!std::strcmp(pass, "norm_backward")) return sizeof(NormBackwardCall);
  return 0;
}

// A pass returns a Status.
#define INDRNN_EXPORT_PASS(name, Arguments)                                                             \
  INDRNN_EXPORT int32_t indrnn_##name(indrnn::Arguments* call) {                                        \
    return int32_t(indrnn::status_of(call->call.missing, [&] {                                          \
      return indrnn::with_types(call->call.dtype, [&](auto types) {                                     \
        indrnn::name<typename decltype(types)::Storage, typename decltype(types)::Accumulation>(*call); \
      });                                                                                               \
    }));                                                                                                \
  }
INDRNN_EXPORT_PASS(forward, ForwardCall)
INDRNN_EXPORT_PASS(backward, BackwardCall)
INDRNN_EXPORT_PASS(norm_forward, NormForwardCall)
INDRNN_EXPORT_PASS(norm_backward, NormBackwardCall)
