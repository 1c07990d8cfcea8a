"""Columns of tables in Arrow: checks against a store that has an Arrow schema, and columns of windows."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError

__all__ = ["check_columns", "split_window"]

_SAME: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def check_columns(name: str, existing: pa.Schema, rows: pa.Schema) -> None:
    """Check that a table has the columns of rows, with types that hold their values.

    Parameters
    ----------
    name : str
        The table's name for messages.
    existing : pyarrow.Schema
        The columns of the table.
    rows : pyarrow.Schema
        The columns of the rows.

    Raises
    ------
    InvalidUsageError
        If a column is missing, or if its type does not fit.
    """
    missing = [field.name for field in rows if field.name not in existing.names]
    if missing:
        raise InvalidUsageError(
            "the table lacks columns of the rows",
            table=name,
            missing=", ".join(missing),
            known=", ".join(existing.names),
            hint="add the columns to the table, or leave them out of the rows",
        )
    for field in rows:
        known = existing.field(field.name).type
        if not _holds(known, field.type):
            raise InvalidUsageError(
                "a column of the table has another type",
                table=name,
                column=field.name,
                type=known,
                rows=field.type,
                hint="cast the column of the rows, or change the column of the table",
            )


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether the type `wide` can hold all values of the type `narrow`."""
    wide, narrow = _SAME.get(wide, wide), _SAME.get(narrow, narrow)
    types = pa.types
    if types.is_signed_integer(narrow):
        return bool(types.is_signed_integer(wide) and wide.bit_width >= narrow.bit_width)
    if types.is_floating(narrow):
        return bool(types.is_floating(wide) and wide.bit_width >= narrow.bit_width)
    if types.is_timestamp(narrow):
        return bool(types.is_timestamp(wide) and (wide.tz is None) == (narrow.tz is None))
    if types.is_decimal(narrow):
        return bool(
            types.is_decimal(wide) and wide.scale == narrow.scale and wide.precision >= narrow.precision
        )
    if types.is_nested(narrow):
        # Stores name the items of a list differently, so only the types are compared.
        parts = [[kind.field(i).type for i in range(kind.num_fields)] for kind in (wide, narrow)]
        return type(wide) is type(narrow) and len(parts[0]) == len(parts[1]) and all(map(_holds, *parts))
    return bool(wide == narrow)


def split_window(table: pa.Table) -> pa.Table:
    """Replace the struct of a window by two columns for its start and end, which any store can hold."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name == "window" and pa.types.is_struct(column.type) and column.type.names == ["start", "end"]:
            columns |= {f"window_{part}": pc.struct_field(column, part) for part in ("start", "end")}
        else:
            columns[name] = column
    return pa.table(columns)
