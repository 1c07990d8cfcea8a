"""Divide the tables of user-defined operators among a new number of buckets, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InternalError, InvalidUsageError
from penstock.operators.own.state import OperatorState, unit_meta
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.state_copy.keyed_units import OldUnits, WrittenState
from penstock.spark_ext.state_copy.query_copy import QueryCopy
from penstock.spark_ext.state_reader.own_view import StoredTables
from penstock.state_store.keys.key_words import KeyCodec, buckets_of

__all__ = ["OwnBuckets", "OwnUnits"]

_ALIKE = (
    ("tinyint", "smallint", "int", "bigint"),
    ("float", "double"),
    ("timestamp", "timestamp_ntz"),
)
"""Groups of Spark types: equal values of types in one group have the same bucket."""


class OwnUnits(OldUnits):
    """The old buckets of a user-defined operator."""

    def _new_state(self) -> OperatorState:
        return OperatorState(StoredTables())

    def blocks(self, bucket: int) -> Mapping[str, pa.RecordBatch]:
        """Return the tables of a bucket by name."""
        units, _ = self.units(bucket)
        return units[0].blocks if units else {}


class OwnBuckets(OwnUnits):
    """The old buckets of a user-defined operator. Each of its tables must have the operator's key.

    Raises
    ------
    InvalidUsageError
        If a table lacks a key column, has a key column of a different type, or has keys that belong to a
        different bucket.
    """

    def __init__(self, copy: QueryCopy, specification: Mapping[str, Any]) -> None:
        super().__init__(copy, specification)
        self._key = list(specification["key"])
        for bucket in self._places:
            for name, block in self.blocks(bucket).items():
                missing = [column for column in self._key if column not in block.schema.names]
                if missing:
                    raise InvalidUsageError(
                        "a table of the operator lacks key columns, so its rows cannot be divided",
                        table=name, missing=missing, hint="keep the operator's key in each of its tables",
                    )  # fmt: skip
                if wrong := self._other_types(block):
                    raise InvalidUsageError(
                        "a table of the operator has keys of other types than its input",
                        table=name, columns=wrong, hint="store the key columns as the input has them",
                    )  # fmt: skip
                if (self._buckets_of(block, self.buckets) != bucket).any():
                    raise InvalidUsageError(
                        "a table of the operator has keys of other buckets, so its rows cannot be divided",
                        table=name, key=self._key, hint="store the key columns as the input has them",
                    )  # fmt: skip

    def _other_types(self, block: pa.RecordBatch) -> list[str]:
        """Return the key columns whose type differs from the input's, so that keys hash to other buckets."""
        fields = [block.schema.field(name) for name in self._key]
        columns = zip(fields, spark_schema(pa.schema(fields)), strict=True)
        inputs = self._specification["schema"]
        return [
            field.name
            for field, column in columns
            if (pa.types.is_timestamp(field.type) and field.type.unit != "us")
            or not any(f"{field.name} {kind}" in inputs for kind in _alike(column.dataType.simpleString()))
        ]

    def _buckets_of(self, block: pa.RecordBatch, buckets: int) -> npt.NDArray[np.int64]:
        codec = KeyCodec([block.schema.field(name) for name in self._key])
        keys = codec.encode([block.column(name) for name in self._key])
        return buckets_of(keys.hashes, buckets)

    def rescale(self, bucket: int, buckets: int) -> WrittenState | None:
        """Return the state of a new bucket; None if it has no rows."""
        parts: dict[str, list[pa.RecordBatch]] = {}
        waits = False
        for units, meta in self.sources(bucket, buckets):
            waits |= bool(meta.get("waiting"))
            for name, block in units[0].blocks.items():
                mine = self._buckets_of(block, buckets) == bucket
                parts.setdefault(name, []).append(block.filter(pa.array(mine)))
        blocks = {name: _concat(name, some) for name, some in parts.items()}
        if not any(block.num_rows for block in blocks.values()):
            return None
        # Only the operator knows how many keys wait. Until it reports the number, after the next micro-batch,
        # 1 stands for it.
        return WrittenState([PUnit("snapshot", unit_meta(blocks, int(waits)), blocks)])


def _concat(name: str, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of a table of several buckets.

    If the operator's code has changed, buckets that have run since the change may have more or wider columns.

    Raises
    ------
    InvalidUsageError
        If no type can hold all values that a column has in the buckets.
    """
    tables = [pa.Table.from_batches([part]) for part in parts]
    try:
        rows = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        column = _misfit(tables)
        held = [one.schema.field(column).type for one in tables if column in one.column_names]
        raise InvalidUsageError(
            "a column of a table has types in several buckets that do not fit together",
            table=name,
            column=column,
            types=sorted({*map(str, held)}),
            hint="run the query with an operator that stores one type in all buckets, then copy again",
        ) from error
    return rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)


def _misfit(tables: list[pa.Table]) -> str:
    """Return the first column that cannot be concatenated."""
    for column in dict.fromkeys(column for one in tables for column in one.column_names):
        parts = [one.select([column]) for one in tables if column in one.column_names]
        try:
            pa.concat_tables(parts, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return column
    raise InternalError("tables cannot be concatenated, but each of their columns can")


def _alike(kind: str) -> tuple[str, ...]:
    return next((kinds for kinds in _ALIKE if kind in kinds), (kind,))
