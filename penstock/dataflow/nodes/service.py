"""Checks and descriptions of operators' options: weights, limits, and the destination of late rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.dataflow.nodes.base import Node
from penstock.dataflow.types import UNKNOWN
from penstock.errors import InvalidUsageError
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.update_stream.options import check_by_key, check_weight

__all__ = ["check_weights", "describe_limit", "late_rows"]


def late_rows(late_to: str | os.PathLike[str] | None) -> str:
    """Describe the destination of an operator's late rows; empty if they are not kept."""
    return "" if late_to is None else f", late rows to {os.fspath(late_to)}"


def describe_limit(budget: int | str | None, contract: FreshnessContract | None) -> str:
    """Describe the limit of a micro-batch: a budget, or the contract whose controller sets the budget."""
    if contract is not None:
        return f", {contract.describe()}"
    return "" if budget is None else f", budget {budget}"


def check_weights(
    node: Node, weight: str | Mapping[Any, float] | None, key: Sequence[str] | None = None
) -> None:
    """Check the weights of an operator at its construction.

    Parameters
    ----------
    weight : str or mapping, optional
        A column of the node's input, or weights by key.
    key : sequence of str, optional
        The key, if known.

    Raises
    ------
    InvalidUsageError
        If the column is not numeric, or weights by key do not fit the key.
    """
    try:
        if isinstance(weight, str):
            if (field := node.inputs[0].schema.field(weight)).type != UNKNOWN:
                check_weight(field)
        elif weight is not None and key is not None:
            check_by_key(key, weight)
    except InvalidUsageError as error:
        raise node.wrong(error.fact, error.hint, **error.context) from error
