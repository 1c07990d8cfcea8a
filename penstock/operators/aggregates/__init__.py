"""Aggregates: partials of panes, and windows from them."""
