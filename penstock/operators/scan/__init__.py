"""Operators that run inside a reader."""
