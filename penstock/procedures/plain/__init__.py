"""Procedures and workflows as Python runs them."""
