"""One worker's process, from its arguments to its exit code."""
