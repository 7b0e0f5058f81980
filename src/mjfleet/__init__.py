"""Train reinforcement-learning policies on MuJoCo-Warp: one CPU, one GPU or a fleet of GPUs."""
