"""Tests. Threads of torch wait without spinning, as in mjfleet's own workers."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
