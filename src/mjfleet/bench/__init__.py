"""`mjfleet bench`: how fast training is here, beside what the engine and other stacks reach.

`*_child` and `*_driver` run in child processes; the other modules import nothing heavy.
"""
