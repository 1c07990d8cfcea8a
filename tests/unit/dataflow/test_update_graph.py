"""Graphs of update streams: nodes keep the key; unions and joins of updates are planned."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.dataflow import Graph, Persist, graph
from penstock.dataflow.nodes import Join, Materialize, Union, UpdateUnion, topological, update_time
from penstock.dataflow.nodes.trigger import (
    find_longest_intervals,
    find_promises,
    find_trigger_interval,
    promises_from_arrival,
)
from penstock.dataflow.runnable import check_runnable, holds_back
from penstock.errors import InvalidUsageError

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.float64(), "w": pa.int32()})
SHORT = pa.schema({"k": pa.string(), "t": pa.int32()})
NAMES = pa.schema({"k": pa.string(), "name": pa.string()})


def stream(name: str = "a", key: str = "k") -> Graph:
    return graph("g").source(name, SCHEMA, key=key, time="t")


def plain(name: str = "a") -> Graph:
    return graph("g").source(name, SCHEMA)


def queue(name: str = "a") -> Graph:
    return plain(name).update_queue("k", "t", name=f"newest {name}")


def windows(above: Graph, *groups: str | None, mode: str = "append") -> Graph:
    by = [group for group in groups or ("k",) if group]
    return above.window("t", size="9 s", unit="s", mode=mode).group_by(*by).agg(v="sum(v)")


@pytest.mark.parametrize(
    "made",
    [
        stream(),
        queue(),
        queue().where("v > 1"),
        queue().lookup("names", NAMES, on="k"),
        queue().select("*", twice="v * 2"),
        stream().union(stream("b")),
        stream().join(stream("b").select("k", "t", x="v"), on="k", time="t", within="1 s", unit="s"),
        queue().where("v > 1").select("*").where("k <> 'x'"),
        stream().update_queue("k", "t"),
        plain().union(plain("b"), key="k", time="t"),
        windows(stream()),
        windows(queue()).where("v > 1").select("k", "v", t="v"),
        windows(plain(), mode="lazy"),
        windows(plain(), mode="eager").lookup("names", NAMES, on="k").select("k", "v", t="v"),
        windows(stream()).join_windows(windows(plain("b"), None).select("window", x="v")),
        windows(plain(), None).select("window", x="v").join_windows(windows(stream("b"))),
        windows(stream(), "k", "w").group_by("window", "k").agg(v="sum(v)"),
    ],
)
def test_no_operator_may_lose_or_change_the_key_of_an_update_stream(made: Graph) -> None:
    assert made.key == ("k",)
    assert made.where("v > 2").select("k", "v").key == ("k",)
    made = made if "t" in made.schema.names else made.select("*", t="v")
    for wrong in ("v", "t AS k", "upper(k) AS k", "k AS key", "k AS K"):
        with pytest.raises(
            InvalidUsageError, match=r"the update key would change|would lose its key"
        ) as error:
            made.select("t", wrong, name="mine")
        assert "column=k" in str(error.value)
        assert "node=mine" in str(error.value)


@pytest.mark.parametrize("persist", ["always", "never"])
def test_planned_operators_keep_the_key_too(persist: Persist) -> None:
    for made in (windows(stream()), windows(queue(), mode="lazy"), windows(plain(), mode="eager")):
        written = made.where("v > 1").sink("noop")
        assert written.plan(persist=persist).root.key == written.key == ("k",)


APPLY = "an update stream would lose its key: column=k.*keep it in output_schema"
CASES: list[tuple[Callable[[], Graph], str]] = [
    (lambda: graph("g").source("a", SCHEMA, key="k"), "an update stream needs a key and a time"),
    (lambda: graph("g").source("a", SCHEMA, key="x", time="t"), "there is no column 'x'"),
    (lambda: stream().union(stream("b", "w")), "the update keys of a union differ"),
    (lambda: stream().update_queue("w", "t"), "would lose its key: column=k key=w node=update_queue"),
    (lambda: plain().update_queue("k", "t", output_schema="v double", apply=len), APPLY),
    (lambda: stream().union(stream("b"), output_schema="v double", apply=len), APPLY),
    (lambda: windows(stream(), None), "would lose its key: column=k node=aggregate. Hint: group by k"),
    (lambda: windows(stream(), "w", mode="lazy"), "would lose its key: column=k"),
    (
        lambda: stream().window("t", size="9 s", unit="s").group_by(j="upper(k)").agg(n="count(*)"),
        "would lose its key: column=k",
    ),
    (
        lambda: windows(stream(), mode="lazy").union(windows(stream("b"), mode="lazy")),
        r"have no common time.*compute a time, such as at='window.end' for windows",
    ),
    (lambda: stream().union(plain("b")), "the update keys of a union differ"),
    (lambda: stream().union(stream("b").select("k", "t", "v")), "the streams of a union differ"),
    (
        lambda: stream().select("k", "v").union(stream("b").select("k", "v")),
        "have no common time",
    ),
    (
        lambda: stream().select("k", "v", t="t + 1").union(stream("b").select("k", "v", "t")),
        "have no common time",
    ),
    (
        lambda: plain().union(plain("b"), prefer=0),
        "only a union of update streams has options.*options=prefer",
    ),
    (
        lambda: windows(stream()).union(windows(stream("b")), prefer=0),
        "only a union of update streams has options.*or pass key= and time= here",
    ),
    (lambda: windows(stream()).union(windows(stream("b"), mode="lazy")), "have no common time"),
    (lambda: plain().union(plain("b"), nulls="drop"), "only a union of update streams .*options=nulls"),
    (lambda: stream().union(stream("b"), prefer=2), "no such input to prefer"),
    (lambda: stream().union(stream("b"), prefer="c"), "no such input to prefer.*one of a, b"),
    (
        lambda: stream().where("v > 1").union(stream().where("v < 0"), prefer="a"),
        "several inputs have the preferred name",
    ),
    (lambda: _join(stream("b").select("k", "t", "v")), "two columns have the same name.*column=v"),
    (lambda: _join(stream("b", "w").select("k", "t", w2="w", w="w")), "two columns|joined by their key"),
    (lambda: _join(stream("b").select("k", "t", x="v"), on=["k", "t"]), "joined by their key"),
    (lambda: _join(plain("b").select("k", "t", x="v")), "update streams are joined by their key.*right=none"),
    (
        lambda: _join(stream("b").select("k", "t", x="v"), unit=None),
        "integer time column has an unknown unit",
    ),
    (
        lambda: _join(stream("b").select("k", "t", x="v"), within="5 ms"),
        "not a multiple of the time column's unit",
    ),
    (lambda: _join(stream("b").select("k", "t", x="v"), watermark_delay="5 ms"), "option=watermark_delay"),
    (lambda: _join(stream("b").select("k", "t", x="v"), condition="v + x"), "condition is not boolean"),
    (lambda: _join(stream("b").select("k", x="v")), "there is no column 't'"),
    (
        lambda: _join(graph("g").source("b", SHORT, key="k", time="t")),
        "different types .*=t left=bigint",
    ),
]


def _join(other: Graph, **options: object) -> Graph:
    given: dict[str, object] = {"on": "k", "time": "t", "within": "1 s", "unit": "s"} | options
    return stream().join(other, **given)  # type: ignore[arg-type]  # some are wrong on purpose


@pytest.mark.parametrize(("wrong", "message"), CASES)
def test_what_is_wrong_with_update_streams_is_told_when_it_is_written(
    wrong: Callable[[], Graph], message: str
) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        wrong()


def test_a_union_of_update_streams_prefers_by_position_operator_or_source() -> None:
    high, low = stream("a").where("v > 1", name="high"), stream("b").where("v < 0")
    found = []
    for prefer in (None, 0, 1, "high", "a", "b"):
        root = high.union(low, prefer=prefer).root
        assert isinstance(root, UpdateUnion)
        assert root.time == "t"
        found.append(root.prefer)
    assert found == [None, 0, 1, 0, 0, 1]
    assert type(plain().union(plain("b")).root) is Union
    assert "ties to high" in high.union(low, prefer=0).root.describe()


def test_rules_move_nothing_past_a_union_or_join_of_update_streams_and_keep_their_time() -> None:
    other = stream("b").select("k", "t", x="v")
    for made in (stream().union(stream("b")), _join(other)):
        root = made.where("v > 1").select("k", "v").sink("noop").plan(persist="always").root
        labels = [node.label for node in topological(root)]
        stateful = next(node for node in topological(root) if isinstance(node, UpdateUnion | Join))
        assert labels.index("where") > labels.index(stateful.label)
        assert all("t" in above.schema.names for above in stateful.inputs)
        assert not any("w" in above.schema.names for above in stateful.inputs), "nobody needs it"
        stored = [node.schema.names for node in topological(root) if isinstance(node, Materialize)]
        assert len(stored) == 2
        assert not any("w" in names for names in stored)
        assert root.key == ("k",)


def test_the_time_of_an_update_stream_is_followed() -> None:
    assert update_time(stream().where("v > 1").select("*").root) == "t"
    assert update_time(queue().lookup("names", NAMES, on="k").root) == "t"
    assert update_time(stream().select("k", t="v").root) is None
    assert update_time(plain().root) is None


def test_one_query_has_room_for_one_state() -> None:
    made = queue("a").union(queue("b"), name="both").sink("noop")
    for persist in ("never", {"newest a": "always", "a": "never", "b": "never"}):
        with pytest.raises(InvalidUsageError, match="can hold only one window, update queue, union or join"):
            check_runnable(made.plan(persist=persist).root)  # type: ignore[arg-type]  # a mapping of literals
    check_runnable(made.plan(persist={"newest a": "always", "newest b": "always"}).root)
    check_runnable(stream("a").union(stream("b")).sink("noop").plan(persist="never").root)
    with pytest.raises(InvalidUsageError, match="can join only update streams"):
        check_runnable(
            plain().join(plain("b").select("k", "t", x="v"), on="k", time="t", within="1 s").plan().root
        )
    twice = stream("a").union(stream("b"), name="both")
    again = twice.where("v > 1").union(twice.where("v < 0"))
    with pytest.raises(InvalidUsageError, match="an update union has several readers"):
        check_runnable(again.plan(persist="never").root)


@pytest.mark.parametrize("behind", ["it", "what follows it"])
@pytest.mark.parametrize("persist", ["always", "never"])
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (queue(), "an update queue"),
        (windows(plain(), mode="lazy"), "an aggregate over windows that are served by key"),
        (windows(stream(), mode="eager"), "an aggregate over windows that are served by key"),
    ],
)
def test_what_has_an_order_and_a_budget_has_one_reader_also_in_several_queries(
    made: Graph, says: str, persist: Persist, behind: str
) -> None:
    shared = made if behind == "it" else made.select("k", "v", t="v")
    sides = [shared.where(f"v {by} 1", name=by).select("k", "v", t="v", name=f"is {by}") for by in "<>"]
    both = sides[0].union(sides[1], key="k", time="t", name="both")
    last = made.root.name
    queries: dict[str, Any] = {"is <": "always", "is >": "always", "a": persist}
    with pytest.raises(
        InvalidUsageError, match=f"{says} has several readers.*set persist to 'always' for {last}"
    ):
        check_runnable(both.plan(persist=queries).root)
    check_runnable(both.plan(persist=queries | {last: "always"}).root)


@pytest.mark.parametrize(
    ("made", "waits"),
    [
        (queue(), False),
        (plain().update_queue("k", "t", budget=3).where("v > 1"), True),
        (plain().union(plain("b"), key="k", time="t", budget=2), True),
        (windows(plain(), mode="lazy"), False),
        (windows(plain()), False),
        (plain().window("t", size="9 s", unit="s", mode="lazy", budget=3).agg(n="count(*)"), True),
    ],
)
def test_a_query_that_may_leave_something_for_later_triggers_is_known(made: Graph, waits: bool) -> None:
    for persist in ("always", "never"):
        root = made.select("*").plan(persist=persist).root
        assert holds_back(root) is waits
    pinned = made.select("*").plan(persist={made.root.name: "always"}).root
    assert not holds_back(pinned), "what waits is in the query that writes the p-stream"


@pytest.mark.parametrize("persist", ["always", "never"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (windows(stream()), windows(stream("b"))),
        (windows(queue()), windows(plain("b"))),
        (windows(stream()).where("v > 1"), windows(plain("b"), "k", "w").select("k", "window", "v")),
        (windows(stream("a", "w"), "w", "k"), windows(plain("b"), "w", "k")),
        (windows(stream()).union(windows(plain("b"))), windows(stream("c"))),
    ],
)
def test_a_union_of_windows_in_append_mode_has_them_all_and_is_no_update_stream(
    one: Graph, other: Graph, persist: Persist
) -> None:
    made = one.union(other)
    assert made.key == ()
    assert not any(isinstance(node, UpdateUnion) for node in topological(made.root))
    # Its columns may change, also where a rule prunes those that nobody needs.
    root = made.select(j="upper(k)", v="v + 1").where("v > 2").plan(persist=persist).root
    assert (root.schema.names, root.key) == (["j", "v"], ())


@pytest.mark.parametrize("mode", ["append", "lazy"])
def test_windows_with_a_time_are_united_as_update_streams(mode: str) -> None:
    sides = [windows(stream(name), mode=mode).select("k", "v", at="window.end") for name in "ab"]
    made = sides[0].union(sides[1], key="k", time="at")
    assert made.key == ("k",)
    assert isinstance(made.root, UpdateUnion)


def test_a_contract_sets_the_trigger_interval_and_is_explained() -> None:
    plain = graph("g").source("s", SCHEMA)
    assert find_trigger_interval(plain.update_queue("k", "t", name="q").root) is None
    contract = {"p95": {"gold": "800 ms", "other": "4 s"}, "by": "IF(v > 3, 'gold', 'x')"}
    queue = plain.update_queue("k", "t", name="q", freshness=contract)
    assert find_trigger_interval(queue.root) == "100 ms"
    assert find_promises(queue.root) == {"gold": 0.8, "other": 4.0}
    assert not promises_from_arrival(queue.root)
    # A class of several contracts has the tightest limit, in either order.
    other = contract | {"p95": {"gold": "2 s", "other": "3 s"}}
    tight, loose = (
        plain.update_queue("k", "t", name=name, freshness=one).root
        for name, one in (("tight", contract), ("loose", other))
    )
    for inputs in ((tight, loose), (loose, tight)):
        joined = SimpleNamespace(inputs=inputs)
        assert find_promises(cast(Any, joined)) == {"gold": 0.8, "other": 3.0}
    # A query that writes a p-stream keeps its promises itself.
    behind = Materialize("n", (Materialize("m", (queue.root,)),))
    assert find_promises(behind) == {}
    assert find_trigger_interval(behind) == "100 ms"
    # Each query follows its own operators only.
    assert find_longest_intervals(queue.root) == {"results": "160 ms"}
    assert find_longest_intervals(behind) == {"m": "160 ms"}
    assert find_longest_intervals(plain.update_queue("k", "t", name="q").root) == {}
    assert find_promises(plain.update_queue("k", "t", name="q").root) == {}
    assert promises_from_arrival(plain.update_queue("k", "t", arrival="t", freshness={"p95": "1 s"}).root)
    assert not promises_from_arrival(plain.update_queue("k", "t", arrival="t").root)
    assert holds_back(queue.root)
    assert "p95 fresh within gold 800 ms, other 4 s by IF(v > 3, 'gold', 'x')" in queue.plan().explain()
    shown = (
        "  results: as measured, at most 160 ms\n"
        "  with Spark Connect: every 100 ms in all queries, fixed while they run\n"
    )
    assert shown in queue.plan().explain()
    assert "trigger" not in plain.update_queue("k", "t", name="q").plan().explain()
    with pytest.raises(InvalidUsageError, match="missing"):
        plain.update_queue("k", "t", freshness=contract | {"by": "missing"})
