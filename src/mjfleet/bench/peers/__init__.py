"""Drivers of other stacks, each in a child process, and the installation of their packages."""
