"""Copies of queries: state and checkpoint."""
