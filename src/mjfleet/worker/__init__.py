"""A worker: one process with one device. What it is given, and its life."""
