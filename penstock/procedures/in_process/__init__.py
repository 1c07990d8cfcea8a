"""Databases in one process: their tables in memory. A database in a directory also has a command log."""
