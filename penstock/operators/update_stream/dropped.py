"""Tuples that operators drop, each with the reason and the first time that would not have been late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import Integers, UpdateStream, to_times
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec

__all__ = ["DUPLICATE", "LATE", "REASON", "SIDE", "WATERMARK", "DroppedForm", "DroppedTuples", "order_ties"]

REASON, WATERMARK, SIDE = "reason", "watermark", "side"
"""The columns that are added to dropped rows; `SIDE` only in joins."""

LATE, DUPLICATE = "late", "duplicate"
"""The reasons for dropping tuples. Rows without a key or a time have other reasons."""


@dataclass(frozen=True, slots=True)
class DroppedTuples:
    """Tuples that were dropped for one reason.

    Attributes
    ----------
    rows : pyarrow.RecordBatch
        The tuples.
    reason : str
        `LATE` or `DUPLICATE`.
    missed : int64 array or None
        For each late tuple, the first time that would not have been late, as an integer (see `as_int64`).
    """

    rows: pa.RecordBatch
    reason: str
    missed: Integers | None = None

    @staticmethod
    def choose(
        rows: pa.RecordBatch, chosen: Any, reason: str, missed: Integers | None = None
    ) -> list[DroppedTuples]:
        """Return the rows where a mask is true, as a list of one element; an empty list if there are none."""
        if not chosen.any():
            return []
        kept = rows.filter(pa.array(chosen))
        return [DroppedTuples(kept, reason, None if missed is None else missed[chosen])]


@dataclass(frozen=True)
class DroppedForm:
    """The form in which an operator writes dropped rows. The driver creates it; workers use it.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns of the rows, `REASON`, `WATERMARK`, and `SIDE` for a join. All columns may be null.
    """

    schema: pa.Schema

    def fill(
        self,
        rows: pa.RecordBatch,
        reasons: str | pa.Array[Any],
        missed: Integers | None = None,
        side: str = "",
    ) -> pa.RecordBatch:
        """Return rows in this form. Columns that the rows lack are null."""
        count = rows.num_rows
        given: dict[str, pa.Array[Any]] = dict(zip(rows.schema.names, rows.columns, strict=True))
        given[REASON] = pa.repeat(pa.scalar(reasons), count) if isinstance(reasons, str) else reasons
        if side:
            given[SIDE] = pa.repeat(pa.scalar(side), count)
        if missed is not None:
            given[WATERMARK] = to_times(missed, self.schema.field(WATERMARK).type)
        columns = [
            given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def fill_all(self, dropped: Iterable[DroppedTuples], side: str = "") -> list[pa.RecordBatch]:
        """Return tuples in this form; see `fill`."""
        return [self.fill(one.rows, one.reason, one.missed, side) for one in dropped]


def order_ties(stream: UpdateStream, arrivals: Arrivals) -> Arrivals:
    """Return arrivals whose positions do not depend on how Spark divides a micro-batch.

    If several tuples have equal key and time, their positions decide which one is kept. So such tuples
    exchange positions until they are in the order of their values; all other tuples keep their positions.
    Then a micro-batch that runs again drops the same tuples.

    Parameters
    ----------
    arrivals : Arrivals
        The arrivals, which are not conflated.
    """
    codec = KeyCodec([*(stream.schema.field(name) for name in stream.key), pa.field("time", pa.int64())])
    times = stream.times(arrivals.rows)
    index = KeyIndex()
    keys = [arrivals.rows.column(name) for name in stream.key]
    ids = index.find_or_add(codec.encode([*keys, pa.array(times)]))
    tied = np.flatnonzero(np.bincount(ids, minlength=len(index))[ids] > 1)
    if not len(tied):
        return arrivals
    columns = _sortable(arrivals.rows.take(pa.array(tied)).columns)
    table = pa.Table.from_arrays(
        [pa.array(ids[tied]), *columns], [f"c{place}" for place in range(len(columns) + 1)]
    )
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    last = arrivals.last.copy()
    by_value = tied[order.to_numpy()]
    by_position = tied[np.lexsort((arrivals.last[tied], ids[tied]))]
    last[by_value] = arrivals.last[by_position]
    return Arrivals(
        arrivals.rows, arrivals.count, arrivals.first, last, arrivals.first_arrival_us, arrivals.tied
    )


def _sortable(columns: Iterable[pa.Array[Any]]) -> list[pa.Array[Any]]:
    """Return columns that Arrow sorts: structs as their fields, lists and maps as texts."""
    found: list[pa.Array[Any]] = []
    for column in columns:
        if pa.types.is_struct(column.type):
            found += [column.is_valid(), *_sortable(column.flatten())]
        elif pa.types.is_nested(column.type) or pa.types.is_null(column.type):
            # Arrow cannot compare lists. Only tuples of equal key and time come here, so this is rare.
            found.append(pa.array([repr(value) for value in column.to_pylist()], pa.string()))
        else:
            found.append(column)
    return found
