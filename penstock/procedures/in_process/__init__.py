"""Databases in one process: their tables in memory, and the command log of those in a directory."""
