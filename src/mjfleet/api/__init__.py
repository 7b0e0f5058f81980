"""The Python API: `mjfleet.train` and the other names of the package."""
