"""Buckets of windows and joins that are rewritten hold what as many buckets would hold from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock._clock import SimulatedClock
from penstock.operators.aggregates.moments import to_settings
from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.scan.fragments import Fragmenter
from penstock.operators.scan.spec import PANE, Fragments, Partial
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.scheduling.weights import GroupKey, KeyWeights
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.state_copy.keyed_units import JoinBuckets, WindowBuckets
from penstock.spark_ext.state_copy.migrate import _converted_joins, _parse
from penstock.spark_ext.state_copy.served_windows import ServedWindowBuckets
from penstock.spark_ext.worker.count_windows import FIRST_TIME, LAST_TIME
from penstock.sql.expression import Expression
from penstock.windows.groups import GroupCodec
from penstock.windows.layout import ENTRY_PANE, SessionLayout, WindowLayout
from penstock.windows.panes import new_panes
from penstock.windows.spec import WindowSpec
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.checkpoints.bucket_states import Buckets, restored

pytestmark = pytest.mark.usefixtures("unsynced")

PARTIALS = (Partial("count", "*", "rows"), Partial("sum", "value", "total"))
BOUNDS = (Partial("min", "time", FIRST_TIME), Partial("max", "time", LAST_TIME))
GROUPS = pa.schema([pa.field("group", pa.string())])
PANE_MS = 4


def layout_of(kind: str) -> WindowLayout:
    if kind == "time":
        return WindowLayout(WindowSpec(3, 1), GROUPS, PARTIALS, (pa.int64(), pa.int64()), {}, "rows")
    types = (pa.int64(),) * 4
    return SessionLayout(
        WindowSpec(1, 1), GROUPS, (*PARTIALS, *BOUNDS), types, {}, "rows", 6, bounds=(FIRST_TIME, LAST_TIME)
    )


def entries(layout: WindowLayout, seed: int, batch: int) -> tuple[pa.RecordBatch, int]:
    """Return entries of random events, and the newest time."""
    rng = np.random.default_rng(100 * seed + batch)
    count = 60
    time = pa.array(20 * batch + rng.integers(-40, 20, count))
    group = pa.array([None if n == 0 else f"g{n}" for n in rng.integers(0, 30, count)])
    value = pa.array(rng.integers(0, 9, count))
    types = {one.name: pa.int64() for one in layout.partials} | {"time": pa.int64(), "group": pa.string()}
    fragmenter = Fragmenter(Fragments(PANE_MS, "time", "ms", ("group",), layout.partials), types)
    columns = {"*": None, "value": value, "time": time}
    fragmenter.add(time, [group], [columns[one.expression] for one in layout.partials])
    made = fragmenter.finish()
    panes = pa.array(made.column(PANE).to_numpy() // PANE_MS)
    arrays = [panes if name == ENTRY_PANE else made.column(name) for name in layout.pane_schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.pane_schema), int(np.max(time))


def run_windows(states: list[Any], layout: WindowLayout, seed: int, batch: int) -> list[str]:
    """Let all buckets run a micro-batch; return the windows and the number of late rows."""
    rows, newest = entries(layout, seed, batch)
    watermark = newest - 5 if isinstance(layout, SessionLayout) else (newest - 5) // PANE_MS
    numbers = GroupCodec(list(GROUPS)).encode([rows.column("group")], rows.num_rows).bucket(len(states))
    found, late = [], 0
    for number, state in enumerate(states):
        done = state.run([rows.filter(pa.array(numbers == number))], watermark)
        found += [repr(row) for windows in done.windows for row in windows.to_pylist()]
        late += done.late
    return [*sorted(found), f"late {late}"]


@pytest.mark.parametrize("kind", ["time", "session"])
@pytest.mark.parametrize("buckets", [1, 2, 3, 7])
def test_rewritten_buckets_of_windows_go_on_as_if_there_had_been_as_many(
    tmp_path: Path, kind: str, buckets: int
) -> None:
    layout = layout_of(kind)
    window = [3 * PANE_MS, PANE_MS, 0] if kind == "time" else ["session", 6, 0, 6, PANE_MS]
    settings = {
        "mode": "append", "key": ["group"], "time": "t", "window": window, "schema": ["t bigint"],
        "aggregates": [to_settings(one) for one in PARTIALS], "buckets": 3,
    }  # fmt: skip

    def new() -> Any:
        return new_panes(layout)

    old = Buckets(tmp_path, 3, new)
    oracle = [new() for _ in range(buckets)]
    for batch in range(4):
        assert run_windows(old.states, layout, 5, batch) == run_windows(oracle, layout, 5, batch)
        old.commit()
    copied = WindowBuckets(old.copied(), settings)
    made = restored((copied.rescale(number, buckets) for number in range(buckets)), new)
    assert [len(state) for state in made] == [len(state) for state in oracle]
    assert {state.watermark for state in made} == {state.watermark for state in oracle}
    late = set()
    for batch in range(4, 8):
        found = run_windows(made, layout, 5, batch)
        assert found == run_windows(oracle, layout, 5, batch)
        late.add(found[-1])
    assert late != {"late 0"}


def serve_windows(
    states: list[UpdateWindows], seed: int, batch: int, ttl: int | None, budget: Budget
) -> tuple[list[str], int]:
    """Let all buckets serve windows; return these and the groups that left, and the number of late rows."""
    layout, clock = layout_of("time"), SimulatedClock(1000 * batch)
    rows, newest = entries(layout, seed, batch)
    numbers = GroupCodec(list(GROUPS)).encode([rows.column("group")], rows.num_rows).bucket(len(states))
    found, late = [], 0
    for number, state in enumerate(states):
        arrivals = WindowArrivals([rows.filter(pa.array(numbers == number))], (newest - 5) // PANE_MS)
        query = Query(None, layout.window, ())
        batches, metrics = serve(state, arrivals, query=query, budget=budget, clock=clock)
        found += [repr(row) for windows in batches for row in windows.to_pylist()]
        late += metrics.late
        if ttl is not None:
            found += [f"gone {group}" for group in state.expire().groups[0].to_pylist()]
    return sorted(found), late


@pytest.mark.parametrize("mode", [WindowMode.LAZY, WindowMode.EAGER])
@pytest.mark.parametrize(("policy", "ttl"), [(Policy.IN_PLACE, None), (Policy.LINECUTTING, 2)])
@pytest.mark.parametrize("buckets", [2, 7])
def test_rewritten_buckets_of_served_windows_go_on_as_if_there_had_been_as_many(
    tmp_path: Path, mode: WindowMode, policy: Policy, ttl: int | None, buckets: int
) -> None:
    layout, weights = layout_of("time"), KeyWeights(GroupKey(GROUPS), {"g3": 4.0})
    settings = {
        "mode": str(mode), "policy": str(policy), "weight": 1, "key": ["group"], "time": "t", "buckets": 3,
        "window": [3 * PANE_MS, PANE_MS, 0], "schema": ["t bigint"],
        "aggregates": [to_settings(one) for one in PARTIALS],
    }  # fmt: skip

    def new() -> UpdateWindows:
        return UpdateWindows(layout, mode, policy, weights, ttl=ttl)

    old = Buckets(tmp_path, 3, new)
    oracle = [new() for _ in range(buckets)]
    for batch in range(4):
        given = (6, batch, ttl, Budget())
        assert serve_windows(old.states, *given) == serve_windows(oracle, *given)
        old.commit()
        for state in oracle:
            state.delta()
    copied = ServedWindowBuckets(old.copied(), settings)
    made = restored((copied.rescale(number, buckets) for number in range(buckets)), new)
    assert [state.keys for state in made] == [state.keys for state in oracle]
    assert [len(state) for state in made] == [len(state) for state in oracle]
    assert {state.watermark for state in made} == {state.watermark for state in oracle}
    seen: list[str] = []
    for batch in range(4, 8):
        given = (6, batch, ttl, Budget())
        found = serve_windows(made, *given)
        assert found == serve_windows(oracle, *given)
        seen += found[0]
        for state in (*made, *oracle):
            state.delta()
    assert ttl is None or any(one.startswith("gone") for one in seen)


@pytest.mark.parametrize("buckets", [1, 5])
def test_groups_that_wait_in_rewritten_buckets_are_served_once_each(tmp_path: Path, buckets: int) -> None:
    settings = {
        "mode": "lazy", "policy": "in_place", "weight": None, "key": ["group"], "time": "t", "buckets": 3,
        "window": [3 * PANE_MS, PANE_MS, 0], "schema": ["t bigint"],
        "aggregates": [to_settings(one) for one in PARTIALS],
    }  # fmt: skip

    def new() -> UpdateWindows:
        return UpdateWindows(layout_of("time"), WindowMode.LAZY, Policy.IN_PLACE)

    old = Buckets(tmp_path, 3, new)
    for batch in range(3):
        serve_windows(old.states, 7, batch, None, Budget(1))
        old.commit()
    copied = ServedWindowBuckets(old.copied(), settings)
    made = restored((copied.rescale(number, buckets) for number in range(buckets)), new)
    assert sum(map(len, made)) == sum(map(len, old.states)) > 10

    def rest(states: list[UpdateWindows]) -> list[str]:
        served = [state.dequeue(99, 9).rows.to_pylist() for state in states]
        return [repr(row) for rows in served for row in rows]

    orders = [rest([state]) for state in old.states]
    found = rest(made)
    assert sorted(found) == sorted(row for order in orders for row in order)
    if buckets == 1:
        for order in orders:
            assert [row for row in found if row in order] == order, "groups of a bucket keep their order"


LEFT = UpdateStream(pa.schema({"k": pa.string(), "t": pa.int64(), "b": pa.int64()}), ("k",), "t")
RIGHT = UpdateStream(pa.schema({"c": pa.int64(), "k": pa.string(), "t": pa.int64()}), ("k",), "t")
WIDER = UpdateStream(
    pa.schema([*RIGHT.schema, ("more", pa.string()), ("deleted", pa.bool_())]), ("k",), "t", deleted="deleted"
)
DELETING = UpdateStream(RIGHT.schema.append(pa.field("deleted", pa.bool_())), ("k",), "t", deleted="deleted")


@pytest.mark.parametrize(
    ("condition", "ttl", "deletes"),
    [
        (None, None, False),
        ("b <> c", None, False),
        ("b <> c", 3, False),
        (None, 3, True),
        (None, None, True),
    ],
)
@pytest.mark.parametrize("buckets", [1, 2, 3, 7])
def test_rewritten_buckets_of_a_join_go_on_as_if_there_had_been_as_many(
    tmp_path: Path, condition: str | None, ttl: int | None, buckets: int, *, deletes: bool
) -> None:
    streams = (LEFT, DELETING if deletes else RIGHT)
    parsed = None if condition is None else Expression.parse(condition)
    joined = JoinedStream(*streams, 5, 1000, parsed, ttl=ttl, tells_silent=ttl is not None)
    settings = {
        "key": ["k"], "time": "t", "within": 5, "condition": condition, "buckets": 3,
        "ttl": ttl is not None or None, "on_silent": None if ttl is None else "row",
        "deletes": deletes or None, "left": ["k string", "t bigint", "b bigint"],
        "right": ["c bigint", "k string", "t bigint", *(["deleted boolean"] if deletes else [])],
    }  # fmt: skip

    def new() -> UpdateJoin:
        return UpdateJoin(joined)

    def run(states: list[UpdateJoin], batch: int) -> list[str]:
        rng = np.random.default_rng(batch)
        sides = []
        for stream, name in zip(streams, ("b", "c"), strict=True):
            columns = {
                "k": pa.array([f"key {n}" for n in rng.integers(0, 20, 30)]),
                "t": pa.array(10 * batch + rng.integers(-5, 10, 30)),
                name: pa.array(rng.integers(0, 3, 30)),
                "deleted": pa.array(rng.integers(0, 4, 30) == 0),
            }
            rows = pa.RecordBatch.from_arrays(
                [columns[one] for one in stream.schema.names], schema=stream.schema
            )
            sides.append((Arrivals.from_rows(stream, rows), stream.keys(rows).bucket(len(states))))
        newest = max(int(np.max(at.rows.column("t").to_numpy())) for at, _ in sides)
        found = []
        for number, state in enumerate(states):
            mine = [arrivals.take(np.flatnonzero(at == number)) for arrivals, at in sides]
            matched = state.join(mine[0], mine[1], newest)
            found += [repr(row) for row in matched.rows.to_pylist()]
            found += [f"gone {key}" for key in matched.expired.keys[0].to_pylist()]
            found += ["late"] * matched.late
        return sorted(found)

    old, oracle = Buckets(tmp_path, 3, new), [new() for _ in range(buckets)]
    seen: list[str] = []
    for batch in range(4):
        assert run(old.states, batch) == run(oracle, batch) != []
        old.commit()
    copied = JoinBuckets(old.copied(), settings)
    made = restored((copied.rescale(number, buckets) for number in range(buckets)), new)
    assert [(state.keys, state.held) for state in made] == [(state.keys, state.held) for state in oracle]
    for batch in range(4, 8):
        found = run(made, batch)
        assert found == run(oracle, batch) != []
        seen += found
    assert ttl is None or any(one.startswith("gone") for one in seen)
    assert not deletes or any("'deleted': True" in one for one in seen)


def test_a_migrated_side_with_deletes_has_the_new_column_in_its_tuples(tmp_path: Path) -> None:
    columns = ["c bigint", "k string", "t bigint", "deleted boolean"]
    settings = {
        "key": ["k"], "time": "t", "within": 5, "condition": None, "buckets": 1, "deletes": True, "ttl": True,
        "left": ["k string", "t bigint", "b bigint"], "right": columns,
    }  # fmt: skip

    def side(stream: UpdateStream, *rows: dict[str, Any]) -> Arrivals:
        return Arrivals.from_rows(stream, pa.RecordBatch.from_pylist(list(rows), stream.schema))

    old = Buckets(tmp_path, 1, lambda: UpdateJoin(JoinedStream(LEFT, DELETING, 5, 1000, ttl=90)))
    held = [{"k": key, "t": time, "c": 3, "deleted": False} for key, time in (("a", 10), ("b", 10))]
    old.states[0].join(None, side(DELETING, *held, {"k": "b", "t": 11, "deleted": True}), 11)
    old.commit()
    new = _parse(", ".join([*columns[:3], "more string", columns[3]]))
    (made,) = restored(
        [_converted_joins(old.copied(), settings, {"right": new})(0)],
        lambda: UpdateJoin(JoinedStream(LEFT, WIDER, 5, 1000, ttl=90)),
    )
    found = made.join(side(LEFT, *({"k": key, "t": 9, "b": 1} for key in "ab")), None, 11)
    assert found.rows.to_pylist() == [{"k": "a", "t": 10, "b": 1, "c": 3, "more": None, "deleted": False}]
