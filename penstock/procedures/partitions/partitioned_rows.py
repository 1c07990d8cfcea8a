"""Rows in several partitions, look-ups in their indexes, and tables gathered at the coordinator.

H-Store replicates a secondary index on all partitions, so that a look-up finds the partition (H-Store
§3.4.1). In Penstock all partitions are in the memory of one process, and no partition changes while a call is
divided among partitions. So a look-up reads the index of each partition, and there are no copies.

A transaction over several partitions locks them all (H-Store §3.3). If many transactions need several
partitions, it takes too long to move their rows to the coordinator and back with each call. Then it is faster
to run all transactions at the coordinator. So all rows of the tables stay at the coordinator, until most
transactions need only one partition again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import _clock
from penstock.operators.update_stream.stream import concat
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.rows import TableRows, numpy_column
from penstock.procedures.schema import Column
from penstock.procedures.texts import Numbers

__all__ = ["GatheredTables", "PartitionedRows", "find_rows"]

MOVE_COST = 16
"""The cost of a transaction over several partitions: the time that its rows take to move there and back.

The unit is the time that partitions save for each single-partition transaction. With this cost, tables are
gathered if more than 6 % of transactions need several partitions.
"""
MIN_MOVES_TO_GATHER = 1 << 14
"""Tables with fewer rows are gathered or scattered as if they had this many rows, so that moves are rare."""


class GatheredTables:
    """The tables whose rows are all at the coordinator.

    Parameters
    ----------
    partitions : sequence of TableSet
        The tables of each partition.
    coordinator : TableSet
        The tables of the coordinator.
    placements : mapping
        The placements of partitioned tables.

    Attributes
    ----------
    names : set of str
        The tables that are gathered.
    min_moves : int
        See `MIN_MOVES_TO_GATHER`, the default.
    limit : int
        The debt at which tables are gathered; see `choose`.
    move_s : dict
        The seconds that the last move of each table took.
    moved_s : float
        The seconds that all moves took together.
    """

    def __init__(
        self, partitions: Sequence[TableSet], coordinator: TableSet, placements: Mapping[str, Placement]
    ) -> None:
        self._partitions, self._coordinator, self._placements = partitions, coordinator, placements
        self._debt = 0.0
        self.names: set[str] = set()
        self.limit = self.min_moves = MIN_MOVES_TO_GATHER
        self.move_s, self.moved_s = dict[str, float](), 0.0

    def choose(
        self,
        names: Collection[str],
        single: int,
        several: int,
        *,
        knows_rows: bool,
        debt: float | None = None,
    ) -> bool:
        """Gather or scatter tables if that saves time; return whether transactions run over gathered tables.

        Each transaction over several partitions adds its cost to a debt, and each single-partition
        transaction subtracts 1. Tables are gathered once the debt reaches their number of rows. Their rows
        move back (`scatter`) once the debt is 0.

        Parameters
        ----------
        names : collection of str
            The partitioned tables that the transactions access.
        single, several : int
            The numbers of transactions that need one partition and that need several.
        knows_rows : bool
            Whether the rows that the transactions need are known. Otherwise all rows of their tables would
            move.
        debt : float, optional
            The change of the debt. By default it is computed with `MOVE_COST`.
        """
        if not names:
            return False
        self._debt = max(self._debt + (MOVE_COST * several - single if debt is None else debt), 0)
        if several or self.names:
            rows = sum(
                len(part[name])
                for part in (*self._partitions, self._coordinator)
                for name in self._placements
            )
            self.limit = max(rows, self.min_moves)
            self._debt = self.limit if several and not knows_rows else min(self._debt, self.limit)
            if not self._debt:
                self.scatter()
            elif self._debt == self.limit or not self.names.isdisjoint(names):
                self._move_all(set(names) - self.names, self._partitions, [self._coordinator])
                self.names |= set(names)
        return not self.names.isdisjoint(names)

    def scatter(self, only_for: Collection[str] | None = None) -> None:
        """Move all gathered rows back to their partitions.

        If `only_for` is given but names no gathered table, no row moves.
        """
        if not self.names or (only_for is not None and self.names.isdisjoint(only_for)):
            return
        self._move_all(self.names, [self._coordinator], self._partitions)
        self.names, self._debt = set(), 0.0

    def _move_all(
        self, names: Collection[str], sources: Sequence[TableSet], targets: Sequence[TableSet]
    ) -> None:
        for name in names:
            begin = _clock.monotonic_s()
            self._move(name, sources, targets)
            self.move_s[name] = _clock.monotonic_s() - begin
            self.moved_s += self.move_s[name]

    def _move(self, name: str, sources: Sequence[TableSet], targets: Sequence[TableSet]) -> None:
        """Move all rows of a table, and its changes since the last version."""
        deltas = [source[name].delta() for source in sources]
        moved = {
            "rows": concat([source[name].table() for source in sources]),
            **{
                part: concat([delta[f"{name}/{part}"] for delta in deltas])
                for part in ("upserts", "tombstones")
            },
        }
        shares = [
            [rows] if len(targets) == 1 else self._placements[name].split(rows) for rows in moved.values()
        ]
        for target, rows, upserts, tombstones in zip(targets, *shares, strict=True):
            target.clear(name)
            if rows.num_rows:
                target[name].fill(rows)
            target[name].mark(upserts, tombstones)
        for source in sources:
            source.clear(name)


class PartitionedRows:
    """A table whose rows are in several partitions.

    Parameters
    ----------
    parts : sequence of TableRows
        The rows of each partition.
    """

    def __init__(self, parts: Sequence[TableRows]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self._parts))

    def table(self) -> pa.RecordBatch:
        """Return all rows, in no particular order."""
        return self.freeze()()

    def freeze(self) -> Callable[[], pa.RecordBatch]:
        """Copy the rows; see `TableRows.freeze`."""
        copies = [part.freeze() for part in self._parts]
        return lambda: concat([convert() for convert in copies])

    def upsert(self, rows: pa.RecordBatch, *, dirty: bool) -> None:
        """Insert or replace rows of a table that is in only one partition."""
        (part,) = self._parts
        part.upsert(rows, dirty=dirty)


def find_rows(
    parts: Sequence[TableSet], table: str, index: Sequence[str], values: Sequence[pa.Array[Any]]
) -> tuple[Numbers, pa.RecordBatch]:
    """Return the rows that an index finds in all partitions.

    Parameters
    ----------
    parts : sequence of TableSet
        The tables of each partition.
    table : str
        The name of the table.
    index : sequence of str
        The columns of the index.
    values : sequence of pyarrow.Array
        For each column, the values to look up.

    Returns
    -------
    starts : ndarray
        For each value, the position of its first row in `rows`; the last element is the number of rows.
    rows : pyarrow.RecordBatch
        The found rows, in the order of the values.
    """
    events: list[Numbers] = []
    rows: list[pa.RecordBatch] = []
    for part in parts:
        columns = [part[table].spec.column(name) for name in index]
        numbers = [_numbers(part, column, one) for column, one in zip(columns, values, strict=True)]
        exists = np.logical_and.reduce([known for _, known in numbers])
        found, slots = part[table].trees.find(index, [one for one, _ in numbers], exists)
        events.append(found)
        rows.append(part[table].rows_at(slots))
    joined = np.concatenate(events)
    counts = np.bincount(joined, minlength=len(values[0]))
    order = np.argsort(joined, kind="stable")
    return np.concatenate([[0], np.cumsum(counts)]), concat(rows).take(pa.array(order))


def _numbers(
    part: TableSet, column: Column, values: pa.Array[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Convert values to the form that a partition stores; also return a mask of the values it may contain."""
    if column.kind.is_interned:
        numbers = part.texts.known_numbers(values)
        return numbers, numbers >= 0
    found, null = numpy_column(column, values, part.texts)
    return found, ~null
