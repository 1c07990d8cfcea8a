"""User-defined operators in graphs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar, TypedDict

import pyarrow as pa

from penstock.dataflow.nodes.base import Node, distinct, find_column
from penstock.errors import InvalidUsageError
from penstock.operators.own.abc import Operator, name_of_operator, output_schema
from penstock.operators.update_stream.operator_options import StateOptions

__all__ = ["Apply", "ApplyArguments"]


class ApplyArguments(TypedDict, total=False):
    """Keyword arguments of user-defined operators; see `penstock.apply`."""

    buckets: int | None
    state_location: str | os.PathLike[str] | None
    retain_versions: int


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """A user-defined operator over a stream.

    Parameters
    ----------
    operator, by, time
        See `operator`, `key` and `time` in `penstock.apply`.
    options : StateOptions
        Other arguments of `penstock.apply`.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "operator"

    operator: Operator
    by: tuple[str, ...]
    time: str | None = None
    options: StateOptions = field(default_factory=StateOptions)

    def _schema(self) -> pa.Schema:
        schema = self.inputs[0].schema
        for name in (*self.by, *([] if self.time is None else [self.time])):
            find_column(self, name, schema)
        if not self.by:
            raise self.wrong("an operator needs a key", "pass the columns whose rows belong together")
        try:
            return distinct(self, output_schema(self.operator))
        except InvalidUsageError as error:
            raise self.wrong(error.fact, error.hint, **error.context) from error

    def _key(self) -> tuple[str, ...]:
        # It is unknown which output rows of a user-defined operator replace other rows.
        return ()

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return all columns."""
        return (frozenset(self.inputs[0].schema.names),)

    def describe(self) -> str:
        """Return the operator's class, its key and the order of rows."""
        order = "" if self.time is None else f", in the order of {self.time}"
        return f"{name_of_operator(self.operator)} by {', '.join(self.by)}{order}"
