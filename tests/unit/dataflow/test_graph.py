"""Writing graphs: what the builder makes, and what it says of what is wrong."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DecimalType, StructType

import penstock
from penstock.dataflow import Graph, Persist, graph
from penstock.dataflow.nodes import RowWindow, Sink, UpdateQueue, Window, topological
from penstock.dataflow.shape import shape
from penstock.errors import InvalidUsageError
from penstock.operators.types import UNKNOWN, scan_schema
from penstock.operators.update_stream.operator_options import (
    JoinArguments,
    JoinOptions,
    QueueArguments,
    QueueOptions,
    StateArguments,
    StateOptions,
    UnionArguments,
    WindowArguments,
    WindowOptions,
)
from tests.sketches import needs_sketches

READINGS = pa.schema(
    {"time": pa.timestamp("us"), "seconds": pa.int64(), "plug": pa.int32(), "load": pa.float64()}
)
READ = graph("loads").source("readings", READINGS)
PLUGS = pa.schema({"plug": pa.int32(), "house": pa.string()})


NAMES: Any = ("plug", "time")


def _typo(**options: Any) -> Any:
    """Return options that no type checker lets pass."""
    return options


def readings(name: str = "readings") -> Graph:
    return graph("loads").source(name, READINGS)


def test_a_graph_knows_the_columns_of_every_operator() -> None:
    made = (
        readings()
        .where("LOAD > 0")
        .select("time", "plug", "load * 2 AS twice", half="plug div 2", odd="my_udf(plug)")
        .lookup("plugs", PLUGS, on="plug")
        .window("time", size="60 s", slide=timedelta(seconds=1))
        .group_by("house", even="half * 2")
        .agg({"n": "count(*)"}, mean="avg(twice)", least="min(half)", total="sum(half)", some="sum(odd)")
        .where("n > 1")
        .sink("console", rows=3)
    )
    kinds = {one.name: one.type for one in made.schema}
    instant = pa.timestamp("us", "UTC")
    assert kinds == {
        "house": pa.string(),
        "even": pa.int64(),
        "window": pa.struct({"start": instant, "end": instant}),
        "n": pa.int64(),
        "mean": pa.float64(),
        "least": pa.int64(),
        "total": pa.int64(),
        "some": UNKNOWN,
    }
    assert [node.label for node in topological(made.root)] == (
        ["source", "where", "select", "lookup", "select", "window", "aggregate", "where", "sink"]
    )


def test_no_method_changes_a_graph() -> None:
    first = readings()
    second = first.where("load > 0")
    assert first.root is not second.root
    assert second.root.inputs == (first.root,)


def test_names_are_given_or_made() -> None:
    made = readings().where("load > 0").where("plug > 0").where("plug < 9", name="small")
    assert [node.name for node in topological(made.root)] == ["readings", "where", "where_2", "small"]


def test_a_window_without_a_slide_does_not_overlap() -> None:
    window = readings().window("seconds", size="1 min", unit="s").root
    assert isinstance(window, Window)
    assert (window.size_ms, window.slide_ms, window.pane_ms, window.time_unit) == (
        60_000,
        60_000,
        60_000,
        "s",
    )


def test_streams_are_united_and_joined() -> None:
    left = readings("left").select("time", "plug", "load")
    right = readings("right").select("time", "plug", "load")
    assert left.union(right).schema.names == ["time", "plug", "load"]
    joined = left.join(
        right.select("time", "plug", "load AS other"),
        on="plug",
        time="time",
        within="5 s",
        condition="other > load",
    )
    assert joined.schema.names == ["time", "plug", "load", "other"]


def test_a_join_of_a_graph_with_itself_shares_its_source() -> None:
    base = readings()
    high, low = base.where("load > 9"), base.where("load < 1")
    made = high.union(low)
    assert [node.name for node in topological(made.root)].count("readings") == 1


def minutes(slide: str = "1 s") -> Graph:
    return READ.window("time", size="60 s", slide=slide).group_by("plug").agg(load="avg(load)")


def totals() -> Graph:
    return READ.window("time", size="3600 s", slide="1 s").agg(total="avg(load)")


def other_windows() -> Graph:
    """Return windows of which some have become null."""
    return minutes().where("load > 1").select("plug", "load", window="CASE WHEN load > 2 THEN window END")


def served(load: str = "avg(load)", mode: str = "lazy", **more: Any) -> Graph:
    return READ.window("time", size="60 s", slide="1 s", mode=mode, **more).group_by("plug").agg(load=load)


def renamed() -> Graph:
    return served().select("plug", w="window").select("plug", window="w")


def weighted(weight: Any, *groups: str) -> Graph:
    looked_up = READ.lookup("plugs", PLUGS, on="plug")
    return (
        looked_up.window("time", size="60 s", mode="lazy", weight=weight).group_by(*groups).agg(n="count(*)")
    )


def counted(*texts: str) -> Graph:
    return READ.window("time", size="60 s").agg(dict(zip("abc", texts, strict=False)))


def housed(text: str) -> Graph:
    return READ.lookup("plugs", PLUGS, on="plug").window("time", size="60 s").agg(a=text)


@pytest.mark.parametrize("mode", ["append", "lazy"])
def test_a_reader_makes_sets_of_distinct_values_for_any_number_of_counts(mode: str) -> None:
    windows = READ.window("time", size="60 s", slide="1 s", mode=mode).group_by("plug")
    made = windows.agg(
        kinds="count(DISTINCT load * 2)",
        high="count(DISTINCT seconds) FILTER (WHERE load > 5)",
        newest="last(load)",
    )
    assert {one.name: one.type for one in made.schema}["kinds"] == pa.int64()
    (stream,) = made.sink("noop").plan().streams
    (reader,) = stream.readers
    assert reader.fragments is not None
    assert [(one.kind, one.expression) for one in reader.fragments.partials] == [
        ("distinct", "load * 2"),
        ("distinct", "CASE WHEN load > 5 THEN seconds END"),
        *(("last", "load"), ("max", "time"), ("count", "*")),
    ]
    assert scan_schema(reader, stream.schema).field("distinct_load_2").type == pa.list_(pa.float64())


@needs_sketches
def test_no_reader_makes_sketches_as_only_spark_has_their_hash() -> None:
    made = READ.window("time", size="60 s").agg(about="approx_count_distinct(load)").sink("noop")
    (stream,) = made.plan(persist="always").streams
    assert [reader.fragments for reader in stream.readers] == [None]


def nested() -> Graph:
    return minutes().group_by("window").agg(n="count(DISTINCT window)")


def of_maps() -> Graph:
    schema = pa.schema({"t": pa.int64(), "m": pa.list_(pa.map_(pa.string(), pa.int64()))})
    windows = graph("maps").source("in", schema).window("t", size="1 s", unit="s")
    return windows.agg(n="approx_count_distinct(m, 0.01) FILTER (WHERE t > 1)")


def in_rows(mode: str = "append", **more: Any) -> Graph:
    windows = READ.window("time", size="100 rows", slide="10 rows", watermark_delay="5 s", mode=mode, **more)
    return windows.group_by("plug").agg(load="avg(load)", kinds="count(DISTINCT load)")


def test_a_window_may_be_of_so_many_tuples_of_each_group() -> None:
    made = in_rows()
    assert made.schema.names == ["plug", "window", "load", "kinds"]
    assert made.key == ()
    assert in_rows("eager").key == ("plug",)
    (window,) = (node for node in topological(made.root) if isinstance(node, RowWindow))
    assert (window.size_rows, window.slide_rows, window.delay_ms) == (100, 10, 5000)
    assert READ.window("seconds", size="1 row", unit="s").agg(n="count(*)").schema.names == ["window", "n"]


@needs_sketches
def test_windows_may_be_sessions_of_each_group() -> None:
    windows = READ.window("time", session="10 min", watermark_delay="5 s")
    made = windows.group_by("plug").agg(load="median(load)")
    assert made.schema.names == ["plug", "window", "load"]
    plan = made.where("plug > 3").sink("noop").plan(persist="always")
    (stream,) = plan.streams
    assert [reader.fragments for reader in stream.readers] == [None]
    assert plan.remaining[0].describe() == "sessions with a gap of 600 s over time, 5 s late"
    with pytest.raises(InvalidUsageError, match="session windows cannot be aggregated by window"):
        made.group_by("window").agg(most="max(load)")
    with pytest.raises(InvalidUsageError, match="session windows cannot be joined"):
        made.join_windows(made)
    for wrong in ({"size": "5 s"}, {"mode": "lazy"}, {"slide": "5 s"}):
        with pytest.raises(InvalidUsageError, match="session windows"):
            READ.window("time", session="10 min", **wrong)  # type: ignore[arg-type]  # what is tested


def test_windows_of_rows_are_made_behind_the_reader_and_the_plan_says_so() -> None:
    made = in_rows("lazy", budget=9, policy="fifo", weight="load").where("plug > 3")
    plan = made.sink("noop").plan(persist="always")
    (stream,) = plan.streams
    assert stream.schema.names == ["time", "plug", "load"]
    assert [reader.fragments for reader in stream.readers] == [None]
    assert [node.label for node in plan.remaining] == ["window", "aggregate", "where", "sink"]
    says = (
        "100 rows by 10 rows of each group in the order of time, counted in its bucket, 5 s late, lazy, fifo"
    )
    assert plan.remaining[0].describe().startswith(says)
    assert plan.explain().count("100 rows by 10 rows of each group") == 2, "as written and as planned"


def test_what_selects_tuples_goes_before_a_p_stream_and_what_selects_windows_of_rows_stays() -> None:
    read = READ.where("load > 0").select("time", "plug", "load")
    windows = read.window("time", size="9 rows").group_by("plug")
    plan = windows.agg(n="sum(load)").where("plug = 3 AND n > 1").sink("noop").plan(persist="always")
    (stream,) = plan.streams
    assert stream.ingest is not None
    assert stream.ingest.where == "load > 0", "the plug would do, too; but nothing moves past a state"
    assert [node.describe() for node in plan.remaining if node.label == "where"] == ["plug = 3 AND n > 1"]


def test_windows_that_end_together_are_joined() -> None:
    made = minutes().where("load > 1").join_windows(totals(), condition="load > total")
    assert made.schema.names == ["plug", "window", "load", "total"]
    assert made.root.describe() == "on window of 1 s and load > total"
    assert [node.label for node in topological(made.root)].count("source") == 1
    assert not made.root.key
    plan = made.group_by("window").agg(n="count(*)").sink("noop").plan()
    (stream,) = plan.streams
    assert [len(reader.fragments.partials) for reader in stream.readers if reader.fragments] == [3, 3]
    assert stream.schema.names == ["time", "plug", "load"]


def test_an_update_stream_has_its_key_until_it_is_aggregated_by_window() -> None:
    queue = readings().update_queue("plug", "time", policy="fifo", budget=5, arrival="time")
    assert queue.root.key == ("plug",)
    kept = queue.select("plug", "time", "load + 1 AS more").where("more > 2")
    assert kept.root.key == ("plug",)
    windows = kept.window("time", size="1 s").group_by("plug").agg(n="count(*)")
    assert windows.root.key == ("plug",)
    assert windows.group_by("window").agg(total="sum(n)").root.key == ()


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_windows_that_are_served_by_key_are_an_update_stream_and_told_in_the_plan(mode: str) -> None:
    served = READ.window("time", size="60 s", slide="1 s", mode=mode, policy="fifo", budget=9, cost="2ms")
    made = served.group_by("plug").agg(load="avg(load)")
    assert made.key == ("plug",)
    assert served.agg(load="avg(load)").key == ()
    text = made.where("load > 1").sink("noop").explain(persist="always")
    assert text.count(f"60 s by 1 s over time, {mode}, fifo, budget 9") == 2, "as written and as planned"


@pytest.mark.parametrize("persist", ["always", "never"])
def test_the_weight_of_windows_reaches_the_scheduler_and_is_no_result(persist: Persist) -> None:
    windows = READ.where("plug > 0").window("time", size="60 s", mode="lazy", weight="LOAD")
    made = windows.group_by("plug").agg(n="count(*)")
    assert made.schema.names == ["plug", "window", "n"]
    plan = made.sink("noop").plan(persist=persist)
    assert "lazy, in_place, weight load" in plan.explain()
    assert "__penstock" not in plan.explain()
    if persist == "always":
        ((reader,),) = (stream.readers for stream in plan.streams)
        assert reader.fragments is not None
        assert ("last", "load") in [(one.kind, one.expression) for one in reader.fragments.partials]
    by_key = READ.window("time", size="60 s", mode="eager", weight={1: 9.0}).group_by("plug")
    assert "eager, in_place, weights by key" in by_key.agg(n="count(*)").explain(persist=persist)


@pytest.mark.parametrize("persist", ["always", "never"])
def test_a_checkpoint_of_windows_does_not_depend_on_their_budget(persist: Persist) -> None:
    shapes = []
    for budget, policy in ((9, "fifo"), (5, "fifo"), (9, "in_place")):
        plan = served(budget=budget, policy=policy).sink("noop").plan(persist=persist)
        shapes.append(shape(plan))
    assert shapes[0] == shapes[1]
    assert shapes[0] != shapes[2]


def test_a_queue_needs_the_columns_of_its_arrival_and_weight() -> None:
    queue = readings().update_queue("plug", "time", arrival="time", weight="load")
    assert queue.root.needs(frozenset({"plug"})) == (frozenset({"plug", "time", "load"}),)
    with pytest.raises(InvalidUsageError, match="weigh"):
        readings().update_queue("plug", "time", weight="weigh")
    by_key = readings().update_queue("plug", "time", weight={1: 2.0})
    assert by_key.root.needs(frozenset()) == (frozenset({"plug", "time"}),)


def test_a_queue_that_may_append_sees_every_tuple() -> None:
    for semantics, combine in (("update", True), ("append", False), ("adaptive", False)):
        root = readings().update_queue("plug", "time", semantics=semantics).root
        assert isinstance(root, UpdateQueue)
        assert root.options.may_conflate is combine
        assert (semantics in root.describe()) is not combine


def _queue() -> Graph:
    return readings().update_queue("plug", "time")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: graph(""), "needs a name"),
        (
            lambda: readings().where("lod > 1"),
            r"no column 'lod'.*expression=lod > 1.*node=where.*mean 'load'",
        ),
        (lambda: readings().where("load + 1"), r"the filter is not a condition.*type=double"),
        (lambda: readings().where("(my_udf(load) + 1)"), "the filter is not a condition"),
        (lambda: readings().where("concat(my_udf(load), 'x')"), "the filter is not a condition"),
        (lambda: readings().where("plug + 1"), r"the filter is not a condition.*type=int\b"),
        (lambda: readings().where("CAST(my_udf(load) AS date)"), "the filter is not a condition"),
        (lambda: readings().where("load >"), "cannot be parsed"),
        (lambda: readings().where("sum(load) > 1"), "only windows have aggregates"),
        (lambda: readings().select("load", load="plug"), "two columns have the same name.*load"),
        (lambda: readings().select("load * 2"), "expression AS name"),
        (lambda: readings().select(), "no columns"),
        (lambda: readings().window("load", size="1 s"), "neither a timestamp nor an integer with a unit"),
        (lambda: readings().window("seconds", size="1 s"), "unit='s'"),
        (
            lambda: readings().window("time", size="100 rows", slide="1 s"),
            "counts rows, the other is a duration",
        ),
        (lambda: readings().window("time", size="9 rows", slide="10 rows"), "not from 1 row to their size"),
        (lambda: readings().window("time", size=f"{2**63} rows"), "the windows are too large"),
        (
            lambda: readings().window("time", size="9 rows", watermark_delay="5 rows"),
            "no duration but a number of rows",
        ),
        (lambda: readings().window("load", size="9 rows"), "neither a timestamp nor an integer with a unit"),
        (lambda: readings().window("time", size="9 rows").where("load > 1"), "has no aggregate"),
        (
            lambda: readings().window("time", size="9 rows", budget=3),
            "do not take this option: option=budget",
        ),
        (lambda: in_rows().join_windows(totals()), "windows of rows cannot be joined.*100 rows by 10"),
        (lambda: minutes().join_windows(in_rows()), "windows of rows cannot be joined"),
        (
            lambda: in_rows().where("load > 1").group_by("window").agg(n="count(*)"),
            "windows of rows cannot be aggregated by window: window=100 rows by 10 rows of each",
        ),
        (lambda: readings().window("time", size="1 s", unit="s"), "the unit differs"),
        (lambda: readings().window("tim", size="1 s"), "no column 'tim'.*mean 'time'"),
        (lambda: readings().window("time", size="1 s", slide="2 s"), "slide is longer"),
        (lambda: readings().window("time", size="1 us"), "milliseconds"),
        (lambda: readings().agg(n="count(*)"), "needs a window"),
        (lambda: readings().window("time", size="1 s").agg(), "no aggregate is given"),
        (lambda: readings().window("time", size="1 s").agg(n="load"), "no aggregate"),
        (
            lambda: readings().window("time", size="1 s").agg(n="sum(load) + plug"),
            "add it to group_by, or use it in an aggregate",
        ),
        (lambda: readings().window("time", size="1 s").group_by("plgu"), "mean 'plug'"),
        (
            lambda: readings().window("time", size="1 s").group_by("plug").group_by("plug"),
            "group_by is called twice",
        ),
        (lambda: readings().window("time", size="1 s").where("load > 1"), "has no aggregate"),
        (lambda: readings().window("time", size="1 s").plan(), "has no aggregate"),
        (
            lambda: readings().window("time", size="1 s").agg(load="averge(load)"),
            "has no aggregate: .*did you mean 'avg'",
        ),
        (lambda: readings().sink("noop").where("load > 1"), "nothing may follow a sink"),
        (lambda: readings().where("load > 1", name="readings"), "same name"),
        (lambda: readings().union(readings()), "two sources have the same name"),
        (
            lambda: readings("a").union(readings("b").select("load")),
            "streams of a union differ: stream 2 and the first: missing=",
        ),
        (lambda: readings("a").union(_queue().select("*"), name="u"), "update keys of a union differ"),
        (lambda: readings().lookup("plugs", PLUGS, on="house"), "no column 'house'"),
        (lambda: readings().union(*NAMES), "an input is not a graph: got=str node=union"),
        (lambda: counted("count(DISTINCT load)", "mode(load)"), "do not support this aggregate: name=b"),
        (lambda: counted("count(DISTINCT load, plug)"), "do not support this aggregate: name=a"),
        (nested, "a nested type cannot be counted: expression=window type=struct"),
        pytest.param(
            of_maps,
            "values that contain maps cannot be counted: expression=m type=array",
            marks=needs_sketches,
        ),
        (
            lambda: housed("max(house)"),
            r"an aggregate does not take values of this type: expression=max\(house\).*first and last",
        ),
        (lambda: minutes().join_windows(minutes("2 s")), "end at different times.*1 s over.*2 s over"),
        (lambda: minutes().join_windows(minutes(), on="plg"), "mean 'plug'"),
        (lambda: minutes().join_windows(minutes(), on="plug"), "two columns have the same name.*load"),
        (lambda: minutes().join_windows(totals(), on="plug"), "no column 'plug'"),
        (lambda: minutes().join_windows(totals(), condition="lode > total"), "mean 'load'"),
        (
            lambda: minutes().select("plug", "load").join_windows(totals()),
            "between windows and their join",
        ),
        (
            lambda: minutes().join_windows(readings("b")),
            "an operator between windows and their join is not allowed",
        ),
        (lambda: minutes().select("load", window="window.start").join_windows(totals()), "window is changed"),
        (lambda: other_windows().join_windows(totals()), "window is changed before the join of windows"),
        (
            lambda: other_windows().group_by("window").agg(n="count(*)"),
            "window is changed before the aggregate",
        ),
        (lambda: minutes().join_windows(totals(), on="window"), "window is always part of the join"),
        (
            lambda: readings().update_queue("plug", "time", policy="lifo"),
            "unknown value: option=policy got=lifo",
        ),
        (
            lambda: served(mode="lasy"),
            r"option=mode got=lasy known=\['lazy', 'eager', 'append'\] node=window",
        ),
        (lambda: served(policy="lifo"), "unknown value: option=policy got=lifo"),
        (lambda: served(policy="linecuting"), "got=linecuting.*did you mean 'linecutting'"),
        (
            lambda: served(mode="append", budget=3),
            r"do not take this option: option=budget node=window.*mode='lazy'",
        ),
        (lambda: served(mode="append", policy="in_place"), "do not take this option: option=policy"),
        (lambda: served(mode="append", cost="1ms"), "do not take this option: option=cost"),
        (lambda: served(mode="append", weight={1: 2.0}), "do not take this option: option=weight"),
        (
            lambda: served(budget=-3),
            "the budget is not positive: budget=-3 node=window. Hint: pass None to serve all",
        ),
        (lambda: served(budget="often"), "'often' is not a duration"),
        (lambda: served(cost="xx"), "'xx' is not a duration: node=window"),
        (lambda: served(weight=3), "neither a column nor a mapping: weight=3 node=window"),
        (
            lambda: weighted("house"),
            "of this type cannot be the weight: column=house type=string node=window",
        ),
        (lambda: weighted({1: 2.0}, "plug", "house"), r"a key of one column: key=\['plug', 'house'\]"),
        (lambda: weighted({1: -2.0}, "plug"), "not a positive, finite number: weight=-2.0"),
        (lambda: readings().update_queue("plug", "time", budget=0), "not positive.* node=update_queue"),
        (lambda: readings().update_queue("plug", "time", budget="1 s"), "a budget of time needs apply="),
        (
            lambda: readings().update_queue("plug", "time", cost="0 s"),
            "a duration is not positive: option=cost",
        ),
        (
            lambda: readings().update_queue(("plug", "load"), "time", weight={1: 2.0}),
            "a key of one column.*node=update_queue",
        ),
        (
            lambda: readings().union(readings("b"), key="plug", time="time", weight={1: 0}),
            "not a positive, finite number: .*node=union",
        ),
        (lambda: served(weight="lode"), "no column 'lode'.*mean 'load'"),
        (
            lambda: served().where("load > 1").group_by("window").agg(n="count(*)"),
            "only windows in append mode can be aggregated by window: mode=lazy",
        ),
        (
            lambda: renamed().group_by("window").agg(n="count(*)"),
            "only windows in append mode can be aggregated by window",
        ),
        (lambda: served().join_windows(totals()), "in append mode can be joined: mode=lazy"),
        (lambda: minutes().join_windows(served(mode="eager")), "in append mode can be joined: mode=eager"),
        (lambda: readings().update_queue("plugs", "time"), "mean 'plug'"),
        (
            lambda: readings().update_queue("plug", "time", **_typo(budgt=1)),
            "no such option: option=budgt function=update_queue. Hint: did you mean 'budget'",
        ),
        (
            lambda: readings().union(readings("b"), key="plug", time="time", **_typo(budgt=1)),
            "no such option: option=budgt function=union. Hint: did you mean 'budget'",
        ),
        (
            lambda: _queue().join(
                _queue(), on="plug", time="time", within="1 s", **_typo(watermark_dely="1 s")
            ),
            "no such option: option=watermark_dely function=join. Hint: did you mean 'watermark_delay'",
        ),
        (
            lambda: readings().window("time", **_typo(sze="60 s")),
            "no such option: option=sze function=window. Hint: did you mean 'size'",
        ),
        (
            lambda: readings().sink("parquet", options={"path": "x"}),
            "an option of a sink is a text, .*option=options .*by its name",
        ),
        (lambda: readings().sink("consol"), "the kind of sink is unknown: .*did you mean 'console'"),
        (
            lambda: readings().window("time", size="60 s").agg(n=len),  # type: ignore[arg-type]  # is tested
            "an expression of a graph must be a text in Spark SQL",
        ),
        (lambda: _queue().select("time", "load"), "would lose its key.*column=plug"),
        (lambda: _queue().select("load", plug="plug + 1"), "update key would change.*column=plug"),
        (
            lambda: graph("g").source("s", READINGS, kind="pipe"),  # type: ignore[arg-type]  # what is tested
            "kind of source is unknown",
        ),
    ],
)
def test_what_is_wrong_is_told_when_it_is_written(build: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidUsageError, match=says):
        build()


class SparkColumn:
    """A column of Spark, as far as it needs no session."""

    def __iter__(self) -> Iterator[str]:
        raise TypeError("Column is not iterable")

    def __repr__(self) -> str:
        return "Column<'plug'>"

    def __bool__(self) -> bool:
        raise ValueError("a Column has no truth")

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = object.__hash__


@pytest.mark.parametrize(("option", "build"), [
    ("key", lambda graph, column: graph.update_queue(column, "time")),
    ("key", lambda graph, column: graph.update_queue(["load", column], "time")),
    ("time", lambda graph, column: graph.update_queue("plug", column)),
    ("arrival", lambda graph, column: graph.update_queue("plug", "time", arrival=column)),
    ("key", lambda graph, column: graph.union(readings("b"), key=column, time="time")),
    ("time", lambda graph, column: graph.union(readings("b"), key="plug", time=column)),
    ("on", lambda graph, column: graph.join(readings("b"), on=column, time="time", within="1 s")),
    ("time", lambda graph, column: graph.join(readings("b"), on="plug", time=column, within="1 s")),
    ("on", lambda graph, column: graph.lookup("plugs", "plug bigint, home string", on=column)),
    ("key", lambda graph, column: graph.apply(None, column)),
    ("time", lambda graph, column: graph.apply(None, "plug", time=column)),
    ("keep", lambda graph, column: graph.transactions(None, keep=column)),
    ("time", lambda graph, column: graph.transactions(None, time=column)),
    ("time", lambda graph, column: graph.window(column, size="60 s")),
    ("group_by", lambda graph, column: graph.window("time", size="60 s").group_by(column)),
    ("key", lambda graph, column: penstock.graph("h").source("s", READINGS, key=column, time="time")),
    ("time", lambda graph, column: penstock.graph("h").source("s", READINGS, key="plug", time=column)),
])  # fmt: skip
def test_a_column_of_spark_is_no_name_of_a_column(option: str, build: Callable[[Any, Any], object]) -> None:
    text = re.escape(
        f"columns are given by name: option={option} got=Column<'plug'>. "
        f"Hint: write the name as text, such as {option}='plug'"
    )
    with pytest.raises(InvalidUsageError, match=text):
        build(readings(), SparkColumn())


def test_a_source_takes_its_columns_as_text_or_from_a_frame() -> None:
    text = "time timestamp, `a b` decimal(10,2), c array<struct<d: int>>"
    inner = StructType().add("d", "integer")
    schema = StructType().add("time", "timestamp").add("a b", DecimalType(10, 2)).add("c", ArrayType(inner))
    made = graph("g").source("s", text).schema
    assert made.types[:2] == [pa.timestamp("us", "UTC"), pa.decimal128(10, 2)]
    for given in (schema, SimpleNamespace(schema=schema)):
        assert graph("g").source("s", given).schema == made
    ours = graph("g").source("s", READINGS).sink("org.example.Sink")
    assert isinstance(ours.root, Sink), "what is not known may be a user's own"


@pytest.mark.parametrize(
    ("operator", "options", "arguments", "written"),
    [
        (penstock.update_queue, QueueOptions, QueueArguments, {"df", "key", "time"}),
        (
            penstock.update_join,
            JoinOptions,
            JoinArguments,
            {"left", "right", "key", "time", "within", "condition", "unit"},
        ),
        (
            penstock.update_window,
            WindowOptions,
            {**WindowArguments.__annotations__, **StateArguments.__annotations__},
            {"df", "key", "time", "size", "slide", "session", "aggs", "unit"},
        ),
    ],
)
def test_an_operator_its_options_and_the_builder_have_the_same_arguments(
    operator: Any, options: type[StateOptions], arguments: Any, written: set[str]
) -> None:
    given = inspect.signature(operator).parameters
    defaults = {one.name: one.default for one in fields(options)}
    names = getattr(arguments, "__annotations__", arguments)
    assert defaults.keys() == set(names) == given.keys() - written - {"name", "schema"}
    assert {name: given[name].default for name in defaults} == defaults


def test_a_union_takes_what_a_queue_takes_but_semantics() -> None:
    assert QueueArguments.__annotations__.keys() - UnionArguments.__annotations__.keys() == {"semantics"}
