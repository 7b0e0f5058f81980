"""A robot follows clips: docs/tracking.md. `config` is light; the rest runs in a worker."""
