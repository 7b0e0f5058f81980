"""Checks that training is still correct."""
