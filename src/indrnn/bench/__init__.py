"""Measurements of speed and memory, beside what others offer; `indrnn bench` runs them."""
