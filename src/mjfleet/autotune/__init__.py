"""Finds by measuring how many environments per worker train fastest (`--env.num-envs auto`)."""
