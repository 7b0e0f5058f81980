"""Learning: what rsl_rl does not do for us."""
