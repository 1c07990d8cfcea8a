"""What of a graph may change while its checkpoint lives."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.operators.graph import Graph, graph
from penstock.operators.graph.shape import shape

QUOTES = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.float64()})


def _source(name: str = "quotes") -> Graph:
    return graph("g").source(name, QUOTES)


def _queue(budget: int, policy: str = "fifo") -> Graph:
    return _source().update_queue("k", "t", policy=policy, budget=budget)


def _shape(made: Graph) -> list[str]:
    return shape(made.sink("noop").plan(persist="always"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (_source(), _source(), True),
        (_source(), _source("trades"), False),
        (_source(), _source().where("v > 1"), False),  # goes before the p-stream
        (_source().where("k LIKE concat('a', t)"), _source().where("k LIKE concat('b', t)"), True),
        (_queue(1), _queue(2), True),
        (_queue(1), _queue(1, "in_place"), False),
        (_queue(1), _queue(1).where("v > 1"), True),
        (_queue(1).select("k", "t"), _queue(1).select("k", "v"), False),  # prunes what the p-stream has
    ],
)
def test_a_checkpoint_fits_if_nothing_that_lasts_has_changed(one: Graph, other: Graph, same: bool) -> None:
    assert (_shape(one) == _shape(other)) is same
