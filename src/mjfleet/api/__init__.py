"""The Python API: what `mjfleet.train` and the other names of the package are made of."""
