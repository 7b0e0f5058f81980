"""What the ranks of a run exchange."""
