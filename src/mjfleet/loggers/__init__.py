"""Where the numbers of an iteration go: files, TensorBoard, W&B, the terminal."""
