"""Files, child processes and platform facts: small, and nothing of the domain."""
