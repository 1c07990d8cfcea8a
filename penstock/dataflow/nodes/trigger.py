"""The trigger intervals of freshness contracts."""

from __future__ import annotations

from typing import Final

from penstock.dataflow.nodes.base import Node, topological
from penstock.dataflow.nodes.stateful import UpdateQueue, UpdateUnion
from penstock.dataflow.nodes.window import Window
from penstock.operators.freshness.controller import LONGEST_INTERVAL

__all__ = ["find_longest_interval", "find_trigger_interval"]

_CYCLES_PER_LIMIT: Final = 8
"""Number of fixed trigger intervals in the tightest limit of a freshness contract."""


def find_trigger_interval(results: Node) -> str | None:
    """Return a trigger interval for Spark Connect, which is fixed while a query runs.

    None if there is no contract. Without an interval, micro-batches run back to back, even if a later start
    would be early enough.
    """
    return _as_text(results, 1 / _CYCLES_PER_LIMIT)


def find_longest_interval(results: Node) -> str | None:
    """Return the longest trigger interval that a controller chooses; None if there is no contract."""
    return _as_text(results, LONGEST_INTERVAL)


def _as_text(results: Node, share: float) -> str | None:
    """Return a share of the tightest limit."""
    contracts = [
        node.options.contract
        for node in topological(results)
        if isinstance(node, UpdateQueue | UpdateUnion | Window)
    ]
    limits_us = [contract.tightest_us for contract in contracts if contract is not None]
    return f"{max(int(share * min(limits_us)) // 1000, 1)} ms" if limits_us else None
