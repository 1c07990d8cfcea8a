"""Values, rows and accesses, as the compiler represents them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from penstock.procedures.schema import Column, Kind

__all__ = [
    "ROUTED",
    "Access",
    "AccessMode",
    "Found",
    "ListOf",
    "Nothing",
    "Origin",
    "Row",
    "Value",
    "widen",
    "zero",
]


class AccessMode(StrEnum):
    """The kind of an access to a row."""

    READ = "read"
    WRITE = "write"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Found:
    """The origin of a value from a row that an index finds, with a value for each column of the index.

    Attributes
    ----------
    table : str
        The name of the row's table.
    index : tuple of str
        The columns of the index.
    attributes : tuple of str
        For each column of the index, the attribute of the event that supplies its value.
    column : str
        The column of the row.
    """

    table: str
    index: tuple[str, ...]
    attributes: tuple[str, ...]
    column: str

    def __str__(self) -> str:
        """Return the text for `explain`."""
        return f"the {self.column} of {self.table} by {' and '.join(self.attributes)}"


Origin = str | Found
"""The origin of a value that a transaction uses unchanged: an attribute of its event, or an element if the
attribute is a list; a column of a row that an index finds; or `ROUTED`."""


ROUTED = "the route"
"""The origin of a value that equals a partition in the user's `route`; no attribute has this name."""


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a procedure to a row (TStream Table II).

    Attributes
    ----------
    table : str
        The name of the row's table.
    key : tuple of str
        The key's columns as expressions of the procedure.
    mode : AccessMode
        The kind of access.
    origins : tuple of Origin or None
        The origin of each column of the key; None if the column has no origin.
    """

    table: str
    key: tuple[str, ...]
    mode: AccessMode
    origins: tuple[Origin | None, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value in generated code.

    Attributes
    ----------
    kind : Kind
        The kind of the value.
    code : str
        An expression without side effects, which has the value until the next statement.
    null : str or None
        An expression that is true if the value is null; None if the value is never null.
    origin : Origin or None
        The origin of the value; None if the value has no origin.
    decimal : decimal.Decimal or None
        The value itself if it is a constant decimal.
    """

    kind: Kind
    code: str
    null: str | None = None
    origin: Origin | None = None
    decimal: Decimal | None = None

    def never_null(self) -> Value:
        """Return the value, marked as never null; call it after a check."""
        return replace(self, null=None)


@dataclass(frozen=True, slots=True)
class Nothing:
    """``None`` in a procedure."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes
    ----------
    table : str
        The name of the row's table.
    slot : str
        An expression for the row's slot; below 0 if there is no row.
    key : tuple of str
        The key's columns as expressions of the procedure.
    origins : tuple of Origin or None
        See `Access`.
    maybe : bool
        Whether the row may be missing.
    """

    table: str
    slot: str
    key: tuple[str, ...]
    origins: tuple[Origin | None, ...]
    maybe: bool


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of an event.

    Attributes
    ----------
    column : Column
        The attribute of the event.
    values, begin, end : str
        Expressions for the array with the elements of all lists, and for the range of this list's elements.
    null : str
        An expression for the mask of the null elements.
    missing : str or None
        An expression that is true if the list itself is null; None if the list is never null.
    """

    column: Column
    values: str
    begin: str
    end: str
    null: str
    missing: str | None


def zero(kind: Kind | str) -> str:
    """Return the code of the value that a null variable holds; `kind` is its kind, or the table of a row."""
    if not isinstance(kind, Kind):
        return "-1"
    return {Kind.FLOAT: "0.0", Kind.BOOLEAN: "False"}.get(kind, "0")


def widen(column: Column, code: str) -> str:
    """Convert a stored value to its form in procedures."""
    if column.kind is Kind.INTEGER and column.dtype.itemsize < 8:
        return f"np.int64({code})"
    if column.kind is Kind.FLOAT and column.dtype.itemsize < 8:
        return f"np.float64({code})"
    return code
