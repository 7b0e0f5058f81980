"""`mjfleet bench`: how fast training is here, beside what the engine and other stacks reach.

`throughput_child` runs in child processes; the others import nothing heavy.
"""
