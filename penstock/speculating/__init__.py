"""Speculate: run transactions in partitions that wait for a transaction over several (H-Store §6)."""
