"""Packaged OLTP benchmarks, and the random draws of their generators.

A draw is a hash of a seed, the number of the draw and the number of a row. So every process makes the same
draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.procedures.databases import Database
from penstock.procedures.procedure import Procedure
from penstock.procedures.programs.packaged import Integers, fractions

if TYPE_CHECKING:
    from penstock.procedures.in_process.snapshot import Snapshot

__all__ = ["START", "Draws", "OltpBenchmark", "decimals", "table_of", "times"]

START = 1_600_000_000_000_000
"""The time of the first rows and requests, in microseconds."""


_POOL = 512
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", np.uint8)


@dataclass(frozen=True)
class OltpBenchmark:
    """A benchmark: tables, requests and conditions.

    Attributes
    ----------
    name : str
        The short name of the benchmark.
    summary : str
        The purpose of the transactions.
    database : Database
        The tables and procedures.
    procedure : Procedure
        The procedure that runs each request, whatever its kind.
    full, small : object
        `full` is the scale of one unit of the specification, such as one warehouse of TPC-C; `small` is for
        tests.
    tables : callable
        Maps a scale to the initial rows of each table.
    requests : callable
        Maps a scale, a number of requests and a seed to requests.
    conditions : mapping of str to str
        For each invariant, a query in DuckDB's SQL that returns the rows that violate the invariant.
    """

    name: str
    summary: str
    database: Database
    procedure: Procedure
    full: Any
    small: Any
    tables: Callable[[Any], dict[str, pa.Table]]
    requests: Callable[[Any, int, int], pa.RecordBatch]
    conditions: Mapping[str, str] = field(default_factory=dict)

    def broken_conditions(self, snapshot: Snapshot) -> list[str]:
        """Return the names of the conditions that do not hold."""
        return [name for name, query in self.conditions.items() if snapshot.sql(query).num_rows]


class Draws:
    """Random draws from one seed, numbered in the order of the calls."""

    def __init__(self, seed: int) -> None:
        self._next = seed * 1_000

    def fractions(self, count: int) -> NDArray[np.float64]:
        """Draw numbers from 0 to less than 1."""
        self._next += 1
        return fractions(self._next, count)

    def integers(self, count: int, least: int, most: int) -> Integers:
        """Draw integers from `least` to `most`, both included."""
        return least + (self.fractions(count) * (most - least + 1)).astype(np.int64)

    def texts(
        self, count: int, least: int, most: int, letters: NDArray[np.uint8] = _LETTERS
    ) -> pa.Array[Any]:
        """Draw texts of `least` to `most` letters from a pool of 512 texts."""
        sizes = self.integers(_POOL, least, most)
        drawn = letters[self.integers(int(sizes.sum()), 0, len(letters) - 1)].tobytes().decode()
        ends = np.cumsum(sizes).tolist()
        pool = [drawn[end - size : end] for size, end in zip(sizes.tolist(), ends, strict=True)]
        return pa.array(pool).take(pa.array(self.integers(count, 0, _POOL - 1)))

    def digits(self, count: int, size: int) -> pa.Array[Any]:
        """Draw texts of `size` digits."""
        return self.texts(count, size, size, _LETTERS[-10:])


def decimals(digits: Integers, precision: int, scale: int) -> pa.Array[Any]:
    """Return decimals whose unscaled values are `digits`."""
    # Arrow stores a decimal in 128 bits. The upper 64 bits repeat the sign of the lower 64 bits.
    words = np.stack([digits, digits >> 63], axis=1).astype(np.int64)
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(digits), [None, pa.py_buffer(words)])


def times(count: int) -> Integers:
    """Return a time for each of `count` rows; the times are a millisecond apart."""
    return START + 1_000 * np.arange(count)


def table_of(database: Database, name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Return rows of a table; each column is an array, or one value for all rows."""
    schema = database.tables[name].schema
    rows = max(len(column) for column in columns.values() if isinstance(column, np.ndarray | pa.Array))
    arrays = []
    for column in schema:
        values = columns[column.name]
        if not isinstance(values, np.ndarray | pa.Array):
            values = pa.repeat(pa.scalar(values, column.type), rows)
        array = pa.array(values) if isinstance(values, np.ndarray) else values
        arrays.append(array if array.type == column.type else array.cast(column.type))
    return pa.Table.from_arrays(arrays, schema=schema)
