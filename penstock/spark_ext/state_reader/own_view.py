"""The tables of user-defined operators as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock._clock import Clock
from penstock.checkpointing import PUnit
from penstock.operators.own.abc import Operator
from penstock.operators.own.state import OperatorState, stored_schemas
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.state_reader.state_view import Stored, displayed_schema, one_of_tables

__all__ = ["OwnView", "StoredTables", "own_view"]


class StoredTables(Operator):
    """Stands in for the operator, whose class is not needed to read its tables."""

    output = ""

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Do nothing: the state holds the tables."""

    def run(self, batch: pa.Table, clock: Clock) -> pa.Table:
        """Return the rows; never called."""
        return batch

    def snapshot(self) -> dict[str, pa.Table]:
        """Return nothing; never called."""
        return {}


@dataclass(frozen=True)
class OwnView:
    """A table of a user-defined operator, as a `StateView`.

    Parameters
    ----------
    table : str
        The table.
    schema : StructType
        See `StateView`.
    """

    table: str
    schema: StructType

    def new_state(self) -> OperatorState:
        """Return an empty state; see `StateView`."""
        return OperatorState(StoredTables())

    def rows(self, state: OperatorState, unit: PUnit) -> list[pa.Array[Any]] | None:
        """Return the rows of the table; see `StateView`."""
        block = unit.blocks.get(self.table)
        if block is None or not block.num_rows:
            return None
        # The operator's code may have changed since some buckets ran, so a bucket may lack new columns.
        return [
            block.column(name) if name in block.schema.names else pa.nulls(block.num_rows)
            for name in self.schema.names[2:]
        ]


def own_view(stored: Stored, table: str | None) -> OwnView:
    """Return the view of a table.

    Raises
    ------
    InvalidUsageError
        If there is no such table, or there are several tables and none is named.
    """
    schemas = stored_schemas(stored.unit)
    chosen = one_of_tables(list(schemas), table, of="an operator")
    return OwnView(chosen, displayed_schema(list(spark_schema(schemas[chosen]))))
