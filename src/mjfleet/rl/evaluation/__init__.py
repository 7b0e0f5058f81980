"""Evaluations of a policy, and which of a run is the best."""
