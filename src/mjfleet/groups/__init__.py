"""Several runs of one task that share this machine's devices."""
