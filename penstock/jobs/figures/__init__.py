"""The figures of ``penstock simulate``."""
