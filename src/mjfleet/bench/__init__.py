"""`mjfleet bench`: how fast training is here, beside what the engine and other stacks reach.

`built_task`, `*_child` and `*_driver` run in child processes; the others import nothing heavy.
"""
