"""`mjfleet bench`: how fast training is here, beside what the engine and other stacks reach.

The modules that measure in the launching process import nothing heavy; `rollouts`, `raw` and the
drivers in `peers` run in child processes.
"""
