// The recurrence of SRU on the CPU, and its backward pass, as one loop each: what IndRNN is measured beside.
//
//   f_t = sigmoid(a_t + v_f c_{t-1} + b_f)      c_t = f_t c_{t-1} + (1 - f_t) x_t
//   r_t = sigmoid(p_t + v_r c_{t-1} + b_r)      h_t = r_t c_t + (1 - r_t) s_t
//
// x, a and p stand beside each other in rows of `projected`, (T, B, 3 N or 4 N); s, the skip connection, is the fourth
// part of the row or a tensor of its own. All tensors are contiguous. Threads share out the batch, and each chain adds up
// its own part of the gradients of v and b, so no result depends on the number of threads.

#include "passes.h"

namespace indrnn {

// What Python hands over; sru.py has the same struct, and compares its size when it first calls.
// Forward where grad_h is null: writes c and h. Else backward: reads c, writes the gradients.
struct SruCall {
  int32_t dtype, threads;
  int64_t T, B, N;
  int64_t missing;  // out: bytes that could not be allocated
  const void *projected, *skip, *v, *b, *c_0;
  void *c, *h;
  const void* grad_h;
  void* carry;  // in: the gradient of the last c; out: that of c_0
  void *grad_projected, *grad_skip;
  double* sums;  // (4, N): the gradients of v_f, v_r, b_f, b_r
};

namespace {

template <class A>
struct Sru {
  int64_t T, B, N, row, skip_row;  // numbers from one batch element to the next in `projected` and `skip`
  const A *projected, *skip, *v, *b, *c_0;
  A *c, *h;
  // of the backward pass
  const A* grad_h;
  A *carry, *grad_projected, *grad_skip;
  double* sums;  // (B, 4, N): in zeros; out each chain's gradients of v_f, v_r, b_f, b_r
  A* partial;    // (B, 4, N), zeros: the same over a stretch
};

template <class A>
INDRNN_INLINE void forward_batch(const Sru<A>& s, int64_t first, int64_t last) {
  const int64_t N = s.N;
  const A *__restrict v_f = s.v, *__restrict v_r = s.v + N, *__restrict b_f = s.b, *__restrict b_r = s.b + N;
  for (int64_t t = 0; t < s.T; ++t)
    for (int64_t i = first; i < last; ++i) {
      const A *__restrict x = s.projected + (t * s.B + i) * s.row, *__restrict a = x + N, *__restrict p = a + N;
      const A* __restrict skip = s.skip + (t * s.B + i) * s.skip_row;
      const A* __restrict before = t == 0 ? s.c_0 + i * N : s.c + ((t - 1) * s.B + i) * N;
      A *__restrict c = s.c + (t * s.B + i) * N, *__restrict h = s.h + (t * s.B + i) * N;
      INDRNN_APART
      for (int64_t j = 0; j < N; ++j) {
        const A f = sigmoid_of<A>(a[j] + v_f[j] * before[j] + b_f[j]);
        const A r = sigmoid_of<A>(p[j] + v_r[j] * before[j] + b_r[j]);
        const A now = f * before[j] + (A(1) - f) * x[j];
        c[j] = now;
        h[j] = r * now + (A(1) - r) * skip[j];
      }
    }
}

template <class A>
INDRNN_INLINE void backward_batch(const Sru<A>& s, int64_t first, int64_t last) {
  const int64_t N = s.N;
  const A *__restrict v_f = s.v, *__restrict v_r = s.v + N, *__restrict b_f = s.b, *__restrict b_r = s.b + N;
  for (int64_t t = s.T - 1; t >= 0; --t) {
    for (int64_t i = first; i < last; ++i) {
      const A *__restrict x = s.projected + (t * s.B + i) * s.row, *__restrict a = x + N, *__restrict p = a + N;
      const A* __restrict skip = s.skip + (t * s.B + i) * s.skip_row;
      const A* __restrict before = t == 0 ? s.c_0 + i * N : s.c + ((t - 1) * s.B + i) * N;
      const A *__restrict c = s.c + (t * s.B + i) * N, *__restrict grad_h = s.grad_h + (t * s.B + i) * N;
      A *__restrict dx = s.grad_projected + (t * s.B + i) * s.row, *__restrict da = dx + N, *__restrict dp = da + N;
      A *__restrict dskip = s.grad_skip + (t * s.B + i) * s.skip_row, *__restrict carry = s.carry + i * N;
      A *__restrict dv_f = s.partial + i * 4 * N, *__restrict dv_r = dv_f + N;
      A *__restrict db_f = dv_r + N, *__restrict db_r = db_f + N;
      INDRNN_APART
      for (int64_t j = 0; j < N; ++j) {
        const A f = sigmoid_of<A>(a[j] + v_f[j] * before[j] + b_f[j]);
        const A r = sigmoid_of<A>(p[j] + v_r[j] * before[j] + b_r[j]);
        const A dc = carry[j] + grad_h[j] * r;
        const A to_f = dc * (before[j] - x[j]) * (f * (A(1) - f));
        const A to_r = grad_h[j] * (c[j] - skip[j]) * (r * (A(1) - r));
        dx[j] = dc * (A(1) - f);
        da[j] = to_f;
        dp[j] = to_r;
        dskip[j] = grad_h[j] * (A(1) - r);
        carry[j] = dc * f + to_f * v_f[j] + to_r * v_r[j];
        dv_f[j] += to_f * before[j];
        dv_r[j] += to_r * before[j];
        db_f[j] += to_f;
        db_r[j] += to_r;
      }
    }
    if (t % stretch == 0)
      move_into((last - first) * 4 * N, s.partial + first * 4 * N, s.sums + first * 4 * N);
  }
}

// They throw nothing: GCC relies on it of a function with clones.
#define INDRNN_DEFINE_BATCHES(A)                                                                           \
  INDRNN_CLONES void forward_of(const Sru<A>& s, int64_t i, int64_t j) { forward_batch<A>(s, i, j); }      \
  INDRNN_CLONES void backward_of(const Sru<A>& s, int64_t i, int64_t j) { backward_batch<A>(s, i, j); }
INDRNN_DEFINE_BATCHES(float)
INDRNN_DEFINE_BATCHES(double)

template <class A>
void run(const SruCall& call) {
  const int64_t B = call.B, N = call.N;
  const bool inside = call.skip == nullptr;  // the skip connection is the row's fourth part
  const bool backward = call.grad_h != nullptr;
  const int64_t room = backward ? B * 4 * N : 0;
  const Scratch<double> sums(room);
  const Scratch<A> partial(room);
  Sru<A> s{};
  s.T = call.T;
  s.B = B;
  s.N = N;
  s.row = inside ? 4 * N : 3 * N;
  s.skip_row = inside ? s.row : N;
  s.projected = static_cast<const A*>(call.projected);
  s.skip = inside ? s.projected + 3 * N : static_cast<const A*>(call.skip);
  s.v = static_cast<const A*>(call.v);
  s.b = static_cast<const A*>(call.b);
  s.c_0 = static_cast<const A*>(call.c_0);
  s.c = static_cast<A*>(call.c);
  s.h = static_cast<A*>(call.h);
  if (backward) {
    s.grad_h = static_cast<const A*>(call.grad_h);
    s.carry = static_cast<A*>(call.carry);
    s.grad_projected = static_cast<A*>(call.grad_projected);
    s.grad_skip = inside ? s.grad_projected + 3 * N : static_cast<A*>(call.grad_skip);
    s.sums = sums.data;
    s.partial = partial.data;
  }
  const int64_t parts = std::min<int64_t>(granted(call.threads), B);
  in_parallel(call.threads, parts, [&](int64_t k) {
    const FlushToZero flush;
    const int64_t first = B * k / parts, last = B * (k + 1) / parts;
    backward ? backward_of(s, first, last) : forward_of(s, first, last);
    return nothing;
  });
  if (backward) {
    std::fill_n(call.sums, 4 * N, 0.0);
    add_rows(B, 4 * N, sums.data, call.sums);
  }
}

}  // namespace
}  // namespace indrnn

INDRNN_EXPORT int64_t indrnn_sru_size() { return sizeof(indrnn::SruCall); }

INDRNN_EXPORT int32_t indrnn_sru(indrnn::SruCall* call) {
  using namespace indrnn;
  return int32_t(status_of(call->missing, [&] {
    const Dtype dtype = Dtype(call->dtype);
    if (dtype == Dtype::float32) run<float>(*call);
    if (dtype == Dtype::float64) run<double>(*call);
    return dtype == Dtype::float32 || dtype == Dtype::float64;
  }));
}
