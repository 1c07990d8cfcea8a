"""Build functions that compute the rows of a plan's nodes in this process."""

from penstock.local_engine.builder.builder import Builder, OpenInput
from penstock.local_engine.builder.stateless import NodeRows

__all__ = ["Builder", "NodeRows", "OpenInput"]
