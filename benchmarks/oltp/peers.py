"""Databases beside Penstock: their tables, and the interface that the report uses.

A decimal is its digits as an integer and a time is microseconds, in every peer and in comparisons, so no
peer pays for decimal arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.programs.oltp import OltpBenchmark
from penstock.procedures.schema import IndexSpec, Kind, TableSpec

__all__ = ["EmbeddedPeer", "Peer", "Row", "Rows", "plain_columns", "plain_rows", "schema_texts"]

Row = tuple[Any, ...]
Rows = list[Row]


class Peer(ABC):
    """A database with the first rows of a benchmark."""

    @abstractmethod
    def run(self, events: Rows, group: int) -> Rows:
        """Run requests, a durable commit for each `group` of them; return each result with its rejection."""

    @abstractmethod
    def tables(self) -> dict[str, Rows]:
        """Return the rows of all tables, in the order of their keys."""

    @abstractmethod
    def close(self) -> None:
        """Stop it."""


class EmbeddedPeer(Peer):
    """A database in this process, with one connection."""

    _benchmark: OltpBenchmark
    _db: Any

    def tables(self) -> dict[str, Rows]:
        return {
            name: self._db.execute(f"SELECT * FROM {name} ORDER BY {', '.join(spec.key)}").fetchall()
            for name, spec in self._benchmark.database.tables.items()
        }

    def close(self) -> None:
        self._db.close()


def _plain_column(column: pa.ChunkedArray | pa.Array[Any]) -> list[Any]:
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    if pa.types.is_decimal(array.type):
        words = np.frombuffer(array.buffers()[1], np.int64)[
            2 * array.offset : 2 * (array.offset + len(array))
        ]
        array = pa.array(words[::2], mask=array.is_null().to_numpy(zero_copy_only=False))
    values: list[Any] = array.to_pylist()
    return values


def plain_columns(rows: pa.Table | pa.RecordBatch) -> list[list[Any]]:
    """Return the values of each column as the peers have them."""
    return list(map(_plain_column, rows.columns))


def plain_rows(rows: pa.Table | pa.RecordBatch) -> Rows:
    """Return rows as the peers have them."""
    return list(zip(*plain_columns(rows), strict=True))


def _create(spec: TableSpec) -> str:
    kinds = {Kind.TEXT: "text", Kind.BOOLEAN: "boolean"}
    columns = [
        f"{column.name} {kinds.get(column.kind, 'bigint')}{'' if column.nullable else ' NOT NULL'}"
        for column in spec.columns
    ]
    return f"CREATE TABLE {spec.name} ({', '.join(columns)}, PRIMARY KEY ({', '.join(spec.key)}))"


def _index(spec: TableSpec, index: IndexSpec, number: int) -> str:
    words = ", ".join(word.name for word in index.words)
    return f"CREATE INDEX {spec.name}_{number} ON {spec.name} ({words})"


def schema_texts(benchmark: OltpBenchmark) -> tuple[list[str], list[str]]:
    """Return the statements that make the tables, and those that make their indexes."""
    specs: Sequence[TableSpec] = tuple(benchmark.database.tables.values())
    indexes = [
        _index(spec, index, number) for spec in specs for number, index in enumerate(spec.indexes)
        if index.columns != spec.key[: len(index.columns)]
    ]  # fmt: skip
    return [_create(spec) for spec in specs], indexes
