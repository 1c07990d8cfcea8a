"""Refuse text with a collation: there ``'A'`` may equal ``'a'``, but Penstock compares bytes."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from penstock.errors import InvalidUsageError

__all__ = ["refuse_collations"]

_BINARY = "UTF8_BINARY"


def refuse_collations(schema: StructType, names: Iterable[str]) -> None:
    """Refuse columns that Penstock compares, if their collation does not compare bytes.

    Parameters
    ----------
    schema : StructType
        The rows' columns.
    names : iterable of str
        The compared columns; missing columns are ignored.

    Raises
    ------
    InvalidUsageError
        If there is such a column.
    """
    for name in names:
        if name in schema.names and _has_collation(schema[name].dataType):
            raise InvalidUsageError(
                "a column with a collation is compared",
                hint=f"replace it by a column that compares bytes, such as lower({name}) COLLATE {_BINARY}",
                column=name,
                type=schema[name].dataType.simpleString(),
            )


def _has_collation(kind: DataType) -> bool:
    if isinstance(kind, StringType):
        return bool(getattr(kind, "collation", _BINARY) != _BINARY)
    if isinstance(kind, StructType):
        return any(_has_collation(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_collation(kind.elementType)
    return isinstance(kind, MapType) and (_has_collation(kind.keyType) or _has_collation(kind.valueType))
