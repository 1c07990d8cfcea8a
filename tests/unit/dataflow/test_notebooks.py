"""Graphs and plans draw themselves in notebooks."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.dataflow import Graph, graph

COLUMNS = "time timestamp, symbol string, price double"


def trades() -> Graph:
    return graph("trades & <quotes>").source("trades", COLUMNS).where("price < 3 AND symbol <> '<b>'")


def texts(shown: str) -> str:
    """Return the text of HTML, which has to be well-formed."""
    return " ".join("".join(ElementTree.fromstring(f"<html>{shown}</html>").itertext()).split())


def test_a_graph_is_drawn_as_written() -> None:
    shown = trades().window("time", size="1 minute").group_by("symbol").agg(high="max(price)")._repr_html_()
    assert shown.count("<svg ") == 1
    assert "trades & <quotes>, as written" in texts(shown)
    assert "as planned" not in shown
    for part in ("where", "window", "price < 3"):
        assert part in texts(shown)


@pytest.mark.parametrize(
    "unfinished",
    [
        trades,
        lambda: trades().window("time", size="1 minute"),
        lambda: trades().window("time", size="1 minute").group_by("symbol"),
    ],
)
def test_an_unfinished_graph_is_drawn_too(unfinished: Any) -> None:
    assert "trades & <quotes>, as written" in texts(unfinished()._repr_html_())


def test_a_plan_is_drawn_with_what_made_it() -> None:
    plan = trades().window("time", size="1 minute").agg(high="max(price)").sink("noop").plan(persist="always")
    shown = plan._repr_html_()
    assert "as written" in texts(shown)
    assert "as planned" in texts(shown)
    for rule, note in plan.changes:
        assert " ".join(f"{rule}: {note}".split()) in texts(shown)
    assert f"trades: persisted, as {plan.choices[0].reason}" in texts(shown)
