"""Deletes of update streams: rows that delete their key, marked in a separate column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.sql.expression import Expression, column

__all__ = [
    "DELETED_COLUMN",
    "adds_deletes",
    "check_delete_results",
    "delete_conditions",
    "mark_deletes",
    "parse_delete_when",
]

DELETED_COLUMN: Final = "deleted"
"""The boolean column, never null, that is true in the rows for which ``delete_when`` holds."""


def parse_delete_when(text: object) -> Expression:
    """Parse a condition on single rows.

    Raises
    ------
    InvalidUsageError
        If the text is not an expression, contains an aggregate, or would make several rows from one row.
    """
    if not isinstance(text, str):
        raise InvalidUsageError(
            "delete_when is not an SQL expression", got=repr(text), hint="""write delete_when="op = 'd'\""""
        )
    expression = Expression.parse(text)
    if expression.aggregate or expression.generates:
        raise InvalidUsageError("delete_when is not a condition on single rows", delete_when=text)
    return expression


def delete_conditions(delete_when: str | Mapping[str, str] | None) -> tuple[str | None, str | None]:
    """Return the conditions for the left and the right side of a join.

    Raises
    ------
    InvalidUsageError
        If the value names a side that is neither ``left`` nor ``right``, or `parse_delete_when` refuses a
        condition.
    """
    if delete_when is None:
        return None, None
    if not isinstance(delete_when, Mapping):
        delete_when = {"left": delete_when, "right": delete_when}
    if not delete_when or not delete_when.keys() <= {"left", "right"}:
        raise InvalidUsageError(
            "delete_when of a join names other sides than left and right", sides=list(delete_when)
        )
    for condition in delete_when.values():
        parse_delete_when(condition)
    return delete_when.get("left"), delete_when.get("right")


def mark_deletes(
    delete_when: str, names: Sequence[str]
) -> tuple[Expression, tuple[tuple[str, Expression], ...]]:
    """Return the condition over these columns, and a projection that adds `DELETED_COLUMN`.

    A row for which the condition is null is not a delete. If the condition is itself a column named
    `DELETED_COLUMN`, the new column replaces it.

    Raises
    ------
    InvalidUsageError
        If the condition reads an unknown column, or a column that is not the condition is named
        `DELETED_COLUMN`.
    """
    condition = parse_delete_when(delete_when).resolve(names, option="delete_when")
    there = [name for name in names if name.lower() == DELETED_COLUMN]
    if there and condition != column(there[0]):
        raise InvalidUsageError(
            "the stream has this column already",
            column=there[0],
            delete_when=delete_when,
            hint=f"rename it, or use delete_when={there[0]!r} if it marks the deletes",
        )
    columns = [(name, column(name)) for name in names if name not in there]
    mark = Expression.parse(f"CASE WHEN {condition.text} THEN TRUE ELSE FALSE END")
    return condition, (*columns, (DELETED_COLUMN, mark))


def check_delete_results(results: pa.Schema, unknown: pa.DataType | None = None) -> None:
    """Check that the results of `apply` keep `DELETED_COLUMN`.

    Parameters
    ----------
    unknown : pyarrow.DataType, optional
        The type of columns whose type is not known yet.

    Raises
    ------
    InvalidUsageError
        If the column is missing, or is not boolean.
    """
    if DELETED_COLUMN not in results.names or results.field(DELETED_COLUMN).type not in (pa.bool_(), unknown):
        raise InvalidUsageError(
            "the results of apply do not mark the rows that are deletes",
            columns=results.names,
            hint=f"add '{DELETED_COLUMN} boolean' to output_schema; apply gets this column with its rows",
        )


def adds_deletes(was: object, now: object) -> bool:
    """Return whether lists of columns, each as its name and type, differ only by `DELETED_COLUMN`."""
    if not isinstance(was, list) or not isinstance(now, list):
        return False
    return [one for one in (*was, *now) if (one in was) != (one in now)] == [f"{DELETED_COLUMN} boolean"]
