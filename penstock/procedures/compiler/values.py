"""The compiler's view of expressions and of accesses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.procedures.schema import Column, Kind

__all__ = ["Access", "AccessMode", "ListOf", "Nothing", "Row", "Value", "zero"]


class AccessMode(StrEnum):
    """The kind of an access to a row."""

    READ = "read"
    WRITE = "write"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a procedure to a row (TStream Table II).

    Attributes
    ----------
    table : str
        The table.
    key : tuple of str
        The key's columns as expressions of the procedure.
    mode : AccessMode
        The kind of access.
    attributes : tuple of str or None
        For each column of the key: the event's attribute that it holds unchanged, if any.
    """

    table: str
    key: tuple[str, ...]
    mode: AccessMode
    attributes: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value in generated code.

    Attributes
    ----------
    kind : Kind
        Its kind.
    code : str
        An expression without effects, which is the value until the next statement.
    null : str or None
        An expression that says whether it is null; None if it never is.
    attribute : str or None
        The event's attribute that it holds unchanged, if any.
    """

    kind: Kind
    code: str
    null: str | None = None
    attribute: str | None = None

    def never_null(self) -> Value:
        """Return the value as never null, after a check."""
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
        The table.
    slot : str
        An expression for its slot; below 0 if there is no row.
    key : tuple of str
        The key's columns as expressions of the procedure.
    attributes : tuple of str or None
        See `Access`.
    maybe : bool
        Whether the row may be missing.
    """

    table: str
    slot: str
    key: tuple[str, ...]
    attributes: tuple[str | None, ...]
    maybe: bool


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of an event.

    Attributes
    ----------
    column : Column
        Its column.
    values, begin, end : str
        The array of all elements, and the range of this list's elements.
    null : str
        The array that says which elements are null.
    missing : str or None
        Whether the list itself is null; None if it never is.
    """

    column: Column
    values: str
    begin: str
    end: str
    null: str
    missing: str | None


def zero(kind: Kind | str) -> str:
    """Return the placeholder in a null variable of a kind or of a table's rows."""
    if not isinstance(kind, Kind):
        return "-1"
    return {Kind.FLOAT: "0.0", Kind.BOOLEAN: "False"}.get(kind, "0")
