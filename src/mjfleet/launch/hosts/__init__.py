"""Connects the launcher with an agent on each host, and asks what the host has."""
