"""Learning: the training loop, our algorithms, and adapters of other libraries."""
