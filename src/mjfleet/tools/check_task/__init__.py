"""`mjfleet check-task`: common mistakes in a task."""
