"""Draw a Markov model as SVG: its states from the start to the ends, and the transitions between them."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from penstock.designing.traces.queries import QueryName
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.predicting.models.markov import ABORT, BEGIN, COMMIT, MarkovModel, bits
from penstock.predicting.models.predictor import Predictor

__all__ = ["draw"]

_WIDTH: Final = 190
_HEIGHT: Final = 46
_GAP: Final = 40
_WIDEST: Final = 6.0
_MAX_IN_ROW: Final = 12
_FILLS: Final = {BEGIN: "#eeeeee", COMMIT: "#d5e8d4", ABORT: "#f8cecc"}


def draw(predictor: Predictor, procedure: str) -> str:
    """Return the model that most transactions of a procedure use, as SVG.

    Each row has the states after the same number of queries, but only the twelve most frequent ones. The
    width of a line shows the probability of its transition.

    Raises
    ------
    InvalidUsageError
        If the predictor does not have the procedure.
    """
    titles = {models.title: models for models in predictor.procedures}
    if procedure not in titles:
        raise InvalidUsageError(
            "the predictor has no such procedure",
            procedure=procedure,
            hint=did_you_mean(procedure, titles, "procedures"),
        )
    models = titles[procedure]
    model = max(models.models, key=lambda model: sum(model.edges[BEGIN].values()))
    rows = _arrange(model)
    width = max(map(len, rows)) * (_WIDTH + _GAP) + _GAP
    height = len(rows) * (_HEIGHT + _GAP) + _GAP
    places = {
        vertex: (
            (width - len(row) * (_WIDTH + _GAP) + _GAP) / 2 + place * (_WIDTH + _GAP) + _WIDTH / 2,
            _GAP + depth * (_HEIGHT + _GAP) + _HEIGHT / 2,
        )
        for depth, row in enumerate(rows)
        for place, vertex in enumerate(row)
    }
    parts = []
    for vertex, (x, y) in places.items():
        for child in model.edges[vertex]:
            if child in places:
                u, v = places[child]
                share = model.probability(vertex, child)
                parts.append(
                    f'<line x1="{x:.0f}" y1="{y + _HEIGHT / 2:.0f}" x2="{u:.0f}" y2="{v - _HEIGHT / 2:.0f}" '
                    f'stroke="#888888" stroke-width="{1 + (_WIDEST - 1) * share:.1f}">'
                    f"<title>{share:.1%}</title></line>"
                )
    for vertex, (x, y) in places.items():
        parts.append(
            f'<rect x="{x - _WIDTH / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'rx="4" fill="{_FILLS.get(vertex, "#b7dcee")}" stroke="#555555">'
            f"<title>{escape(_title(model, vertex))}</title></rect>"
        )
        for line, text in enumerate(_texts(model, vertex, models.names)):
            parts.append(f'<text x="{x:.0f}" y="{y - 4 + 17 * line:.0f}">{escape(text)}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" text-anchor="middle">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _arrange(model: MarkovModel) -> list[list[int]]:
    """Return the vertices of each row: the start, the states in the order of queries, and the ends."""
    seen, rows, row = {BEGIN}, [[BEGIN]], [BEGIN]
    while row:
        weights: dict[int, int] = {}
        for vertex in row:
            for child, count in model.edges[vertex].items():
                if child not in seen and child not in (COMMIT, ABORT):
                    weights[child] = weights.get(child, 0) + count
        row = sorted(weights, key=lambda vertex: -weights[vertex])[:_MAX_IN_ROW]
        seen |= weights.keys()
        if row:
            rows.append(row)
    return [*rows, [COMMIT, ABORT]]


def _texts(model: MarkovModel, vertex: int, names: tuple[QueryName, ...]) -> tuple[str, ...]:
    if vertex in (BEGIN, COMMIT, ABORT):
        return ({BEGIN: "begin", COMMIT: "commit", ABORT: "abort"}[vertex],)
    state = model.states[vertex]
    number = f" number {state.counter + 1}" if state.counter else ""
    partitions = ", ".join(map(str, bits(state.partitions))) or "any"
    return f"{names[state.name]}{number}", f"partition {partitions}"


def _title(model: MarkovModel, vertex: int) -> str:
    if vertex in (COMMIT, ABORT):
        return "the end"
    return f"aborts: {model.abort[vertex]:.1%}, needs one partition: {model.single[vertex]:.1%}"
