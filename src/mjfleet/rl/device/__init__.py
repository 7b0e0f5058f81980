"""What the device does of learning: CUDA graphs, optimisers, clocks and use."""
