"""`mjfleet report`, `plot` and `compare`: what runs have logged, as page, picture or table."""
