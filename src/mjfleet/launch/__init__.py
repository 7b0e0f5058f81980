"""From a configuration to running workers: which devices, which plan, and the launch itself."""
