"""`mjfleet doctor`: whether this machine can train."""
