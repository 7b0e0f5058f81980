"""Communication between the ranks of a run."""
