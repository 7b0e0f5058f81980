"""Watching a policy: one loop, and the two displays that show it."""
