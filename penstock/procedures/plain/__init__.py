"""Procedures and workflows that run in Python."""
