"""Each push-up rule alone: the operators that it moves, and those that it does not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.dataflow import Graph, graph
from penstock.dataflow.extremes import keep_extremes
from penstock.dataflow.nodes import Aggregate, Materialize, Node, PushedScan, topological
from penstock.dataflow.place import fuse, place_p_stream
from penstock.dataflow.rules import merge, prune, push_where, split_conjunctions, to_fixed_point

_SCHEMA = pa.schema({"t": pa.int64(), "k": pa.int32(), "n": pa.int32(), "x": pa.float64(), "s": pa.string()})
_TABLE = pa.schema({"k": pa.int32(), "c": pa.int32()})


def _stream(name: str = "in") -> Graph:
    return graph("g").source(name, _SCHEMA)


def _shown(root: Node) -> list[str]:
    return [f"{node.label} {node.describe()}" for node in topological(root)][1:]


def test_a_conjunction_is_split() -> None:
    after, notes = split_conjunctions(_stream().where("n > 1 AND (x < 2 AND k = 0 OR s = 'a')").root)
    assert _shown(after) == ["where n > 1", "where x < 2 AND k = 0 OR s = 'a'"]
    assert len(notes) == 1


def test_what_is_not_deterministic_is_not_split() -> None:
    root = _stream().where("n > 1 AND rand() < 0.5").root
    assert split_conjunctions(root) == (root, ())


def test_an_operand_that_spark_would_cast_is_not_split_off() -> None:
    root = _stream().where("n > 1 AND 'true'").root
    assert split_conjunctions(root) == (root, ())


def test_a_selection_goes_through_a_projection_that_is_undone() -> None:
    root = _stream().select("k", m="n + 1").select("m", twice="k * 2").where("twice > 4").root
    after, notes = push_where(root)
    assert _shown(after) == [
        "where (k * 2) > 4",
        "select k, n + 1 AS m",
        "select m, k * 2 AS twice",
    ]
    assert len(notes) == 2


def test_a_selection_goes_past_one_that_stays() -> None:
    root = _stream().select("k", "n", m="n + 1").where("my_udf(k) > 0").where("m > 1").root
    assert push_where(root)[0] is root
    root = (
        _stream().select("k", "n", m="n + 1").lookup("t", _TABLE, on="k").where("c > 1").where("m > 1").root
    )
    after, _ = push_where(root)
    assert _shown(after)[0] == "where (n + 1) > 1"
    assert _shown(after)[-1] == "where c > 1"


@pytest.mark.parametrize("others", ["n = 3", "n = 3 AND upper(s) = 'X'", "upper(s) = 'X' AND x < 2"])
def test_a_condition_that_can_fail_is_not_split_from_what_spark_combines_it_with(others: str) -> None:
    root = _stream().where(f"n + 1 > 0 AND {others}").root
    assert split_conjunctions(root) == (root, ())


def test_a_selection_goes_past_several_that_stay_and_the_rules_end() -> None:
    root = _stream().lookup("t", _TABLE, on="k").where("c > 1 AND c < 9").where("k <> 1").root
    after, _ = to_fixed_point(root, split_conjunctions, push_where)
    assert _shown(after) == ["where k <> 1", "lookup in t by k", "where c > 1", "where c < 9"]


def test_a_selection_goes_into_all_inputs_of_a_union() -> None:
    root = _stream("a").union(_stream("b").where("n > 0")).where("x > 1").root
    after, _ = push_where(root)
    assert [node.label for node in topological(after)] == [
        "source",
        "where",
        "source",
        "where",
        "where",
        "union",
    ]


@pytest.mark.parametrize(
    "build",
    [
        lambda: _stream().select("*", r="rand()").where("n > 1"),
        lambda: _stream().select("k", m="n + 1").where("rand() < m"),
        lambda: _stream().window("t", size="9 s", unit="s").group_by("k").agg(m="sum(n)").where("k > 1"),
        lambda: _stream().update_queue("k", "t").where("k > 1"),
        lambda: _stream().lookup("t", _TABLE, on="k").where("c > n"),
        lambda: _stream().lookup("t", _TABLE, on="k").where("n + 1 > 1"),
        lambda: _stream().lookup("t", _TABLE, on="k").where("upper(s) = 'A'").where("n + 1 > 1"),
        lambda: _stream().select("k", "n", r="uniform(0, 9)").where("n > 1"),
        lambda: _stream().select("k", m="explode(array(n, 1))").where("k > 1"),
        lambda: _stream().select("k", m="n + 1").where("exists(array(1), k -> k > m)"),
        lambda: _stream().select("k", m="n + 1").where("to_json(struct(m)) > 'a'"),
        lambda: (
            _stream("a")
            .select("t", "k")
            .join(_stream("b").select("t", "k", "x"), on="k", time="t", within="1 s")
            .where("x > 1")
        ),
    ],
)
def test_a_selection_stays_below_state_and_what_is_not_deterministic(build: Graph) -> None:
    root = build().root  # type: ignore[operator]  # a function of a graph
    assert push_where(root) == (root, ())


def test_columns_are_dropped_where_they_are_last_needed() -> None:
    root = (
        _stream()
        .where("n > 1")
        .select("t", "k", y="x * 2", z="my_udf(s)")
        .update_queue("k", "t")
        .sink("noop")
        .root
    )
    assert _shown(prune(root)[0])[:2] == ["where n > 1", "select t, k, x, s"]
    root = _stream().where("n > 1").window("t", size="9 s", unit="s").group_by("k").agg(m="sum(x)").root
    after, notes = prune(root)
    assert _shown(after)[:3] == ["select t, k, n, x", "where n > 1", "select t, k, x"]
    assert len(notes) == 2


def test_an_unused_column_is_dropped_whatever_made_it() -> None:
    root = _stream().select("k", "t", r="rand()", u="n + 1").select("k", "t").root
    after, notes = prune(root)
    assert "select k, t" in _shown(after)
    assert "rand" not in str(_shown(after))
    assert any("drops r, u" in note for note in notes)


def test_an_unused_column_that_makes_more_rows_is_kept() -> None:
    root = _stream().select("k", one="explode(array(n, 1))").select("k").sink("noop").root
    assert _shown(merge(prune(root)[0])[0])[-3:] == [
        "select k, explode(array(n, 1)) AS one",
        "select k",
        "sink noop",
    ]


def test_the_key_of_an_update_stream_is_not_dropped() -> None:
    windows = _stream().update_queue("k", "t").window("t", size="9 s", unit="s").group_by("k")
    root = windows.agg(m="sum(x)").root
    after, _ = prune(root)
    assert _shown(after)[0] == "select t, k, x"
    queue = next(node for node in topological(after) if node.label == "update queue")
    assert queue.schema.names == ["t", "k", "x"]


def test_what_several_need_is_kept_for_all() -> None:
    base = _stream()
    root = base.where("n > 1").select("t", "k").union(base.where("x > 1").select("t", "k")).root
    after, _ = prune(root)
    assert _shown(after)[0] == "select t, k, n, x"
    assert [node.label for node in topological(after)].count("source") == 1


def test_a_count_needs_its_time_only() -> None:
    root = _stream().window("t", size="9 s", unit="s").agg(n="count(*)").root
    assert _shown(prune(root)[0])[0] == "select t"


def test_neighbours_are_merged() -> None:
    root = _stream().where("n > 1").where("x < 2 OR k = 1").select("k", m="n + 1").select("k", w="m * 2").root
    after, notes = to_fixed_point(root, merge)
    assert _shown(after) == ["where n > 1 AND (x < 2 OR k = 1)", "select k, (n + 1) * 2 AS w"]
    assert [rule for rule, _ in notes] == ["merge", "merge"]


def test_a_projection_that_does_nothing_goes() -> None:
    root = _stream().select("*").select("t", "k", "n", "x", "s").root
    assert _shown(to_fixed_point(root, merge)[0]) == []


@pytest.mark.parametrize(
    "build",
    [
        lambda: _stream().select("k", m="n + 1").select(w="m * m"),
        lambda: _stream().select("k", m="rand()").select(w="m + 1"),
        lambda: _stream().select("k", m="n + 1").select(w="m + rand()"),
        lambda: _stream().where("rand() < 0.5").where("n > 1"),
        lambda: _stream().where("n > 1").where("rand() < 0.5"),
    ],
)
def test_nothing_is_computed_twice_or_elsewhere_by_merging(build: Graph) -> None:
    root = build().root  # type: ignore[operator]  # a function of a graph
    assert merge(root) == (root, ())


def _behind(root: Node) -> str:
    stream = next(node for node in topological(root) if isinstance(node, Materialize))
    return stream.inputs[0].label


def test_a_p_stream_goes_behind_what_reduces_and_before_what_widens() -> None:
    narrow = _stream().where("n > 1").select("k", "t")
    assert _behind(place_p_stream(narrow.root, ["in"])[0]) == "select"
    wide = narrow.select("*", a="k * 2", b="t + k")
    after, notes = place_p_stream(wide.root, ["in"])
    assert _shown(after) == [
        "where n > 1",
        "select k, t",
        "p-stream in: k, t",
        "select k, t, k * 2 AS a, t + k AS b",
    ]
    assert "behind where and select" in notes[0]


@pytest.mark.parametrize(
    "predicate", ["rand() < 0.5", "my_udf(n) > 1", "split(s, ',')[0] = 'a'", "n / k > 1"]
)
def test_a_p_stream_stays_before_what_only_spark_evaluates(predicate: str) -> None:
    after, _ = place_p_stream(_stream().where(predicate).root, ["in"])
    assert _behind(after) == "source"


def test_a_p_stream_stays_before_operators_with_state_and_where_streams_part() -> None:
    assert _behind(place_p_stream(_stream().update_queue("k", "t").root, ["in"])[0]) == "source"
    base = _stream()
    after, _ = place_p_stream(base.where("n > 1").union(base.where("x > 1")).root, ["in"])
    assert _behind(after) == "source"
    assert [node.label for node in topological(after)].count("p-stream") == 1


def _scan_of(made: Graph) -> PushedScan:
    after, _ = fuse(place_p_stream(made.root, ["in"])[0])
    (found,) = [node for node in topological(after) if isinstance(node, PushedScan)]
    return found


def test_what_follows_a_p_stream_becomes_one_scan() -> None:
    stored = Graph("g", Materialize("in", (_stream().root,)))
    after, _ = fuse(stored.select("*", m="n + 1").where("m > 2").select("*", v="m * m").root)
    assert isinstance(after, PushedScan)
    scan = after.scan
    assert scan.columns == ("t", "k", "n", "x", "s")
    assert scan.where == "(n + 1) > 2"
    assert scan.select is not None
    assert scan.select["v"] == "(n + 1) * (n + 1)"


def test_a_queue_leaves_conflation_to_the_reader() -> None:
    found = _scan_of(_stream().select("*", m="n + 1", w="x * 2", z="1").update_queue("k", "t", budget=3))
    assert found.scan.latest_by is not None
    assert (found.scan.latest_by.key, found.scan.latest_by.time) == (("k",), "t")
    assert not found.scan.latest_by.by_last
    fifo = _scan_of(_stream().update_queue("k", "t", policy="fifo")).scan.latest_by
    assert fifo is not None
    assert fifo.by_last, "an update goes to the tail"


@pytest.mark.parametrize(
    "options", [{"combine": False}, {"policy": "linecutting"}, {"arrival": "m"}, {"weight": "x"}]
)
def test_a_queue_that_needs_all_tuples_gets_them(options: dict[str, Any]) -> None:
    stream = graph("g").source("in", _SCHEMA.append(pa.field("m", pa.timestamp("us", "UTC"))))
    after, _ = fuse(place_p_stream(stream.update_queue("k", "t", **options).root, ["in"])[0])
    assert not any(isinstance(node, PushedScan) for node in topological(after))


def _of_files(name: str = "in") -> Graph:
    return graph("g").source(name, _SCHEMA, kind="parquet", options={"path": "files"})


def test_what_becomes_less_of_parquet_files_is_done_where_they_are_read() -> None:
    def scans(made: Graph) -> list[str]:
        return [node.describe() for node in topological(fuse(made.root)[0]) if isinstance(node, PushedScan)]

    some = _of_files().where("n > 1").select("t", "k", "x")
    windows = some.lookup("t", _TABLE, on="k").window("t", size="9 s", unit="s").group_by("c").agg(m="sum(x)")
    (scan,) = scans(windows)
    assert scan == "reads t, k, n, x; where n > 1; sum(x), count(*) by 9 s pane and k"
    (scan,) = scans(some.update_queue("k", "t"))
    assert scan == "reads t, k, n, x; where n > 1; newest of (k) by t"
    assert not scans(some), "rows as they are come quicker from Spark"
    assert not scans(some.select("t", "k", m="my_udf(x)").window("t", size="9 s", unit="s").agg(m="sum(m)"))
    unsigned = graph("g").source("in", pa.schema({"t": pa.int64(), "u": pa.uint32()}), kind="parquet")
    assert not scans(unsigned.window("t", size="9 s", unit="s").agg(m="sum(u)")), "Spark has no such type"
    assert not scans(
        unsigned.select(t="CAST(0 AS BIGINT)").window("t", size="9 s", unit="s").agg(n="count(*)")
    )
    stored, _ = place_p_stream(windows.root, ["in"])
    after, _ = fuse(stored)
    (found,) = [node for node in topological(after) if isinstance(node, PushedScan)]
    assert isinstance(found.inputs[0], Materialize)


@pytest.mark.parametrize(
    "build",
    [
        lambda here: here.window("t", size="9 s", unit="s").agg(m="approx_count_distinct(n)"),
        lambda here: here.window("t", size="9 rows", unit="s").agg(m="sum(n)"),
        lambda here: here.window("t", size="9 s", unit="s").agg(m="sum(my_udf(n))"),
        lambda here: here.window("t", size="1500 ms", slide="500 ms", unit="s").agg(m="sum(n)"),
        lambda here: here.select("t", m="my_udf(n)").window("t", size="9 s", unit="s").agg(m="max(m)"),
        lambda here: here.lookup("t", _TABLE, on="k").window("t", size="9 s", unit="s").agg(m="sum(c)"),
    ],
)
def test_an_aggregate_that_has_no_fragments_here_stays_whole(build: Graph) -> None:
    after, _ = fuse(place_p_stream(build(_stream()).root, ["in"])[0])  # type: ignore[operator]  # a function
    assert "assemble" not in [node.label for node in topological(after)]
    assert "aggregate" in [node.label for node in topological(after)]


def test_the_rules_come_to_an_end() -> None:
    with pytest.raises(RuntimeError):
        to_fixed_point(_stream().root, lambda root: (root, ("again",)))


def _most(
    condition: str | None = "bids = most",
    aggregate: str = "max(bids)",
    bids: str = "count(*)",
    on: str | None = None,
    by: str | None = None,
    turned: bool = False,
) -> Graph:
    """Return the windows that have the most bids."""
    windows = _stream().window("t", size="4 s", unit="s").group_by("k", "n").agg(bids=bids, more="max(n)")
    most = windows.group_by(*(name for name in ("window", by or on) if name)).agg(most=aggregate)
    if turned:
        windows, most = most, windows
    return windows.join_windows(most, on=on or (), condition=condition)


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (_most(), "the greatest bids of each window"),
        (_most("most = bids AND k > 1"), "the greatest bids of each window"),
        (_most("bids >= most"), "the greatest bids of each window"),
        (_most("most <= bids"), "the greatest bids of each window"),
        (_most("most >= bids", "min(bids)"), "the least bids of each window"),
        (_most("bids <= most", "min(bids)", "sum(x)"), "the least bids of each window"),
        (_most(bids="max(x)", on="k"), "the greatest bids of each window, k"),
        (_most("(bids = most)"), "the greatest bids of each window"),
        (_most(turned=True), "the greatest bids of each window"),
    ],
)
def test_windows_that_are_joined_with_the_most_of_them_leave_the_others_out(made: Graph, shown: str) -> None:
    after, notes = keep_extremes(made.root)
    windows = [node for node in topological(after) if isinstance(node, Aggregate) and node.extreme]
    assert len(windows) == 1, "both sides have the same windows still"
    assert windows[0].describe().endswith(f" by k, n; for {shown}")
    assert notes == (f"{windows[0].name}: only {shown} leaves the buckets",)
    assert made.sink("noop").plan(persist="always").explain().count("keep_extremes") == 1


def _others() -> list[Graph]:
    """Return joins of windows to which the rule must not apply: unrelated sides, or other readers."""
    windows = _stream().window("t", size="4 s", unit="s").group_by("k", "n").agg(bids="count(*)")
    most = windows.group_by("window").agg(most="max(bids)")
    of_halves = windows.group_by("window", half="k % 2").agg(most="max(bids)")
    days = pa.schema([*_SCHEMA, pa.field("day", pa.date32())])
    in_days = (
        graph("g").source("in", days).window("t", size="4 s", unit="s").group_by("k").agg(day="max(day)")
    )
    last = in_days.group_by("window").agg(last="max(day)")
    of_others = windows.where("k > 1").group_by("window").agg(most="max(bids)")
    both = windows.join_windows(most, condition="bids = most").select("k", "n", "window", "bids")
    return [
        windows.join_windows(of_others, condition="bids = most"),
        windows.where("k > 1").join_windows(most, condition="bids = most"),
        both.union(windows),
        both.select("window", "bids").union(most.select("window", bids="most")),
        windows.join_windows(of_halves, condition="bids = most"),
        in_days.join_windows(last, condition="day = last"),
    ]


@pytest.mark.parametrize(
    "made",
    [
        _most(None),
        _most("bids > most"),
        _most("bids <= most"),
        _most("bids = most OR k = 1"),
        _most("bids + 1 = most"),
        _most("n = most"),
        _most("bids >= most", "min(bids)"),
        _most(aggregate="avg(bids)"),
        _most(aggregate="max(bids) + 1"),
        _most(aggregate="max(bids + 1)"),
        _most(bids="avg(x)"),
        _most(bids="count(*) + 1"),
        _most(on="more"),
        *_others(),
    ],
)
def test_windows_that_may_match_otherwise_are_all_there(made: Graph) -> None:
    assert keep_extremes(made.root) == (made.root, ())
