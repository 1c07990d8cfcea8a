"""Draw a design as SVG: tables around a circle, and the columns that transactions access together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from penstock.designing.traces.access_graph import Edge, access_graph
from penstock.procedures.partitions.design import PartitionColumns

if TYPE_CHECKING:
    from penstock.designing.result import DesignResult

__all__ = ["draw"]

_WIDTH: Final = 170
_HEIGHT: Final = 50
_MARGIN: Final = 40
_HEAVIEST: Final = 6.0
_FILLS: Final = ("#b7dcee", "#f6e3d0", "#d5e8d4", "#e1d5e7", "#fff2cc", "#f8cecc")
_REPLICATED: Final = "#eeeeee"


def draw(result: DesignResult) -> str:
    """Return a design as SVG.

    Tables that are partitioned by columns of the same name have the same colour; replicated tables are grey.
    A line joins tables that transactions access together; its label names the columns that hold the same
    value. The line is solid if both tables are partitioned by these columns.
    """
    trace = result.trace
    columns, ranges = result.design.columns, result.design.ranges
    shares = result.shares()
    names = [name for name in columns if name in shares]
    radius = max(len(names) * (_WIDTH + 30) / (2 * math.pi), 120.0) if len(names) > 1 else 0.0
    size = 2 * (radius + _MARGIN) + _WIDTH
    places = {
        name: (
            size / 2 + radius * math.sin(2 * math.pi * number / len(names)),
            size / 2 - radius * math.cos(2 * math.pi * number / len(names)),
        )
        for number, name in enumerate(names)
    }
    used = dict.fromkeys(column for name in names if (column := columns[name]) is not None)
    fills = {column: _FILLS[place % len(_FILLS)] for place, column in enumerate(used)}
    heaviest: dict[tuple[str, str], Edge] = {}
    for edge in access_graph(trace):
        pair = (edge.columns[0][0], edge.columns[1][0])
        chosen = heaviest.get(pair)
        if chosen is None or (_joins(columns, edge) and not _joins(columns, chosen)):
            heaviest[pair] = edge
    most = max([edge.weight for edge in heaviest.values()], default=1)
    parts = []
    for (one, other), edge in heaviest.items():
        (x, y), (u, v) = places[one], places[other]
        alike = _joins(columns, edge) and ranges.get(one) == ranges.get(other)
        dashes = "" if alike else ' stroke-dasharray="6 4"'
        title = f"{'.'.join(edge.columns[0])} = {'.'.join(edge.columns[1])} in {edge.weight:,} transactions"
        parts.append(
            f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{u:.0f}" y2="{v:.0f}" stroke="#888888" '
            f'stroke-width="{1 + (_HEAVIEST - 1) * edge.weight / most:.1f}"{dashes}>'
            f"<title>{escape(title)}</title></line>"
        )
    for name, (x, y) in places.items():
        column = columns[name]
        count, single = shares[name]
        shown = column if isinstance(column, str) else ", ".join(column or ())
        method = "replicated" if column is None else f"{'ranges' if name in ranges else 'hash'} of {shown}"
        parts.append(
            f'<rect x="{x - _WIDTH / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'rx="4" fill="{_REPLICATED if column is None else fills[column]}" stroke="#555555">'
            f"<title>{count:,} transactions access it, {single:.1%} in a single partition</title></rect>"
        )
        for line, (text, weight) in enumerate(((name, "bold"), (method, "normal"))):
            parts.append(
                f'<text x="{x:.0f}" y="{y - 5 + 18 * line:.0f}" font-weight="{weight}">{escape(text)}</text>'
            )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size:.0f}" height="{size:.0f}" '
        f'viewBox="0 0 {size:.0f} {size:.0f}" font-family="sans-serif" font-size="13" text-anchor="middle">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _joins(columns: Mapping[str, PartitionColumns], edge: Edge) -> bool:
    """Return whether the columns of an edge are among the partition columns of their tables."""
    return all(column in _names(columns[table]) for table, column in edge.columns)


def _names(columns: PartitionColumns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else columns or ()
