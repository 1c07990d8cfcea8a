"""Texts that look alike, as columns of numbers and words."""
