"""Requests: calls that a stream of transactions runs in addition to its events (S-Store §2.3)."""
