"""Requests: calls of procedures that a stream of transactions runs beside its events (S-Store §2.3)."""
