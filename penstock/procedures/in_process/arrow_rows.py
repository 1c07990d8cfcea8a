"""Convert the rows that a caller passes to batches of a schema."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ddl import type_text
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.cast import cast_to_schema

__all__ = ["arrow_errors", "as_arrow", "as_structs", "batches_of", "check_named", "check_text", "find_unheld"]

_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""The errors that Arrow raises if a value does not fit a type."""

_ROUNDING = 1e-15
"""The relative error of a conversion between a decimal and the float that is nearest to it."""
_FLOAT_MAX = 3.4028234663852886e38
"""The greatest finite float of 32 bits."""


def as_arrow(rows: pa.Table | pa.RecordBatch | Mapping[str, Any], *, owner: str) -> pa.Table | pa.RecordBatch:
    """Return rows as Arrow; `owner` names them in errors."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    if not isinstance(rows, Mapping):
        raise InvalidUsageError(
            "rows of this type are not supported",
            of=owner,
            got=type(rows).__name__,
            hint="pass a pyarrow.Table, a pyarrow.RecordBatch, or a dict of columns",
        )
    arrays = {}
    for name, values in rows.items():
        # Arrow would take the characters of a text as values.
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidUsageError(
                "a column is not a list of values",
                of=owner,
                column=name,
                type=type(values).__name__,
                hint="pass a list with a value for each row",
            )
        with arrow_errors(owner, column=str(name)):
            arrays[name] = pa.array(values)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len({*lengths.values()}) > 1:
        raise InvalidUsageError("the columns differ in length", of=owner, lengths=lengths)
    return pa.table(arrays)


@contextlib.contextmanager
def arrow_errors(owner: str, **context: Any) -> Iterator[None]:
    """Raise `InvalidUsageError` for values that Arrow cannot hold in an array.

    Arrow's own message is only in the error's cause, because it may contain a user's value.
    """
    try:
        yield
    except _MISFITS as error:
        raise InvalidUsageError("a column does not fit", of=owner, **context) from error


def as_structs(events: Sequence[Mapping[str, Any]], *, owner: str) -> pa.StructArray:
    """Convert events to structs; all events have the same attributes. `owner` names the events in errors."""
    try:
        return pa.array(events)
    except _MISFITS as error:
        raise InvalidUsageError("a column does not fit", of=owner, **find_unheld(events)) from error


def find_unheld(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the first attribute whose values Arrow cannot hold, as the context of an error."""
    for name in events[0]:
        values = [event.get(name) for event in events]
        try:
            pa.array([{name: value} for value in values])
        except _MISFITS:
            types = ", ".join(sorted({type(value).__name__ for value in values}))
            hint = "integers are from -2^63 to 2^63 - 1" if types == "int" else None
            return {"column": name, "type": types, "hint": hint}
    return {}


def batches_of(rows: pa.Table | pa.RecordBatch, schema: pa.Schema, *, owner: str) -> list[pa.RecordBatch]:
    """Convert rows to batches of a schema; columns match by name, and missing columns are null."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    names = table.column_names
    if twice := [name for name in schema.names if names.count(name) > 1]:
        raise InvalidUsageError("a column occurs twice", of=owner, columns=twice)
    if strange := [name for name in schema.names if name not in names]:
        missing = [name for name in strange if not schema.field(name).nullable]
        if missing:
            raise InvalidUsageError("a column is missing", of=owner, columns=missing)
    arrays = [
        table.column(field.name) if field.name in names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    given = list(arrays)
    for number, (column, field) in enumerate(zip(given, schema, strict=True)):
        if column.type != field.type:
            # Arrow would read some texts as numbers or times.
            is_misfit = _is_text(column.type) and _is_number_or_time(field.type)
            reason = _find_loss(column, field.type)
            if is_misfit or reason:
                context = _misfit(column, field) | ({"reason": reason} if reason else {})
                raise InvalidUsageError("a column does not fit", of=owner, **context)
            if pa.types.is_decimal(field.type) and pa.types.is_integer(column.type):
                arrays[number] = _widen(column, field.type)
    # A new table without columns has no rows, but a selection of no columns keeps the number of rows.
    columns = pa.table(arrays, names=schema.names).combine_chunks() if arrays else table.select([])
    try:
        return [cast_to_schema(batch, schema) for batch in columns.to_batches()]
    except _MISFITS as error:
        misfit = _find_misfit(given, arrays, schema)
        raise InvalidUsageError("a column does not fit", of=owner, **misfit) from error


def _find_loss(column: Any, kind: pa.DataType) -> str | None:
    """Return the reason why Arrow's cast of a column would lose a part of a value; None if it does not."""
    find = _LOSSES.get((column.type.id, kind.id))
    try:
        return None if find is None else find(column, kind)
    except pa.ArrowException:
        return None  # the cast itself fails, which names the column


