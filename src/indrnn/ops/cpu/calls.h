// What Python hands to the kernel: one struct for each pass. kernel.py has the same structs with the same fields in the
// same order. Any change here is a new version: when the library is loaded, both sides compare version and sizes.
//
// A (T, B, R) tensor that comes from outside is given by its address and its strides over T and B; what is made here is
// contiguous. States, (B, R), u and other vectors of N are contiguous and in the accumulation type. What is null is not
// there.

#pragma once

#include <cstdint>

#ifdef _WIN32
#define INDRNN_EXPORT extern "C" __declspec(dllexport)
#else
#define INDRNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace indrnn {

constexpr int32_t abi_version = 1;

enum class Dtype : int32_t { float32, float64, bfloat16, float16 };

// What an exported function returns
enum class Status : int32_t { done, no_memory, unknown_dtype };

struct Call {  // what all passes of the recurrence have
  int32_t dtype, activation, reverse, threads;
  int64_t T, B, M, N;
  const int64_t* lengths;  // (B,)
  const uint8_t* resets;   // (T, B), contiguous
  int64_t missing;         // out: bytes that could not be allocated
};

struct ForwardCall {
  Call call;
  const void* x;
  int64_t x_t, x_b;
  const void *u, *bias;
  void* h;
  void* state;  // in: h_0; out: h_last
};

struct BackwardCall {
  Call call;
  const void* grad_h;
  int64_t g_t, g_b;
  const void *h, *u, *h_0;
  void* grad_x;
  void* carry;  // in: grad_h_last; out: grad_h_0
  void *grad_u, *grad_bias;
};

// Batch norm before or after the recurrence, and y = mask * that, mask (B, R). y is null where it would be h.
struct NormForwardCall {
  Call call;
  double eps;
  int64_t before;
  const void* x;
  int64_t x_t, x_b;
  const void *u, *bias, *weight, *shift, *mask;
  void *h, *y;
  void* state;  // in: h_0; out: h_last
  void *mean, *var;
};

// x is needed for a norm before the recurrence alone; mean and var are of the forward pass.
struct NormBackwardCall {
  Call call;
  double eps;
  int64_t before;
  const void* grad_y;
  int64_t g_t, g_b;
  const void* x;
  int64_t x_t, x_b;
  const void *h, *u, *h_0, *weight, *mean, *var, *mask;
  void* grad_x;
  void* carry;  // in: grad_h_last; out: grad_h_0
  void *grad_u, *grad_bias, *grad_weight, *grad_shift;
};

}  // namespace indrnn
