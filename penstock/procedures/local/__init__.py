"""Compile sets, and calls of other procedures."""
