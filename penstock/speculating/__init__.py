"""Speculate: run transactions in partitions that wait for a multi-partition transaction (H-Store §6)."""
