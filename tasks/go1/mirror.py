"""The Go1's mirror image, under the name that earlier runs know."""

from mjfleet.legged.mirror import mirror

__all__ = ["mirror"]
