"""How an operator serves keys: its arguments are checked when a graph is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import InvalidUsageError
from penstock.operators.graph.nodes.base import Node
from penstock.operators.graph.types import UNKNOWN
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.options import budget_of, check_by_key, check_weight, cost_of, weight_of

__all__ = ["POLICIES", "check_service"]

POLICIES: Final = tuple(map(str, Policy))


def check_service(
    node: Node,
    *,
    budget: Any = None,
    cost: Any = None,
    weight: Any = None,
    key: Sequence[str] | None = None,
    timed: bool = True,
) -> None:
    """Refuse what would be refused when the graph starts.

    Parameters
    ----------
    budget, cost, weight
        As of `penstock.update_queue`; a column of weights is one of the node's input.
    key : sequence of str, optional
        The key, where it is known, for weights by key.
    timed : bool
        As of `budget_of`.

    Raises
    ------
    InvalidUsageError
        If one of them is wrong.
    """
    try:
        budget_of(budget, timed=timed)
        cost_of(cost)
        name, by_key = weight_of(weight)
        if name is not None and (field := node.inputs[0].schema.field(name)).type != UNKNOWN:
            check_weight(field)
        if by_key is not None and key is not None:
            check_by_key(key, by_key)
    except InvalidUsageError as error:
        raise node.wrong(error.fact, error.hint, **error.context) from error