def _loss_of_digits(column: Any, kind: pa.DataType) -> str | None:
    """Accept a float if the decimal reads back as this float."""
    error = pc.abs(pc.subtract(column.cast(kind).cast(pa.float64()), column))
    near = pc.less_equal(error, pc.multiply(pc.abs(column), _ROUNDING))
    return "a float has more digits than the decimal" if pc.all(near).as_py() is False else None


def _loss_of_size(column: Any, kind: pa.DataType) -> str | None:
    """Accept a float that stays finite, although it may be rounded."""
    # Python is faster than Arrow for the one row of a call.
    most = column[0].as_py() if len(column) == 1 else pc.max(pc.abs(column)).as_py()
    if abs(most or 0.0) <= _FLOAT_MAX:
        return None
    infinite = pc.and_not(pc.is_inf(column.cast(kind)), pc.is_inf(column))
    return "a number is too large" if pc.any(infinite).as_py() else None


def _loss_of_time(column: Any, kind: pa.DataType) -> str | None:
    """Accept a timestamp at the start of a day."""
    days = pc.equal(pc.floor_temporal(column, unit="day"), column)
    return "a time of day would be lost" if pc.all(days).as_py() is False else None


_LOSSES: Final[dict[tuple[int, int], Callable[[Any, pa.DataType], str | None]]] = {
    (pa.float64().id, pa.decimal128(1).id): _loss_of_digits,
    (pa.float32().id, pa.decimal128(1).id): _loss_of_digits,
    (pa.float64().id, pa.float32().id): _loss_of_size,
    (pa.timestamp("us").id, pa.date32().id): _loss_of_time,
}
"""For each pair of types, the check that Arrow's cast lacks."""


def _widen(column: Any, kind: Any) -> Any:
    """Return integers as decimals with room for all of them, so that only too large integers are refused."""
    try:
        return column.cast(pa.decimal128(38, kind.scale))
    except pa.ArrowException:
        return column


def _find_misfit(given: list[Any], columns: list[Any], schema: pa.Schema) -> dict[str, Any]:
    """Return the first column that cannot be cast to its type, as the context of an error."""
    for original, column, field in zip(given, columns, schema, strict=True):
        if column.null_count and not field.nullable:
            return {"column": field.name, "reason": "it has nulls where none may be"}
        try:
            column.cast(field.type)
        except pa.ArrowException:
            return _misfit(original, field)
    return {}


def _misfit(column: Any, field: Any) -> dict[str, Any]:
    given, declared = type_text(column.type), type_text(field.type)
    hint = f"pass values of {declared}"
    return {"column": field.name, "type": given, "declared": declared, "hint": hint}


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_number_or_time(kind: pa.DataType) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return is_number or pa.types.is_timestamp(kind)


def check_text(name: object, *, kind: str) -> None:
    """Refuse a name that is not text."""
    if not isinstance(name, str):
        raise InvalidUsageError(
            f"the name of a {kind} is a text", got=type(name).__name__, hint=f"pass the {kind}'s name"
        )


def check_named(procedure: str, positional: tuple[object, ...]) -> None:
    """Refuse attributes of an event that are passed by position."""
    if positional:
        raise InvalidUsageError(
            "the attributes of an event are passed by name",
            procedure=procedure,
            hint="write name=value, ..., or **attributes for a dict",
        )
