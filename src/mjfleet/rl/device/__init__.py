"""The device's part of learning: CUDA graphs, optimisers, clocks and utilisation."""
