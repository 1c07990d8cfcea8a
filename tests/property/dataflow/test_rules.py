"""Rules, p-streams and readers keep the meaning of a graph: DuckDB runs it before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataflow.builder import Graph, graph
from penstock.dataflow.nodes import Node
from penstock.dataflow.place import fuse, place_p_stream
from penstock.dataflow.rules import (
    Rewritten,
    merge,
    prune,
    push_where,
    split_conjunctions,
    to_fixed_point,
)
from tests.long_tests import examples
from tests.oracles.graphs import rows_of

_SCHEMA = pa.schema({"t": pa.int64(), "k": pa.int32(), "g": pa.string(), "n": pa.int32(), "x": pa.float64()})
_TABLE = pa.schema({"k": pa.int32(), "c": pa.int32()})


def _rows(start: int) -> st.SearchStrategy[pa.Table]:
    row = st.tuples(
        st.integers(0, 3),
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(-5, 5),
        st.none() | st.sampled_from([-1.5, 0.0, 0.25, 2.0]),
    )
    steps = st.lists(st.tuples(st.integers(1, 4), row), max_size=12)

    def table(drawn: list[Any]) -> pa.Table:
        time, found = start, []
        for step, values in drawn:
            time += 2 * step  # no two tuples have the same time, so that the newest is one
            found.append(dict(zip(_SCHEMA.names, (time, *values), strict=True)))
        return pa.Table.from_pylist(found, _SCHEMA)

    return steps.map(table)


_CONDITIONS = {
    "k": ["k <> 1", "k % 2 = 0"],
    "g": ["g = 'a'", "g IS NULL OR g < 'b'"],
    "n": ["n > 0", "n BETWEEN -2 AND 3", "coalesce(n, 1) <> 0"],
    "x": ["x >= 0.25", "NOT x < 0"],
    "c": ["c > 1"],
    "y": ["y > 1", "y IS NOT NULL"],
}
_COMPUTED = {"n": ["n + 1", "abs(n) * 2", "CASE WHEN n > 0 THEN n END"], "x": ["x * 2", "x / 4 + 1"]}
_AGGREGATES = ["count(*)", "count({})", "sum({})", "avg({})", "min({})", "max({})", "first({})", "last({})"]
_AGGREGATES += ["count(DISTINCT {})", "count(DISTINCT {}) FILTER (WHERE k > 0)"]


@st.composite
def _graphs(draw: st.DrawFn) -> Graph:
    def step(here: Graph) -> Graph:
        names = here.schema.names
        kind = draw(st.sampled_from(["where", "where", "select", "select", "lookup"]))
        if kind == "where":
            parts = draw(
                st.lists(
                    st.sampled_from([c for n in names for c in _CONDITIONS.get(n, [])]),
                    min_size=1,
                    max_size=3,
                )
            )
            return here.where(" AND ".join(f"({part})" for part in parts))
        if kind == "lookup":
            return here if "c" in names else here.lookup("table", _TABLE, on="k")
        chosen = draw(st.lists(st.sampled_from(names)))
        kept = [name for name in names if name in ("t", "k", *chosen)]
        computed = [text for name in names for text in _COMPUTED.get(name, [])]
        made: dict[str, str] = {}
        if draw(st.booleans()) and computed:
            made["y"] = draw(st.sampled_from(computed))
        return here.select(*[name for name in kept if name not in made], **made)

    here = graph("random").source("left", _SCHEMA)
    for _ in range(draw(st.integers(0, 3))):
        here = step(here)
    if draw(st.integers(0, 4)) == 0:
        other = graph("random").source("right", _SCHEMA).where("k > 0")
        names = [name for name in here.schema.names if name in _SCHEMA.names]
        here = here.select(*names).union(other.select(*names))
    for _ in range(draw(st.integers(0, 2))):
        here = step(here)
    end = draw(st.sampled_from(["rows", "queue", "window", "window"]))
    if end == "queue":
        here = here.update_queue("k", "t")
    elif end == "window":
        values = [name for name in here.schema.names if name in ("n", "x", "y", "k")]
        texts = draw(st.lists(st.sampled_from(_AGGREGATES), min_size=1, max_size=3))
        groups = [name for name in here.schema.names if name in ("g", "c") and draw(st.booleans())]
        size, slide, unit = draw(st.sampled_from([(10, 10, "s"), (10, 4, "s"), (12, 3, "s"), (3, 2, "rows")]))
        made = {f"a{at}": text.format(draw(st.sampled_from(values))) for at, text in enumerate(texts)}
        windows = here.window("t", size=f"{size} {unit}", slide=f"{slide} {unit}", unit="s")
        here = windows.group_by(*groups).agg(made)
        if draw(st.booleans()):
            here = here.where("a0 > 0").select("*", more="a0 * 2")
    return here.sink("memory")


def _placed(root: Node) -> Rewritten:
    return place_p_stream(root, ["left", "right"])


def _fused(root: Node) -> Rewritten:
    placed, first = _placed(root)
    after, then = fuse(placed)
    return after, first + then


@pytest.mark.parametrize("rule", [split_conjunctions, push_where, prune, merge, _placed, _fused])
@settings(deadline=None, max_examples=examples(40))
@given(made=_graphs(), left=_rows(-30), right=_rows(0))
def test_a_rule_does_not_change_what_a_graph_means(
    rule: Callable[[Node], Rewritten], made: Graph, left: pa.Table, right: pa.Table
) -> None:
    tables = {"left": left, "right": right, "table": pa.table({"k": [0, 1, 1, 3], "c": [1, 1, 2, 3]}, _TABLE)}
    after, notes = rule(made.root)
    assert after.schema == made.root.schema
    assert rows_of(after, tables) == rows_of(made.root, tables)
    assert bool(notes) == (after is not made.root)


@settings(deadline=None, max_examples=examples(80))
@given(made=_graphs(), left=_rows(-30), right=_rows(0), persist=st.sampled_from(["auto", "never"]))
def test_a_plan_means_what_was_written(made: Graph, left: pa.Table, right: pa.Table, persist: Any) -> None:
    tables = {"left": left, "right": right, "table": pa.table({"k": [0, 1, 1, 3], "c": [1, 1, 2, 3]}, _TABLE)}
    samples = {n: t for n, t in (("left", left), ("right", right)) if t.num_rows and n in str(made.root)}
    statistics = made.measure(samples, compress=False)
    plan = made.plan(statistics, persist)
    assert plan.root.schema == made.root.schema
    assert rows_of(plan.root, tables) == rows_of(made.root, tables)
    assert "as planned" in plan.explain()
    again, done = to_fixed_point(plan.root, merge)
    assert again is plan.root, done
