"""Base of the views of all kinds of stored state; see `penstock.spark_ext.state_reader.read_state`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, IntegerType, LongType, StructField, StructType

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import RESERVED_PREFIX, SOURCE_COLUMN, to_times
from penstock.spark_ext.border.spark_versions import as_arrow_schema
from penstock.state_store.bucket_store import State
from penstock.units import NEVER

__all__ = ["NEVER", "Ours", "StateView", "Stored", "displayed_schema", "numbers", "one_of_tables", "to_times"]


class StateView(Protocol):
    """Shows the state of one operator as rows. The driver makes this object and sends it to workers.

    Attributes
    ----------
    schema : StructType
        The columns of the rows; the first two are the bucket and its version.
    """

    @property
    def schema(self) -> StructType:
        """The columns of the rows; the first two are the bucket and its version."""

    def new_state(self) -> State:
        """Return an empty state, to be restored."""

    def rows(self, state: Any, unit: PUnit) -> list[pa.Array[Any]] | None:
        """Return the rows of a unit of the `state`'s snapshot, from the third column on; None if empty.

        The types must be such that Arrow can cast them safely to the types of `schema`.
        """


class Ours(NamedTuple):
    """A column that Penstock adds; renamed if the stream has a column of this name, ignoring case."""

    name: str
    kind: DataType


def displayed_schema(columns: Sequence[StructField | Ours]) -> StructType:
    """Return the columns of a view, after bucket and version."""
    names = {column.name.lower() for column in columns if isinstance(column, StructField)}
    fields = []
    for column in (Ours("bucket", IntegerType()), Ours("version", LongType()), *columns):
        if isinstance(column, Ours):
            name = f"{RESERVED_PREFIX}{column.name}" if column.name.lower() in names else column.name
            fields.append(StructField(name, column.kind))
        else:
            fields.append(StructField(column.name, column.dataType))
    return StructType(fields)


def one_of_tables(tables: Sequence[str], table: str | None, *, of: str) -> str:
    """Return the table of an operator to show.

    Raises
    ------
    InvalidUsageError
        If there is no such table, or there are several tables and none is named.
    """
    if table is None and len(tables) == 1:
        return tables[0]
    if table in tables:
        return str(table)
    raise InvalidUsageError(
        "the state has several tables" if table is None else "the state has no such table",
        operator=of,
        table=table,
        tables=list(tables),
        hint="choose one with table=",
    )


@dataclass(frozen=True)
class Stored:
    """The driver's view of a stored operator.

    Parameters
    ----------
    specification : mapping
        The operator's specification.
    look : callable
        Returns the newest unit of any bucket, without its chain; None if nothing is stored yet.
    large : bool
        Whether Spark uses wide offsets for text.
    """

    specification: Mapping[str, Any]
    look: Callable[[], PUnit | None]
    large: bool

    @cached_property
    def unit(self) -> PUnit:
        """The newest unit of some bucket.

        Raises
        ------
        InvalidUsageError
            If nothing is stored yet.
        """
        unit = self.look()
        if unit is None:
            raise InvalidUsageError("the types of the columns are unknown until something is stored")
        return unit

    def columns(self, texts: Sequence[str], *blocks: str) -> StructType:
        """Parse the columns in `texts`, each "name type", where the type is in Spark's notation.

        Parameters
        ----------
        texts : sequence of str
            The output of `penstock.spark_ext.worker.stateful.columns_of`.
        *blocks : str
            The blocks that have these columns.
        """
        fields = [_column(text) for text in texts]
        if None not in fields:
            return StructType([field for field in fields if field is not None])
        # Some texts cannot be parsed, because names within structs are not quoted. Use the blocks' types.
        stored = [
            field
            for name in blocks
            for field in from_arrow_schema(self.unit.blocks[name].schema, prefer_timestamp_ntz=True)
            if field.name == SOURCE_COLUMN or not field.name.startswith(RESERVED_PREFIX)
        ]

        placed: dict[int, StructField] = {}
        # Names may have spaces, so a text may also match a shorter name.
        for field in sorted(stored, key=lambda field: -len(field.name)):
            fitting = (i for i, text in enumerate(texts) if text.startswith(f"{field.name} "))
            placed[next(i for i in fitting if i not in placed)] = field
        return StructType([placed[i] for i in sorted(placed)])

    def arrow(self, columns: StructType) -> pa.Schema:
        """Return the Arrow types of columns from Spark."""
        return as_arrow_schema(columns, large=self.large)


def _column(text: str) -> StructField | None:
    """Return the column in "name type"; None if the type cannot be parsed. Names may have spaces."""
    for name, rest in _cuts(text):
        try:
            kind = DataType.fromDDL(rest)
        except PySparkException:
            continue
        # Spark parses a text of two words as a table with one column, not as a type.
        if not isinstance(kind, StructType) or rest.startswith("struct<"):
            return StructField(name, kind)
    return None


def _cuts(text: str) -> Iterator[tuple[str, str]]:
    at = text.find(" ")
    while at >= 0:
        yield text[:at], text[at + 1 :]
        at = text.find(" ", at + 1)


def numbers(values: npt.NDArray[Any], nothing: float = NEVER) -> pa.Array[Any]:
    """Return numbers, with null in place of `nothing`."""
    return pa.array(values, mask=values == nothing)
