"""Shared parts of legged robots' tasks: docs/tasks.md, "A legged robot of your own".

`config` is light; the other modules run in a worker, and in every command that steps a task.
"""
