"""Check the input columns of transactions over a stream, and make their output columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.ddl import type_text
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.update_stream.cast import fits
from penstock.procedures.compiler.program import PlainProgram, Program, event_schema, result_schema
from penstock.procedures.procedure import Procedure
from penstock.procedures.workflows.batches import batch_bounds, check_batches
from penstock.procedures.workflows.workflow import Workflow

__all__ = ["ANY_ORDER", "ResultRows", "batch_column", "program_for", "transaction_schema"]

ANY_ORDER = "any"
"""With this order, transactions may run in any order. The results show in which order they ran."""

_OURS = (pa.field("bucket", pa.int32()), pa.field("transaction", pa.int64()))
_PLACE = (pa.field("batch", pa.int64()), pa.field("forwarded", pa.bool_()))


def program_for(procedure: Procedure | Workflow, schema: pa.Schema) -> Program | PlainProgram:
    """Return the program of a procedure or a workflow over a stream with these columns.

    Raises
    ------
    InvalidUsageError
        If the procedure does not compile for these columns, or a column and the event's attribute of its name
        have different types.
    """
    if not isinstance(procedure, Procedure | Workflow):
        raise InvalidUsageError(
            "this is not a procedure or workflow",
            got=type(procedure).__name__,
            hint="use @database.procedure or database.workflow(...)",
        )
    program = procedure.program(_plain_types(schema))
    for field in event_schema(program.event):
        if not fits(schema.field(field.name).type, field.type):
            raise InvalidUsageError(
                "a column has another type than the event",
                column=field.name,
                type=schema.field(field.name).type,
                declared=field.type,
                hint="cast it",
            )
    return program


def batch_column(
    program: Program | PlainProgram, schema: pa.Schema, batch: str | int | None
) -> tuple[str, ...]:
    """Return the column that separates atomic batches, or an empty tuple if no column does.

    Raises
    ------
    InvalidUsageError
        If there is no such column, its values cannot be compared, or the program takes no batches.
    """
    if batch is None:
        return ()
    check_batches(program)
    if not isinstance(batch, str):
        return ()
    if batch not in schema.names:
        raise InvalidUsageError(
            "there is no such column", column=batch, hint=did_you_mean(batch, schema.names)
        )
    batch_bounds(pa.nulls(0, schema.field(batch).type), batch)
    return (batch,)


def transaction_schema(
    program: Program | PlainProgram,
    schema: pa.Schema,
    keep: Sequence[str],
    time: str | None,
    order: str = "arrival",
) -> pa.Schema:
    """Return the schema of the results.

    Raises
    ------
    InvalidUsageError
        If a column is missing, two columns of the result have the same name, or the type of `time` cannot be
        ordered.
    """
    for name in (*keep, *([time] if time is not None else [])):
        if name not in schema.names:
            raise InvalidUsageError(
                "there is no such column", column=name, hint=did_you_mean(name, schema.names)
            )
    place = _PLACE if order == ANY_ORDER else ()
    result = pa.schema([*_OURS, *place, *(schema.field(name) for name in keep), *result_schema(program)])
    if twice := sorted({name for name in result.names if result.names.count(name) > 1}):
        raise InvalidUsageError(
            "two columns of the result have the same name",
            columns=twice,
            hint="rename a column of keep= or returns=",
        )
    if time is not None:
        kind = schema.field(time).type
        orderable = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_signed_integer, pa.types.is_null)
        if not any(is_known(kind) for is_known in orderable):
            raise InvalidUsageError(
                "a column of this type cannot be the time",
                column=time,
                type=type_text(kind),
                hint="use a timestamp, date or signed integer",
            )
    return result


@dataclass(frozen=True)
class ResultRows:
    """Makes rows of results, with the columns of `transaction_schema`.

    Parameters
    ----------
    keep : tuple of str
        The columns of events to add to the results.
    order : str
        The order of transactions.
    """

    keep: tuple[str, ...]
    order: str = "arrival"

    def fill(
        self,
        buckets: pa.Array,
        numbers: pa.Array,
        events: pa.RecordBatch,
        results: pa.RecordBatch,
        *,
        batch: int,
        forwarded: bool,
    ) -> pa.RecordBatch:
        """Return the results of transactions, each with its bucket and its number in the bucket.

        Parameters
        ----------
        buckets, numbers : pyarrow.Array
            The bucket of each transaction, and the transaction's number in the bucket.
        events, results : pyarrow.RecordBatch
            The event of each transaction, and its results.
        batch : int
            The number of the micro-batch.
        forwarded : bool
            Whether the transactions were forwarded.
        """
        arrays, names = [buckets, numbers], [field.name for field in _OURS]
        if self.order == ANY_ORDER:
            arrays += [pa.repeat(pa.scalar(one, field.type), len(numbers))
                       for one, field in zip((batch, forwarded), _PLACE, strict=True)]  # fmt: skip
            names += [field.name for field in _PLACE]
        arrays += [*(events.column(name) for name in self.keep), *results.columns]
        return pa.RecordBatch.from_arrays(arrays, [*names, *self.keep, *results.schema.names])


def _plain_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the types that an event declares, such as string for large strings."""
    return pa.schema([
        field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field for field in schema
    ])  # fmt: skip
