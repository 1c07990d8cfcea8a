"""The trigger intervals of freshness contracts, and their promises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.dataflow.nodes.base import Node, topological
from penstock.dataflow.nodes.stateful import UpdateQueue, UpdateUnion
from penstock.dataflow.nodes.stateless import Materialize
from penstock.dataflow.nodes.window import Window
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.freshness.controller import LONGEST_INTERVAL

__all__ = ["find_longest_interval", "find_promises", "find_trigger_interval"]

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
    limits_us = [contract.tightest_us for contract in _find_contracts(topological(results))]
    return f"{max(int(share * min(limits_us)) // 1000, 1)} ms" if limits_us else None


def find_promises(results: Node) -> dict[str, float]:
    """Return the promised staleness by class, in seconds, of operators after the last p-streams."""
    own: list[Node] = []
    stack = [results]
    while stack:
        node = stack.pop()
        own.append(node)
        stack += [above for above in node.inputs if not isinstance(above, Materialize)]
    return {one.name: one.limit_us / 1e6 for contract in _find_contracts(own) for one in contract.promises}


def _find_contracts(nodes: Iterable[Node]) -> list[FreshnessContract]:
    contracts = [
        node.options.contract for node in nodes if isinstance(node, UpdateQueue | UpdateUnion | Window)
    ]
    return [contract for contract in contracts if contract is not None]
