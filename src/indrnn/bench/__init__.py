"""Benchmarks of speed and memory, compared with other implementations; run by `indrnn bench`."""
