"""Plans: persisted sources, Spark's part, statistics from samples, and their display."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest

from penstock.dataflow import Graph, as_json, draw, explain, graph
from penstock.dataflow.cost import choose
from penstock.dataflow.nodes import Materialize, Source, topological
from penstock.dataflow.plan import PhysicalPlan
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import Scan

_SCHEMA = pa.schema({"t": pa.int64(), "k": pa.int32(), "position": pa.int32(), "s": pa.string()})


def _stream(kind: Any = "push", **options: str) -> Graph:
    return graph("g").source("in", _SCHEMA, kind=kind, options=options)


def _sample(rows: int = 2_000) -> pa.Table:
    numbers = np.arange(rows)
    texts = [f"text {number % 7}" for number in range(rows)]
    return pa.table([numbers, numbers % 10, numbers % 100 * 5280, texts], schema=_SCHEMA)


def _windowed(made: Graph) -> Graph:
    return made.where("k = 3").window("t", size="9 s", unit="s").group_by("k").agg(m="max(position)")


def test_a_plan_says_what_is_done_before_and_after_the_p_stream_and_what_is_left() -> None:
    plan = _windowed(_stream()).where("m > 2").sink("noop").plan()
    (stream,) = plan.streams
    assert stream.ingest == Scan(("t", "k", "position"), where="k = 3")
    assert stream.schema.names == ["t", "k", "position"]
    assert stream.source is not None
    assert [scan.output for scan in stream.readers] == [("pane", "k", "max_position", "rows")]
    assert [node.label for node in plan.remaining] == ["assemble", "where", "sink"]
    assert [choice.persisted for choice in plan.choices] == [True]


@pytest.mark.parametrize(
    ("kind", "persist", "persisted"),
    [
        ("push", "auto", True),
        ("push", "never", False),
        ("push", {"in": "never"}, False),
        ("kafka", "auto", False),
        ("kafka", "always", True),
        ("kafka", {"in": "always"}, True),
        ("kafka", {}, False),
        ("p-stream", "auto", False),
    ],
)
def test_a_source_is_persisted_if_it_has_to_be_or_it_is_said(
    kind: str, persist: Any, persisted: bool
) -> None:
    plan = _stream(kind).update_queue("k", "t").sink("noop").plan(persist=persist)
    assert [choice.persisted for choice in plan.choices] == [persisted]
    assert len(plan.streams) == persisted
    labels = [node.label for node in topological(plan.root)]
    assert ("scan" in labels) == (persisted or kind == "p-stream")


def test_a_p_stream_of_a_replayable_source_pays_for_several_readers_or_if_little_is_left() -> None:
    source = _stream("files", format="json").root
    assert isinstance(source, Source)
    whole = {"whole": 64.0, "needed": 20.0}
    assert not choose(source, 1, **whole, kept=60.0, stored=30.0).persisted
    assert choose(source, 3, **whole, kept=60.0, stored=30.0).persisted
    assert choose(source, 1, **whole, kept=0.2, stored=0.1).persisted
    columnar = _stream("files", format="parquet").root
    assert isinstance(columnar, Source)
    wide = choose(source, 2, **whole, kept=20.0, stored=5.0)
    narrow = choose(columnar, 2, **whole, kept=20.0, stored=5.0)
    assert wide.reread_ns is not None
    assert narrow.reread_ns is not None
    assert narrow.reread_ns < wide.reread_ns


def test_a_sample_decides_with_readers_of_the_same_source() -> None:
    base = _stream("files", format="json")
    made = base.where("k = 3").select("t", "k").union(base.where("k = 4").select("t", "k")).sink("noop")
    plan = made.plan(made.measure(_sample(), compress=False))
    assert plan.choices[0].persisted
    assert "by p-stream" in plan.choices[0].reason


def test_the_output_of_another_operator_can_be_persisted() -> None:
    made = _windowed(_stream("kafka")).where("m > 1", name="high").update_queue("k", "m").sink("noop")
    plan = made.plan(persist={"high": "always", "in": "never"})
    (stream,) = plan.streams
    assert stream.name == "high"
    assert stream.source is None
    assert stream.ingest is None
    assert stream.readers[0].latest_by is not None


def test_a_source_is_not_persisted_twice() -> None:
    made = _stream().where("k = 3", name="three").update_queue("k", "t").sink("noop")
    plan = made.plan(persist={"three": "always"})
    (stream,) = plan.streams
    assert stream.name == "three"
    assert isinstance(stream.ingest, Scan)
    assert plan.choices[0].reason == "a p-stream after a later operator holds its tuples"


@pytest.mark.parametrize(
    ("persist", "says"),
    [
        ("sometimes", "persist has an unknown value"),
        ({"out": "always"}, "names no operator"),
        ({"where": "always"}, "several operators"),
    ],
)
def test_a_wrong_choice_of_what_to_persist_is_told(persist: Any, says: str) -> None:
    other = graph("g").source("b", _SCHEMA).where("k = 1")
    with pytest.raises(InvalidUsageError, match=says):
        _stream().where("k = 2").union(other).plan(persist=persist)


def _shares(plan: PhysicalPlan) -> dict[str, float | None]:
    return {node["kind"]: node["selectivity"] for node in as_json(plan)["as_planned"]}


def test_selectivities_are_counted_on_a_sample() -> None:
    made = _windowed(_stream()).sink("noop")
    plan = made.plan(made.measure(_sample(), compress=False))
    shares = _shares(plan)
    assert shares["where"] == 0.1
    # A tuple of every tenth second passes, and a pane is nine seconds: 200 tuples are in 200 panes.
    assert shares["scan"] == 1.0
    assert shares["assemble"] is None
    assert "passes 10%, 16 B a tuple" in plan.explain()
    assert "(assumed)" in made.plan().explain()


def test_conditions_are_counted_together() -> None:
    made = _stream().where("k = 3 AND t % 10 = 3").where("my_udf(s) > 1").sink("noop")
    counted = _shares(made.plan(made.measure(_sample(), compress=False)))
    assert counted["where"] == pytest.approx(1 / 3)  # what only Spark evaluates is assumed
    nodes = as_json(made.plan(made.measure(_sample(), compress=False)))["as_planned"]
    assert [node["selectivity"] for node in nodes if node["kind"] == "where"] == [0.1, pytest.approx(1 / 3)]


def test_compression_decides_on_which_side_a_column_is_computed() -> None:
    made = _stream().select("t", segment="position div 5280").update_queue("segment", "t").sink("noop")

    def stored(plan: PhysicalPlan) -> list[str]:
        return next(node.schema.names for node in topological(plan.root) if isinstance(node, Materialize))

    assert stored(made.plan()) == ["t", "position"]
    assert stored(made.plan(made.measure(_sample(20_000)))) == ["t", "segment"]


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (_sample().slice(0, 0), "sample is empty"),
        (_sample().select(["t", "k"]), "lacks a column.*column=position"),
        ({"out": _sample()}, "sample is given for an unknown source"),
        (_sample().set_column(0, "t", pa.array(["x"] * 2_000)), "other types"),
    ],
)
def test_a_wrong_sample_is_told(sample: Any, says: str) -> None:
    with pytest.raises(InvalidUsageError, match=says):
        _stream().measure(sample)


def test_several_sources_need_several_samples() -> None:
    made = _stream().union(graph("g").source("b", _SCHEMA))
    with pytest.raises(InvalidUsageError, match="sources=in, b"):
        made.measure(_sample())
    statistics = made.measure({"in": _sample(), "b": _sample(500)}, compress=False)
    nodes = as_json(made.sink("noop").plan(statistics))["as_written"]
    assert {node["kind"]: node["selectivity"] for node in nodes}["union"] == 1.0


def test_a_plan_is_json() -> None:
    plan = _windowed(_stream()).sink("noop").plan()
    document = json.loads(json.dumps(as_json(plan)))
    assert [node["kind"] for node in document["as_planned"]] == [
        "source",
        "select",
        "where",
        "p-stream",
        "scan",
        "assemble",
        "sink",
    ]
    assert Scan.from_json(json.dumps(document["p_streams"][0]["readers"][0])) == plan.streams[0].readers[0]
    assert document["persistence"][0]["persisted"]
    assert {one["rule"] for one in document["rules"]} >= {"prune", "place_p_stream", "fuse"}


def test_a_shared_operator_is_shown_once() -> None:
    base = _stream().where("k > 1")
    text = explain(base.select("t").union(base.select("t")).sink("noop").plan())
    assert text.count("(the same as above)") >= 1
    assert max(map(len, text.splitlines())) <= 110


def test_a_drawing_has_a_box_for_every_operator_and_nothing_overlaps() -> None:
    base = _stream().where("k > 1 AND s <> '<&>'")
    plan = _windowed(base.union(graph("g").source("other", _SCHEMA))).sink("noop").plan()
    drawing = ET.fromstring(draw(plan))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [
        tuple(float(box.get(side, "0")) for side in ("x", "y", "width", "height"))
        for box in drawing.iter(f"{space}rect")
        if box.get("rx")
    ]
    nodes = [*topological(plan.logical), *topological(plan.root)]
    assert len(boxes) == len(nodes)
    assert len(list(drawing.iter(f"{space}line"))) == sum(len(node.inputs) for node in nodes)
    for at, (x, y, width, height) in enumerate(boxes):
        assert x + width <= float(drawing.get("width", "0"))
        assert y + height <= float(drawing.get("height", "0"))
        for x2, y2, width2, height2 in boxes[at + 1 :]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
