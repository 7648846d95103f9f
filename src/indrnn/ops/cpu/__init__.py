"""The recurrence on CPUs: a C++ kernel, called through ctypes."""
