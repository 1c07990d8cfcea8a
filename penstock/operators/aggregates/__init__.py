"""Aggregates, computed as partials of panes and assembled into windows."""
