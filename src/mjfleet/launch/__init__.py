"""From a configuration to running workers, on this host and on others, until they have ended."""
