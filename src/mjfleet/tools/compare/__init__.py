"""`mjfleet compare`: runs side by side."""
