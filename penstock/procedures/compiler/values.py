"""What the compiler knows of expressions and of what procedures access."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.procedures.schema import Column, Kind

__all__ = ["Access", "AccessMode", "ListOf", "Nothing", "Row", "Value", "zero"]


class AccessMode(StrEnum):
    """What a procedure does to a row."""

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
        What is done.
    attributes : tuple of str or None
        For each column of the key the attribute of the event that it is, as it came, if it is one.
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
        What it is.
    code : str
        An expression without effects, which is the value until the next statement.
    null : str or None
        An expression that says whether it is null; None if it never is.
    attribute : str or None
        Which attribute of the event it is, if it is one as it came.
    """

    kind: Kind
    code: str
    null: str | None = None
    attribute: str | None = None

    def never_null(self) -> Value:
        """Return the value, once it was checked."""
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
        An expression of its place; below 0 if there is none.
    key : tuple of str
        The key's columns as expressions of the procedure.
    attributes : tuple of str or None
        See `Access`.
    maybe : bool
        Whether there may be none.
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
        The array of all elements, and which are its own.
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
    """Return what a variable of a kind, or of rows of a table, holds while it is null."""
    if not isinstance(kind, Kind):
        return "-1"
    return {Kind.FLOAT: "0.0", Kind.BOOLEAN: "False"}.get(kind, "0")
