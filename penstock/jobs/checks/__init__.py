"""Check a pipeline before it runs."""
