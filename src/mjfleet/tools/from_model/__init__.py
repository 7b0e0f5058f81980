"""`mjfleet new-task --from`: a task from a robot's own model."""
