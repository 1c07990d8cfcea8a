"""Build the rows of a plan's operators, to run them in this process."""

from penstock.local_engine.builder.builder import Builder, OpenInput
from penstock.local_engine.builder.stateless import Made

__all__ = ["Builder", "Made", "OpenInput"]
