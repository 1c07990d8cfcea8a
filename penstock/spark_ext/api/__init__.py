"""Functions that users call."""
