"""The trigger interval that freshness contracts need."""

from __future__ import annotations

from typing import Final

from penstock.dataflow.nodes.base import Node, topological
from penstock.dataflow.nodes.stateful import UpdateQueue, UpdateUnion
from penstock.dataflow.nodes.window import Window

__all__ = ["find_trigger_interval"]

_CYCLES_PER_LIMIT: Final = 8
"""Number of trigger intervals in the tightest limit of a freshness contract."""


def find_trigger_interval(results: Node) -> str | None:
    """Return a trigger interval that lets freshness contracts hold; None if there is no contract.

    Without an interval, micro-batches run back to back, even if a later start would be early enough.
    """
    contracts = [
        node.options.contract
        for node in topological(results)
        if isinstance(node, UpdateQueue | UpdateUnion | Window)
    ]
    limits_us = [contract.tightest_us for contract in contracts if contract is not None]
    return f"{max(min(limits_us) // (_CYCLES_PER_LIMIT * 1000), 1)} ms" if limits_us else None
