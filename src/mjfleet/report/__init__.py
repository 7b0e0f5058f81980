"""What people see of a run: terminal, metrics, and the record in the run directory."""
