"""Streams between the procedures of a workflow (S-Store §3.2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.ddl import parse_schema, schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures.schema import RelationSpec, columns_of

__all__ = ["StreamSpec"]


@dataclass(frozen=True)
class StreamSpec(RelationSpec):
    """The declaration of a stream: the rows that one procedure emits are events of the next procedure.

    Parameters
    ----------
    name, columns
        See `RelationSpec`.
    """

    @staticmethod
    def parse(name: str, ddl: str) -> StreamSpec:
        """Make a stream from a user's declaration.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable.
        """
        columns = columns_of(parse_schema(ddl), owner=name, lists=False)
        if not columns:
            raise InvalidUsageError("a stream has no columns", stream=name)
        return StreamSpec(name, columns)

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as JSON values for digests."""
        return {"name": self.name, "columns": schema_text(self.schema)}
