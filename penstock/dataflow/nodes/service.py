"""Checks and descriptions of operators' options: weights, limits, and the destination of late rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.dataflow.nodes.base import Node
from penstock.errors import InvalidUsageError
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.types import UNKNOWN
from penstock.operators.update_stream.options import check_by_key, check_weight

__all__ = ["check_weights", "describe_late_rows", "describe_limit"]


def describe_late_rows(late_to: str | os.PathLike[str] | None) -> str:
    """Describe the destination of an operator's late rows; return no text if late rows are dropped."""
    return "" if late_to is None else f", late rows to {os.fspath(late_to)}"


def describe_limit(budget: int | str | None, contract: FreshnessContract | None) -> str:
    """Describe the limit of a micro-batch: a budget, or the contract whose controller sets the budget."""
    if contract is not None:
        return f", {contract.describe()}"
    return "" if budget is None else f", budget {budget}"


def check_weights(
    node: Node, weight: str | Mapping[Any, float] | None, key: Sequence[str] | None = None
) -> None:
    """Check an operator's weights when the operator is constructed.

    Parameters
    ----------
    weight : str or mapping, optional
        The column of the node's input that holds the weights, or a mapping from key values to weights.
    key : sequence of str, optional
        The key's columns, if they are known.

    Raises
    ------
    InvalidUsageError
        If the column is not numeric, a weight in a mapping is not a positive number, or a mapping is given
        for a key that does not have exactly one column.
    """
    try:
        if isinstance(weight, str):
            if (field := node.inputs[0].schema.field(weight)).type != UNKNOWN:
                check_weight(field)
        elif weight is not None and key is not None:
            check_by_key(key, weight)
    except InvalidUsageError as error:
        raise node.wrong(error.fact, error.hint, **error.context) from error
