"""Streams between the procedures of a workflow (S-Store §3.2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.ddl import parse_schema, schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures.schema import Column, columns_of

__all__ = ["StreamSpec"]


@dataclass(frozen=True)
class StreamSpec:
    """A stream as it is declared: what a procedure emits into it is the event of the next one.

    Parameters
    ----------
    name : str
        Its name, an identifier of Python.
    columns : tuple of Column
        Its columns.
    """

    name: str
    columns: tuple[Column, ...]

    @staticmethod
    def of(name: str, ddl: str) -> StreamSpec:
        """Return a stream as a user declares it.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable.
        """
        columns = columns_of(parse_schema(ddl), of=name, lists=False)
        if not columns:
            raise InvalidUsageError("a stream has no columns", stream=name)
        return StreamSpec(name, columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.name for one in self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return pa.schema([pa.field(one.name, one.type, one.nullable) for one in self.columns])

    def to_json(self) -> dict[str, Any]:
        """Return its declaration, for digests."""
        return {"name": self.name, "columns": schema_text(self.schema)}
