// The recurrence of SRU on the CPU, and its backward pass, as one loop each: what IndRNN is measured beside.
//
//   f_t = sigmoid(a_t + v_f c_{t-1} + b_f)      c_t = f_t c_{t-1} + (1 - f_t) x_t
//   r_t = sigmoid(p_t + v_r c_{t-1} + b_r)      h_t = r_t c_t + (1 - r_t) s_t
//
// x, a and p stand beside each other in rows of `projected`, (T, B, 3 N or 4 N); s, the skip connection, is the fourth
// part of the row or a tensor of its own. All tensors are contiguous. Threads share out the batch, and each chain adds up
// its own part of the gradients of v and b, so no result depends on the number of threads.

#include "passes.h"

#ifdef _WIN32
#define INDRNN_EXPORT extern "C" __declspec(dllexport)
#else
#define INDRNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace indrnn {
namespace {

template <class A>
struct Sru {
  int64_t T, B, N, row, skip_row;  // numbers from one batch element to the next in `projected` and `skip`
  const A *projected, *skip, *v, *b, *c_0;
  A *c, *h;
  // of the backward pass
  const A* grad_h;
  A *carry, *grad_projected, *grad_skip;
  double* sums;  // (B, 4, N): of v_f, v_r, b_f, b_r
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
  constexpr int64_t stretch = 64;  // steps that are added up in A before they go to the sums
  const int64_t N = s.N;
  const A *__restrict v_f = s.v, *__restrict v_r = s.v + N, *__restrict b_f = s.b, *__restrict b_r = s.b + N;
  const Scratch<A> partial((last - first) * 4 * N);
  for (int64_t t = s.T - 1; t >= 0; --t) {
    for (int64_t i = first; i < last; ++i) {
      const A *__restrict x = s.projected + (t * s.B + i) * s.row, *__restrict a = x + N, *__restrict p = a + N;
      const A* __restrict skip = s.skip + (t * s.B + i) * s.skip_row;
      const A* __restrict before = t == 0 ? s.c_0 + i * N : s.c + ((t - 1) * s.B + i) * N;
      const A *__restrict c = s.c + (t * s.B + i) * N, *__restrict grad_h = s.grad_h + (t * s.B + i) * N;
      A *__restrict dx = s.grad_projected + (t * s.B + i) * s.row, *__restrict da = dx + N, *__restrict dp = da + N;
      A *__restrict dskip = s.grad_skip + (t * s.B + i) * s.skip_row, *__restrict carry = s.carry + i * N;
      A *__restrict dv_f = partial.data + (i - first) * 4 * N, *__restrict dv_r = dv_f + N;
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
      for (int64_t k = 0; k < (last - first) * 4 * N; ++k) {
        s.sums[first * 4 * N + k] += double(partial.data[k]);
        partial.data[k] = A(0);
      }
  }
}

#define INDRNN_DEFINE_BATCHES(A)                                                                           \
  INDRNN_CLONES void forward_of(const Sru<A>& s, int64_t i, int64_t j) { forward_batch<A>(s, i, j); }      \
  INDRNN_CLONES void backward_of(const Sru<A>& s, int64_t i, int64_t j) { backward_batch<A>(s, i, j); }
INDRNN_DEFINE_BATCHES(float)
INDRNN_DEFINE_BATCHES(double)

template <class A>
void run(const Sru<A>& s, bool backward, int threads) {
  threads = int(std::max<int64_t>(1, std::min<int64_t>(threads, s.B)));
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
  for (int k = 0; k < threads; ++k) {
    const int64_t first = s.B * k / threads, last = s.B * (k + 1) / threads;
    backward ? backward_of(s, first, last) : forward_of(s, first, last);
  }
}

template <class A>
void run_with(int threads, int64_t T, int64_t B, int64_t N, const void* projected, const void* skip, const void* v,
              const void* b, const void* c_0, void* c, void* h, const void* grad_h, void* carry, void* grad_projected,
              void* grad_skip, double* sums) {
  const bool inside = skip == nullptr;  // the row's fourth part
  const int64_t row = inside ? 4 * N : 3 * N;
  const A* in = static_cast<const A*>(projected);
  A* out = static_cast<A*>(grad_projected);
  run<A>({T, B, N, row, inside ? row : N, in, inside ? in + 3 * N : static_cast<const A*>(skip),
          static_cast<const A*>(v), static_cast<const A*>(b), static_cast<const A*>(c_0), static_cast<A*>(c),
          static_cast<A*>(h), static_cast<const A*>(grad_h), static_cast<A*>(carry), out,
          inside ? (out ? out + 3 * N : nullptr) : static_cast<A*>(grad_skip), sums},
         grad_h != nullptr, threads);
}

}  // namespace
}  // namespace indrnn

// Forward where `grad_h` is null: writes c and h. Else backward: reads c, writes the gradients; `carry` holds that of the
// last c and leaves that of c_0.
INDRNN_EXPORT void indrnn_sru(int is_double, int threads, int64_t T, int64_t B, int64_t N, const void* projected,
                              const void* skip, const void* v, const void* b, const void* c_0, void* c, void* h,
                              const void* grad_h, void* carry, void* grad_projected, void* grad_skip, double* sums) {
  (is_double ? indrnn::run_with<double> : indrnn::run_with<float>)(threads, T, B, N, projected, skip, v, b, c_0, c, h,
                                                                  grad_h, carry, grad_projected, grad_skip, sums);
}
