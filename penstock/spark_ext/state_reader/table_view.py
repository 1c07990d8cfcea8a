"""The tables of transactions as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.checkpointing import PUnit
from penstock.procedures.engine import TableSet
from penstock.procedures.hidden_tables import HIDDEN_TABLES
from penstock.procedures.schema import TableSpec
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.state_reader.state_view import Stored, displayed_schema, one_of_tables

__all__ = ["TableView", "table_view"]


@dataclass(frozen=True)
class TableView:
    """The rows of one table; a `StateView`.

    Parameters
    ----------
    tables : tuple of TableSpec
        All tables of the state.
    table : str
        The table to show.
    schema : StructType
        The columns.
    """

    tables: tuple[TableSpec, ...]
    table: str
    schema: StructType

    @property
    def is_copied(self) -> bool:
        """Return whether each bucket has all rows."""
        return all(spec.partition_by is None for spec in self.tables if spec.name == self.table)

    def new_state(self) -> TableSet:
        """See `StateView.new_state`."""
        return TableSet((*self.tables, *HIDDEN_TABLES))

    def rows(self, state: TableSet, unit: PUnit) -> list[pa.Array[Any]] | None:
        """See `StateView.rows`."""
        block = unit.blocks.get(f"{self.table}/upserts")
        return None if block is None else list(block.columns)


def table_view(stored: Stored, table: str | None) -> TableView:
    """Return the view of a table.

    Raises
    ------
    InvalidUsageError
        If there is no such table, or there are several tables and none is named.
    """
    tables = tuple(TableSpec.from_json(text) for text in stored.specification["tables"])
    chosen = one_of_tables([spec.name for spec in tables], table, of="transactions")
    spec = next(table for table in tables if table.name == chosen)
    return TableView(tables, chosen, displayed_schema(list(spark_schema(spec.schema))))
