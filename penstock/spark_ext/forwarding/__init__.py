"""Transactions over several buckets: the second stage of a micro-batch."""
