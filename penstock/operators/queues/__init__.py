"""Queues of update streams."""
