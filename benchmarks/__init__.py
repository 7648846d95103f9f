"""Benchmarks of speed and memory, our own experiments on defaults, and the check of the tables on pages."""
