"""Atomic batches: events that a workflow takes in one round (S-Store §2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ddl import type_text
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures.schema import Column, Kind, TableSpec

if TYPE_CHECKING:
    from penstock.procedures.compiler.program import PlainProgram, Program
    from penstock.procedures.engine import TableSet

__all__ = [
    "HELD_EVENTS",
    "batch_bounds",
    "bounds_of",
    "check_batches",
    "cut_batches",
    "held_events",
    "hold_events",
]

HELD_EVENTS = TableSpec(
    "held events",  # the space keeps users' tables from having this name
    (
        Column("place", pa.int64(), Kind.INTEGER, nullable=False),
        Column("events", pa.binary(), Kind.BINARY, nullable=False),
    ),
    ("place",),
    None,
)
"""The events of an incomplete atomic batch. The table has one row with an Arrow IPC stream, or no row."""


def check_batches(program: Program | PlainProgram) -> None:
    """Check that a program takes atomic batches.

    Raises
    ------
    InvalidUsageError
        If the program is a procedure.
    """
    if not program.stages:
        raise InvalidUsageError(
            "only a workflow takes batches",
            procedure=program.name,
            hint="make a workflow of the procedure with database.workflow(...)",
        )


def batch_bounds(column: pa.Array[Any], name: str) -> npt.NDArray[np.int64]:
    """Return an array: the position of the first event of each batch, then the number of all events.

    Consecutive events with equal values are one batch.

    Parameters
    ----------
    column : pyarrow.Array
        The value of each event; null counts as a value.
    name : str
        The name of the column, for errors.

    Raises
    ------
    InvalidUsageError
        If values of this type cannot be compared.
    """
    try:
        numbers = column.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError as error:  # only Arrow can tell which types it compares
        raise InvalidUsageError(
            "a column of this type cannot separate batches",
            column=name,
            type=type_text(column.type),
            hint="name a column of numbers, texts or times",
        ) from error
    begins = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return np.concatenate([[0] if len(numbers) else [], begins, [len(numbers)]]).astype(np.int64)


def cut_batches(events: pa.RecordBatch, batch: str | int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the bounds of the complete atomic batches, and the number of their events.

    Parameters
    ----------
    events : pyarrow.RecordBatch
        The next events of a stream; more events follow.
    batch : str or int
        The number of events in each batch, or the column that separates batches. With a column, the last
        batch is incomplete, because the following events may belong to it.
    """
    if isinstance(batch, str):
        bounds = batch_bounds(events.column(batch), batch)[:-1]
    else:
        bounds = np.arange(events.num_rows // batch + 1, dtype=np.int64) * batch
    return bounds, int(bounds[-1]) if len(bounds) else 0


def held_events(state: TableSet) -> pa.RecordBatch | None:
    """Return the stored events of an incomplete batch; None if there are no events."""
    rows = state[HELD_EVENTS.name].table()
    if not rows.num_rows:
        return None
    with pa.ipc.open_stream(rows.column("events")[0].as_buffer()) as reader:
        return reader.read_next_batch()


def hold_events(state: TableSet, events: pa.RecordBatch | None) -> None:
    """Store the events of an incomplete batch; they replace the earlier events."""
    row = None
    if events is not None and events.num_rows:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, events.schema) as writer:
            writer.write_batch(events)
        row = {"place": 0, "events": sink.getvalue().to_pybytes()}
    table = state[HELD_EVENTS.name]
    table.change(*table.to_arrow({(0,): row}), stored=True)


def bounds_of(
    program: Program | PlainProgram, events: pa.Table | pa.RecordBatch, batch: str
) -> npt.NDArray[np.int64]:
    """Return the bounds of the atomic batches of a workflow's events; see `batch_bounds`.

    Raises
    ------
    InvalidUsageError
        If the events have no column `batch`, or the program is not a workflow.
    """
    check_batches(program)
    if batch not in events.schema.names:
        raise InvalidUsageError(
            "there is no such column", column=batch, hint=did_you_mean(str(batch), events.schema.names)
        )
    column = events.column(batch)
    return batch_bounds(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, batch)
