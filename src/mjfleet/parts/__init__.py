"""Parts of which tasks are composed: `from mjfleet.parts import Contacts, add_contacts`."""

from mjfleet.parts.contacts import Contacts, add_contacts

__all__ = ["Contacts", "add_contacts"]
