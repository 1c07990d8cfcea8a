"""Random graphs over random rows, from DataFrames and p-streams, compared with DuckDB's results.

Of a graph that ends in an update queue, the last result of each key is compared: which came before depends on
how the input was cut.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

import penstock
from penstock.checkpointing.p_stream import PStreamReader
from penstock.dataflow import Graph
from penstock.dataflow.nodes import StreamTableJoin, UpdateQueue, Window, topological
from tests.fuzz.case import Case
from tests.oracles.graphs import rounded, rows_of
from tests.spark.queries import PATIENCE_S, Input

_SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "n": pa.int64(), "v": pa.float64()})
_COLUMNS = "k string, t long, n long, v double"
_CONDITIONS = [
    "v > 2",
    "v < 0 OR k = 'a'",
    "n % 3 <> 1",
    "k IS NOT NULL",
    "v IS NULL OR v <= 6",
    "n > 0 AND t > 4",
]
_COMPUTED = ["v * 2", "v + 1", "coalesce(v, 0.5)", "CASE WHEN n > 3 THEN v ELSE -v END"]
_AGGREGATES = [
    "count(*)", "count({})", "sum({})", "avg({})", "min({})", "max({})", "stddev({})", "max({}) - min({})",
    "count(DISTINCT {})", "sum({}) FILTER (WHERE k = 'b')", "avg({}) + count(*)",
]  # fmt: skip
_OF_ANY = ("avg", "min", "max", "cou")
"""The first letters of aggregates whose sum may exceed 64 bits."""
_BY_WINDOW = ["sum(a0)", "avg(a0)", "max(a0)", "min(a0)", "count(*)", "stddev(a0)"]
_TEAMS = pa.table({"k": ["a", "b", "z", "y"], "team": ["red", "blue", "red", None]})
_LAST = 100_000
_TIMES = range(-60, 160)


def check(case: Case) -> None:
    """Run a random graph to its end, persisted or not, with a restart, and compare all its rows."""
    draw = case.random
    names = draw.sample(["one", "two"], draw.randint(1, 2))
    delay = draw.choice([0, 0, 20, 100])
    graph = _graph(draw, names, delay)
    # Which of two updates of one time is the newer depends on how the input was cut.
    ties = not _has(graph, UpdateQueue) and draw.random() < 0.5
    tables = {name: _rows(draw, ties=ties) for name in names}
    persist = draw.choice(["always", "never", "auto"])
    inputs = {name: Input(case.directory / name) for name in names}
    restart = draw.random() < 0.5
    cuts = _cuts(draw, names, delay if _has(graph, Window) else len(_TIMES))
    lookups = {"teams": _teams(case)} if "teams" in _labels(graph) else {}
    for part in range(1 + restart):
        for name, rows in tables.items():
            late = pc.greater_equal(rows["t"], cuts[name])
            half = rows.filter(late if part else pc.invert(late)) if restart else rows
            inputs[name].add(half)
        if part == restart:
            for one in inputs.values():
                one.add(pa.table([["z"], [_LAST], [1], [0.0]], schema=_SCHEMA))
        _run(case, graph, inputs, persist, lookups)
    read = _read(case.directory / "out")
    if _has(graph, UpdateQueue):
        assert len({(row["k"], row["t"]) for row in read}) == len(read), f"a result came twice: {graph.root}"
        newest = sorted(read, key=lambda row: row["t"])
        read = list({row["k"]: row for row in newest if row["t"] < _LAST}.values())
    found = [tuple(map(rounded, row.values())) for row in read]
    expected = rows_of(graph.root, tables | ({"teams": _TEAMS} if lookups else {}))
    missing, further = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    assert not missing and not further, (
        f"{persist}, restart {cuts if restart else None}: {missing} is missing, {further} is too much: "
        f"{graph.root}"
    )


def _has(graph: Graph, kind: type) -> bool:
    return any(isinstance(node, kind) for node in topological(graph.root))


def _cuts(draw: random.Random, names: list[str], most: int) -> dict[str, int]:
    """Return for each source the time up to which its rows come before the restart.

    They differ by `most` at most: rows that are further behind another source's would be late.
    """
    first = draw.choice(_TIMES)
    return {name: first + (draw.randint(-most, most) if at else 0) for at, name in enumerate(names)}


def _labels(graph: Graph) -> set[str]:
    return {node.table for node in topological(graph.root) if isinstance(node, StreamTableJoin)}


def _teams(case: Case) -> DataFrame:
    """Return the table that is looked up: one that goes to readers, or one for Spark."""
    if case.random.random() < 0.5:
        return case.spark.createDataFrame(_TEAMS)
    return case.spark.createDataFrame(
        [tuple(row.values()) for row in _TEAMS.to_pylist()], "k string, team string"
    )


def _run(
    case: Case, graph: Graph, inputs: dict[str, Input], persist: Any, tables: dict[str, DataFrame]
) -> None:
    out = case.directory / "out"
    running = penstock.start(
        graph, case.spark, case.directory / "checkpoint",
        sources={name: one.frame(case.spark, _COLUMNS) for name, one in inputs.items()},
        tables=tables, sink=lambda rows: rows.writeStream.format("pstream").option("path", str(out)),
        available_now=True, persist=persist,
    )  # fmt: skip
    with running:
        assert running.await_termination(PATIENCE_S), running.status()
    assert running.state == "finished", running.status()


def _read(path: Path) -> list[dict[str, Any]]:
    return PStreamReader(path).read().to_pylist() if path.exists() else []


def _rows(draw: random.Random, *, ties: bool) -> pa.Table:
    count, most = draw.choice([1, 20, 150]), draw.choice([9, 9, 1_700_000_000_000_000_000])
    times = [draw.choice(_TIMES) for _ in range(count)] if ties else draw.sample(_TIMES, count)
    values = [None, *(n / 2 for n in range(-8, 20))]
    # Whole numbers and halves, of which sums do not depend on the order.
    return pa.table(
        [
            pa.array([draw.choice(["a", "b", "c", None]) for _ in range(count)], pa.string()),
            pa.array(sorted(times), pa.int64()),
            pa.array([draw.choice([most, most - 1, 3, -2]) for _ in range(count)], pa.int64()),
            pa.array([draw.choice(values) for _ in range(count)], pa.float64()),
        ],
        schema=_SCHEMA,
    )


def _graph(draw: random.Random, names: list[str], delay: int) -> Graph:
    parts = []
    for name in names:
        made = penstock.graph("g").source(name, _SCHEMA)
        for _ in range(draw.randint(0, 2)):
            # The last row, which closes all windows, passes.
            made = made.where(f"({draw.choice(_CONDITIONS)}) OR t = {_LAST}")
        parts.append(made.select("k", "t", "n", v=draw.choice(["v", *_COMPUTED])))
    graph = parts[0] if len(parts) == 1 else parts[0].union(parts[1])
    looked = draw.random() < 0.35
    if looked:
        graph = graph.lookup("teams", _TEAMS.schema, on="k")
    kind = draw.random()
    if kind < 0.2:
        return graph.where(f"t < {_LAST}").sink("pstream")
    if kind < 0.4 and len(names) == 1:
        policy = draw.choice(["in_place", "fifo"])
        queue = graph.where("k IS NOT NULL").update_queue("k", "t", policy=policy)
        return queue.sink("pstream")
    if kind < 0.6:
        return _joined(draw, graph, delay)
    size = draw.choice([10, 12, 30])
    slide = draw.choice([size, 4, 5])
    keys = draw.choice([["k"], [], ["team", "k"] if looked else ["k"], ["team"] if looked else ["k"]])
    chosen = draw.sample(_AGGREGATES, draw.randint(1, 4))
    aggs = {
        f"a{at}": text.replace("{}", draw.choice(["v", "n"] if text[:3] in _OF_ANY else ["v"]))
        for at, text in enumerate(chosen)
    }
    windows = graph.window("t", size=f"{size} s", slide=f"{slide} s", unit="s", watermark_delay=f"{delay} s")
    windows = (windows.group_by(*keys) if keys else windows).agg(**aggs)
    if draw.random() < 0.4 and not aggs["a0"].endswith("(n)"):
        again = {f"b{at}": text for at, text in enumerate(draw.sample(_BY_WINDOW, 2))}
        return windows.group_by("window").agg(**again).select(*again).sink("pstream")
    if draw.random() < 0.4:
        windows = windows.where("a0 > 1")
    return windows.select(*keys, *aggs).sink("pstream")


def _joined(draw: random.Random, graph: Graph, delay: int) -> Graph:
    """Return the windows of two aggregates that end together."""
    slide = draw.choice([4, 5, 10])
    sides = []
    for aggs in ({"n0": "count(*)", "top": "max(v)"}, {"m0": "count(v)", "low": "min(v)"}):
        size = slide * draw.choice([1, 2, 3])
        windows = graph.window(
            "t", size=f"{size} s", slide=f"{slide} s", unit="s", watermark_delay=f"{delay} s"
        )
        sides.append(windows.group_by("k").agg(**aggs))
    left, right = sides
    on = draw.choice([(), ("k",)])
    if not on:
        right = right.select("window", "m0", "low", other="k")
    joined = left.join_windows(right, on=on, condition=draw.choice([None, "top > low", "n0 + m0 > 3"]))
    kept = [name for name in joined.schema.names if name != "window"]
    return joined.select(*kept).sink("pstream")
