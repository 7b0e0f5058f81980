"""Commands beside training: a folder each, or one file where one is enough."""
