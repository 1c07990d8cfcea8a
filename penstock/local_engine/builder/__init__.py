"""Build the rows of a plan's operators, to run them in this process."""

from penstock.local_engine.builder.builder import Builder, OpenInput

__all__ = ["Builder", "OpenInput"]
