"""Parts of which tasks are composed: `from mjfleet.parts import Contacts, HeightScan, vary`."""

from mjfleet.parts.contacts import Contacts, add_contacts
from mjfleet.parts.rays import HeightScan, Rays, grid, lidar
from mjfleet.parts.variation import vary

__all__ = ["Contacts", "HeightScan", "Rays", "add_contacts", "grid", "lidar", "vary"]
