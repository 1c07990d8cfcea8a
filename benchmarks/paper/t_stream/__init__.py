"""Figures of the TStream paper, from our own runs (TStream §VI)."""
