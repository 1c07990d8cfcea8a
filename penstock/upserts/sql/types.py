"""Compare the types of SQL databases."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["holds"]

_KINDS: Final[dict[str, tuple[str, int]]] = {
    "boolean": ("flag", 1), "bool": ("flag", 1),
    "tinyint": ("whole", 1), "smallint": ("whole", 2), "mediumint": ("whole", 3), "int": ("whole", 4),
    "integer": ("whole", 4), "bigint": ("whole", 8), "hugeint": ("whole", 16),
    "float": ("number", 4), "real": ("number", 4), "double": ("number", 8), "double precision": ("number", 8),
    "char": ("text", 0), "varchar": ("text", 0), "text": ("text", 0), "tinytext": ("text", 0),
    "mediumtext": ("text", 0), "longtext": ("text", 0),
    "blob": ("bytes", 0), "longblob": ("bytes", 0), "mediumblob": ("bytes", 0), "tinyblob": ("bytes", 0),
    "binary": ("bytes", 0), "varbinary": ("bytes", 0), "bytea": ("bytes", 0),
    "date": ("day", 0),
    "timestamp": ("time", 0), "datetime": ("time", 0), "timestamp with time zone": ("zoned", 0),
    "decimal": ("decimal", 0), "numeric": ("decimal", 0),
}  # fmt: skip
"""For each type name without lengths: the kind of its values, and the width of numbers in bytes."""

_LENGTHS: Final = re.compile(r"\s*\([^)]*\).*")


def holds(known: str, wanted: str) -> bool:
    """Return whether a column of one type can hold all values of another type unchanged.

    Parameters
    ----------
    known : str
        The declared type of the column. If this module does not know the type, such as ``json``, the result
        is True, so that the database decides.
    wanted : str
        The type that the values require.
    """
    theirs, ours = (_KINDS.get(_LENGTHS.sub("", text.lower()).strip()) for text in (known, wanted))
    if theirs is None or ours is None:
        return True
    if theirs[0] == ours[0]:
        return theirs[1] >= ours[1]
    return (ours[0], theirs[0]) == ("whole", "decimal")
