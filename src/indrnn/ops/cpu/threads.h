// Working memory, and work that is shared out between threads.

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

namespace indrnn {

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
