"""Draw a plan as SVG: the logical graph on the left, the planned graph on the right, sources on top.

A graph is small and nearly a chain, so a simple layout suffices. An operator's layer is the length of its
longest path from a source. The operators of a layer stand side by side.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from penstock.dataflow.explain import flow_text
from penstock.dataflow.nodes import Node, topological
from penstock.dataflow.statistics import Flow, flows

if TYPE_CHECKING:
    from penstock.dataflow.plan import PhysicalPlan

__all__ = ["draw", "draw_html"]

_BOX: Final = 330
_GAP: Final = 30
_LINE: Final = 15
_LETTERS: Final = 50
_MAX_LINES: Final = 6
_EDGE: Final = 44
_TITLE: Final = 40

_FILL: Final = {
    "source": "#eeeeee",
    "p-stream": "#b7dcee",
    "scan": "#dceef6",
    "sink": "#eeeeee",
}
_STATEFUL: Final = "#f6e3d0"
_PLAIN: Final = "#ffffff"


@dataclass(slots=True)
class _Place:
    node: Node
    lines: list[str]
    x: float = 0.0
    y: float = 0.0

    @property
    def height(self) -> int:
        return _LINE * (len(self.lines) + 1) + 10


def draw(plan: PhysicalPlan, *, planned: bool = True) -> str:
    """Return a plan as SVG.

    Each edge is labelled with the selectivity of the operator above it and the bytes per tuple.

    Parameters
    ----------
    plan : PhysicalPlan
        The plan.
    planned : bool
        Whether to draw the planned graph beside the graph as written.
    """
    parts: list[str] = []
    left, height = float(_GAP), 0.0
    graphs = [("as written", plan.logical), ("as planned", plan.root)]
    for title, root in graphs if planned else graphs[:1]:
        places, width, bottom = _layout(root, left)
        parts.append(_text(left, 25, f"{plan.name}, {title}", "font-weight='bold'"))
        parts += _edges(places, flows(root, plan.statistics), plan)
        parts += [_box(place) for place in places.values()]
        left, height = left + width + 2 * _GAP, max(height, bottom)
    size = f"width='{left:g}' height='{height + _GAP:g}' viewBox='0 0 {left:g} {height + _GAP:g}'"
    arrow = (
        "<defs><marker id='arrow' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='7' markerHeight='7' "
        "orient='auto'><path d='M0 0 L8 4 L0 8 z' fill='#555555'/></marker></defs>"
    )
    ground = "<rect width='100%' height='100%' fill='#ffffff'/>"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-family='sans-serif' font-size='11'>"
    return "\n".join([head, arrow, ground, *parts, "</svg>"]) + "\n"


def draw_html(plan: PhysicalPlan, *, planned: bool = True) -> str:
    """Return a plan as HTML for notebooks: the drawing, and the rules and decisions that led to the plan."""
    notes = [f"{rule}: {note}" for rule, note in plan.changes]
    notes += [
        f"{choice.source}: {'persisted' if choice.persisted else 'not persisted'}, as {choice.reason}"
        for choice in plan.choices
    ]
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes) if planned else ""
    return f"<div style='overflow-x: auto'>{draw(plan, planned=planned)}</div>" + (
        lines and f"<ul>{lines}</ul>"
    )


def _layout(root: Node, left: float) -> tuple[dict[int, _Place], float, float]:
    """Return the position of each node by its id, and the drawing's width and bottom."""
    layer: dict[int, int] = {}
    rows: dict[int, list[_Place]] = {}
    places: dict[int, _Place] = {}
    for node in topological(root):
        layer[id(node)] = 1 + max((layer[id(above)] for above in node.inputs), default=-1)
        lines = textwrap.wrap(node.describe(), _LETTERS)
        if len(lines) > _MAX_LINES:
            lines = [*lines[: _MAX_LINES - 1], "..."]
        places[id(node)] = place = _Place(node, lines)
        rows.setdefault(layer[id(node)], []).append(place)
    widest = max(map(len, rows.values()))
    width = widest * _BOX + (widest - 1) * _GAP
    y = float(_TITLE)
    for number in sorted(rows):
        row = rows[number]
        row_width = len(row) * _BOX + (len(row) - 1) * _GAP
        for at, place in enumerate(row):
            place.x, place.y = left + (width - row_width) / 2 + at * (_BOX + _GAP), y
        y += max(place.height for place in row) + _EDGE
    return places, width, y - _EDGE


def _box(place: _Place) -> str:
    node = place.node
    fill = _FILL.get(node.label, _STATEFUL if node.stateful else _PLAIN)
    stroke = 2.5 if node.label == "p-stream" else 1
    parts = [
        f"<rect x='{place.x:g}' y='{place.y:g}' width='{_BOX}' height='{place.height}' rx='4' "
        f"fill='{fill}' stroke='#333333' stroke-width='{stroke}'/>",
        _text(place.x + 8, place.y + _LINE, node.label, "font-weight='bold'"),
    ]
    parts += [_text(place.x + 8, place.y + _LINE * (at + 2), line) for at, line in enumerate(place.lines)]
    return "\n".join(parts)


def _edges(places: dict[int, _Place], flow: dict[int, Flow], plan: PhysicalPlan) -> list[str]:
    parts = []
    for place in places.values():
        for above in place.node.inputs:
            start = places[id(above)]
            x1, y1 = start.x + _BOX / 2, start.y + start.height
            x2, y2 = place.x + _BOX / 2, place.y
            parts.append(
                f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='#555555' "
                "marker-end='url(#arrow)'/>"
            )
            parts += [
                _text(x1 + 6, y1 + 14 + at * (_LINE - 2), line, "fill='#555555'")
                for at, line in enumerate(flow_text(above, flow, plan).split(", "))
            ]
    return parts


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' {style}>{escape(text)}</text>"
