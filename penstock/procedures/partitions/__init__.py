"""Partitions of a database in one process: threads that share no rows (H-Store §3.1)."""
