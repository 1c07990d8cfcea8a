"""Compiled loops of the codecs."""
