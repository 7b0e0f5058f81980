"""`mjfleet sweep`: many short runs that find good settings, on Optuna."""
