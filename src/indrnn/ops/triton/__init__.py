"""The recurrence on GPUs: Triton kernels."""
