"""The parts of a graph that may change while its checkpoint lives."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.dataflow import Graph, graph, plan
from penstock.dataflow.checkpoint import check_same_graph
from penstock.dataflow.shape import shape
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import Fragments

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


def test_a_column_with_another_type_is_refused_by_its_types(tmp_path: Path) -> None:
    changed = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.string(), "w": pa.int32()})
    made = graph("g").source("quotes", changed).update_queue("k", "t").sink("noop").plan(persist="never")
    old = shape(_source().update_queue("k", "t").sink("noop").plan(persist="never"))
    text = "operator=quotes more=w fewer=none changed=v was double, is string. Hint: set the old"
    with pytest.raises(InvalidUsageError, match=text):
        check_same_graph(made, {"shape": old}, GraphDirectory(str(tmp_path)))


@pytest.mark.parametrize("mode", ["append", "lazy"])
def test_deviations_are_spelled_as_in_checkpoints_of_earlier_versions(mode: str) -> None:
    windows = _source().window("t", size="4 s", unit="s", mode=mode).group_by("k").agg(s="stddev(v)")
    lines = [json.loads(line) for line in _shape(windows)]
    scan, assemble = (one for one in lines if one["kind"] in ("scan", "assemble"))
    assert "sum_of_squares(v)" in scan["does"]
    assert "sum_of_squares_v" in scan["columns"]
    squares = "GREATEST(sum_of_squares_v - CAST(sum_v AS DOUBLE) * sum_v / count_v, CAST(0.0 AS DOUBLE))"
    assert f"CASE WHEN count_v > 1 THEN SQRT({squares} / (count_v - 1)) END AS s" in assemble["does"]


def test_what_leaves_the_buckets_is_no_part_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = _source().window("t", size="4 s", unit="s").group_by("k").agg(n="count(*)")
    made = windows.join_windows(windows.group_by("window").agg(top="max(n)"), condition="n = top").sink(
        "noop"
    )
    plans = [made.plan(persist=persist) for persist in ("always", "never")]
    assert all("keep_extremes" in dict(one.changes) for one in plans)
    monkeypatch.setattr(plan, "keep_extremes", lambda root: (root, ()))
    before = [made.plan(persist=persist) for persist in ("always", "never")]
    assert list(map(shape, plans)) == list(map(shape, before))


def test_what_readers_tell_of_the_watermark_is_no_part_of_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = (
        _source().window("t", size="4 s", unit="s", watermark_delay="1 s").group_by("k").agg(n="count(*)")
    )
    now = _shape(windows)
    monkeypatch.setattr(Fragments, "add_watermark", lambda fragments, delay_ms, time: fragments)
    assert _shape(windows) == now
    assert len(now) > 3
