"""Rows of plain Python, such as a test has, as Arrow tables of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import pyarrow as pa

from penstock.conf.values import did_you_mean
from penstock.errors import InvalidUsageError

__all__ = ["TIME_HINT", "Localize", "in_utc", "to_table"]

TIME_HINT: Final = "write a time such as 2026-01-31T12:00:00Z"


Localize: TypeAlias = Callable[[datetime], datetime]
"""A function that gives a time its zone."""


def in_utc(moment: datetime) -> datetime:
    """Give a time the zone UTC."""
    return moment.replace(tzinfo=UTC)


def to_table(
    rows: Sequence[Mapping[str, Any]] | pa.Table,
    schema: pa.Schema,
    owner: str = "source",
    localize: Localize = in_utc,
) -> pa.Table:
    """Return rows as a table with a schema. Columns that a row leaves out are null.

    `localize` gives times of mappings a zone if they have none. Times of a table are then in UTC.

    Raises
    ------
    InvalidUsageError
        If the rows are neither a table nor mappings, a row has an unknown column, or a value does not fit.
    """
    if isinstance(rows, pa.Table):
        names: list[str] = rows.column_names
    elif isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
    else:
        raise InvalidUsageError(
            "the rows are neither a list of mappings nor an Arrow table", got=type(rows).__name__
        )
    for name in names:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names, f"the columns are {', '.join(schema.names)}")
            raise InvalidUsageError(f"the {owner} has no column {name!r}", hint=hint)
    if isinstance(rows, pa.Table):
        columns = [
            _cast(rows.column(field.name), field)
            if field.name in names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)
    arrays = [_array([row.get(field.name) for row in rows], field, localize) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast(column: pa.ChunkedArray[Any], field: pa.Field[Any]) -> pa.ChunkedArray[Any]:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _misfit(field, error) from None


def _array(values: list[Any], field: pa.Field[Any], localize: Localize) -> pa.Array[Any]:
    try:
        return pa.array([_as_type(value, field.type, localize) for value in values], field.type)
    except (ValueError, pa.ArrowTypeError) as error:
        raise _misfit(field, error) from None


def _as_type(value: Any, kind: pa.DataType, localize: Localize) -> Any:
    """Convert texts for times and dates, and numbers for decimals, also inside lists and structs."""
    if pa.types.is_timestamp(kind):
        return _moment(value, localize if kind.tz is not None else None)
    if pa.types.is_date(kind) and isinstance(value, str):
        return datetime.fromisoformat(value).date()
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        types = {field.name: field.type for field in kind}
        return {
            name: _as_type(one, types[name], localize) if name in types else one
            for name, one in value.items()
        }
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_as_type(one, kind.value_type, localize) for one in value]
    if pa.types.is_decimal(kind) and isinstance(value, float | str):
        return _number(str(value))  # the digits that the user wrote
    return value


def _moment(value: Any, localize: Localize | None) -> Any:
    """Return the time that a value means; `localize`, if given, adds a zone that is not there.

    Raises
    ------
    ValueError
        If a text is not a time, or the value is a number, whose unit and origin are not known.
    """
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if isinstance(moment, int | float):
        raise ValueError(f"{moment} is a number; {TIME_HINT}")
    if localize is not None and isinstance(moment, datetime) and moment.tzinfo is None:
        return localize(moment)
    return moment


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None


def _misfit(field: pa.Field[Any], error: Exception) -> InvalidUsageError:
    return InvalidUsageError(
        "a value does not fit its column", column=field.name, type=field.type, reason=str(error)
    )
