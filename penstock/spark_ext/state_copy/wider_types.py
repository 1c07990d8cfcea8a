"""Check that stored rows can be converted exactly to added columns and wider types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.sql.values import INTEGERS

__all__ = ["cast_exactly", "check_added", "check_wider"]

_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    **{kind: INTEGERS[place + 1 :] for place, kind in enumerate(INTEGERS)},
    pa.float32(): (pa.float64(),),
    pa.date32(): (pa.timestamp("us"),),
}
_FACT: Final = "a column's new type cannot hold all old values exactly"
_HINT: Final = "keep the type, and cast the column behind the operator"
_ZONE_HINT: Final = "the instant of a date depends on the session's time zone; use timestamp_ntz"


def check_added(column: str, *, nullable: bool) -> None:
    """Check that old rows can have null in an added column.

    Raises
    ------
    InvalidUsageError
        If the column does not allow nulls.
    """
    if not nullable:
        raise InvalidUsageError(
            "an added column does not allow nulls",
            column=column,
            hint="old rows need null there: drop NOT NULL",
        )


def check_wider(column: str, was: pa.DataType, now: pa.DataType, *, in_structs: bool = False) -> None:
    """Check that a column's new type is wider.

    Parameters
    ----------
    column : str
        The column.
    was, now : pyarrow.DataType
        The old and the new type.
    in_structs : bool
        Accept structs whose fields are wider. `cast_exactly` does not convert structs.

    Raises
    ------
    InvalidUsageError
        If the new type cannot hold all values of the old type.
    """
    if in_structs and pa.types.is_struct(was) and pa.types.is_struct(now) and [*was.names] == [*now.names]:
        for old, new in zip(was, now, strict=True):
            if old.type != new.type:
                check_wider(f"{column}.{old.name}", old.type, new.type, in_structs=True)
    elif now not in _WIDER.get(was, ()):
        hint = _ZONE_HINT if was == pa.date32() else _HINT
        raise InvalidUsageError(_FACT, column=column, was=was, now=now, hint=hint)


def cast_exactly(
    column: pa.Array[Any] | pa.ChunkedArray[Any], field: pa.Field[Any]
) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """Cast a column to a field's type if the column's type can be widened; otherwise return it unchanged.

    Raises
    ------
    InvalidUsageError
        If a value does not fit.
    """
    if column.type not in _WIDER:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise InvalidUsageError(_FACT, column=field.name, now=field.type) from error
