"""`mjfleet clip`: looks at clips of motions, and converts them."""
