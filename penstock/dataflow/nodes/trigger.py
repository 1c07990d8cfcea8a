"""The trigger intervals and the promised staleness that follow from a graph's freshness contracts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from penstock.dataflow.nodes.base import Node, topological
from penstock.dataflow.nodes.stateful import UpdateQueue, UpdateUnion
from penstock.dataflow.nodes.stateless import Materialize
from penstock.dataflow.nodes.window import Window
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.freshness.controller import LONGEST_INTERVAL

__all__ = ["find_longest_intervals", "find_promises", "find_trigger_interval", "promises_from_arrival"]

_CYCLES_PER_LIMIT: Final = 8
"""The tightest limit of the freshness contracts is this many times a fixed trigger interval."""


def find_trigger_interval(results: Node) -> str | None:
    """Return the trigger interval for Spark Connect, where the interval cannot change while a query runs.

    Return None if there is no contract. Without an interval, micro-batches run back to back, even if a later
    start would be early enough.
    """
    return _as_text(topological(results), 1 / _CYCLES_PER_LIMIT)


def find_longest_intervals(results: Node) -> dict[str, str]:
    """Return the longest trigger interval that controllers choose, by query.

    A query has the name of the p-stream that it writes, or ``results``. Queries without a contract are left
    out.
    """
    queries = {node.name: node for node in topological(results) if isinstance(node, Materialize)}
    longest = {
        name: _as_text(_find_own(node), LONGEST_INTERVAL)
        for name, node in {**queries, "results": results}.items()
    }
    return {name: interval for name, interval in longest.items() if interval is not None}


def _as_text(nodes: Iterable[Node], share: float) -> str | None:
    """Return a trigger interval that is a share of the tightest limit; None if there is no contract."""
    limits_us = [contract.tightest_us for contract in _find_contracts(nodes)]
    return f"{max(int(share * min(limits_us)) // 1000, 1)} ms" if limits_us else None


def find_promises(results: Node) -> dict[str, float]:
    """Return the promised staleness in seconds of each class of keys, by the name of the class.

    Only operators after the last p-streams count. If several contracts have a class with the same name, the
    function returns the smallest limit of these classes.
    """
    limits_s: dict[str, float] = {}
    for contract in _find_contracts(_find_own(results)):
        for promise in contract.promises:
            limits_s[promise.name] = min(promise.limit_us / 1e6, limits_s.get(promise.name, math.inf))
    return limits_s


def promises_from_arrival(results: Node) -> bool:
    """Return whether a contract counts staleness from a column of arrival times, not from the micro-batch."""
    return any(
        node.options.contract is not None and node.options.arrival is not None
        for node in _find_own(results)
        if isinstance(node, UpdateQueue | UpdateUnion)
    )


def _find_own(root: Node) -> list[Node]:
    """Return an operator and the operators above it that the same query runs, up to the next p-streams."""
    own: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        own.append(node)
        stack += [above for above in node.inputs if not isinstance(above, Materialize)]
    return own


def _find_contracts(nodes: Iterable[Node]) -> list[FreshnessContract]:
    contracts = [
        node.options.contract for node in nodes if isinstance(node, UpdateQueue | UpdateUnion | Window)
    ]
    return [contract for contract in contracts if contract is not None]
