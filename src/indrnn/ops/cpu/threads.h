// Working memory, work that is shared out between threads, and how a thread rounds meanwhile.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "calls.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__SSE2__) || defined(_M_X64)
#define INDRNN_HAVE_MXCSR
#include <xmmintrin.h>
#endif

namespace indrnn {

// While it lives, what this thread computes below the smallest normal number is 0. A gradient that vanishes would stay
// there for hundreds of steps, and an x86 takes a hundred cycles and more for each of them, in the matrix products that
// come after it too. Such numbers are still read as they are, for Float16's own and whatever torch was told: so results
// do not depend on the thread.
struct FlushToZero {
#ifdef INDRNN_HAVE_MXCSR
  static constexpr unsigned results = 0x8000u, operands = 0x0040u;
  const unsigned before = _mm_getcsr();
  FlushToZero() { _mm_setcsr((before | results) & ~operands); }
  ~FlushToZero() { _mm_setcsr(before); }
#else
  FlushToZero() {}
#endif
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
};

struct NoMemory : std::bad_alloc {
  int64_t bytes;
  explicit NoMemory(int64_t bytes) : bytes(bytes) {}
};

template <class A>
struct Scratch {  // freed on every way out; calloc, so that a tile's zeros come for free
  A* data;
  explicit Scratch(int64_t n) : data(static_cast<A*>(std::calloc(size_t(std::max<int64_t>(n, 1)), sizeof(A)))) {
    if (!data) throw NoMemory(n * int64_t(sizeof(A)));
  }
  ~Scratch() { std::free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

// Threads that are asked for, but no more than can be of use: those above the number of processors only wait for each
// other, and the system may refuse to start so many. Up to 64 are always granted, so that results can be compared for
// numbers of threads that a machine does not have.
inline int granted(int threads) {
  int most = 64;
#ifdef _OPENMP
  most = std::max(most, omp_get_num_procs());
#endif
  return std::max(1, std::min(threads, most));
}

constexpr int64_t nothing = -1;  // missing

// Call work(i) for i below `parts`. No exception may leave a parallel region, so work returns the bytes that it could not
// allocate, or `nothing`.
template <class Work>
void in_parallel(int threads, int64_t parts, const Work& work) {
  if (parts == 0) return;
  threads = int(std::min<int64_t>(granted(threads), parts));
  std::atomic<int64_t> missing{nothing};
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
  for (int64_t i = 0; i < parts; ++i) {
    if (missing != nothing) continue;
    const int64_t here = work(i);
    if (here != nothing) missing = here;
  }
  if (missing != nothing) throw NoMemory(missing);
}

// Run a pass for a caller that knows no exceptions.
template <class Run>
Status status_of(int64_t& missing, const Run& run) noexcept {
  try {
    return run() ? Status::done : Status::unknown_dtype;
  } catch (const NoMemory& error) {
    missing = error.bytes;
  }
  return Status::no_memory;
}

}  // namespace indrnn
