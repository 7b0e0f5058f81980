"""The run directory: each file in it, and finding runs. Imports nothing heavy."""
