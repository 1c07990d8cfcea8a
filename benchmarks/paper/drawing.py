"""Helpers for the drawings and tables of all figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["line", "pivot"]


def pivot(
    rows: list[dict[str, Any]],
    by: str,
    head: str,
    column: Callable[[dict[str, Any]], str],
    value: str,
) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines with a line for each value of `by` and a column for each of `column`."""
    columns = list(dict.fromkeys(column(row) for row in rows))
    cells = {(row[by], column(row)): f"{row[value]:.{0 if row[value] >= 100 else 2}f}" for row in rows}
    lines = [[f"{at:g}", *(cells[at, name] for name in columns)] for at in sorted({row[by] for row in rows})]
    return [head, *columns], lines


def line(axis: Any, rows: list[dict[str, Any]], by: str, value: str, **style: Any) -> None:
    """Draw `value` over `by`."""
    axis.plot([row[by] for row in rows], [row[value] for row in rows], **style)
