"""Analysis of trained networks and runs."""
