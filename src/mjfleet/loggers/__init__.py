"""Where the metrics of each iteration go: files, TensorBoard, Weights & Biases, the terminal."""
