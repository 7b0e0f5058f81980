"""`python -m mjfleet` is the command `mjfleet`."""

from mjfleet.cli.entry import mjfleet

mjfleet()
