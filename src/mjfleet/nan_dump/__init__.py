"""Finds the first number that is not finite, dumps the rollout around it, explains the dump."""
