"""`mjfleet report`: one HTML page about a run."""
