"""Checkpoints: their files, what they hold, and how training begins from one."""
