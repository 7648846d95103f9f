"""Analysis of trained networks: memory, weights, ablation, gradients, conversion; reports of runs, and the explorer."""
