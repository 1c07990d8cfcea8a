"""The persistence protocol piece by piece, and Algorithm 1 line by line (0006)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from penstock.errors import CorruptDataError, InternalError, InvalidUsageError
from tests.models.protocol import (
    CheckpointMarker,
    Facts,
    FTOperator,
    Lineage,
    OperatorSpec,
    PersistentOperatorGraph,
    PStream,
    Recovery,
    ReleaseMarker,
    RetainMarker,
    Send,
    SinkSpec,
    SourceSpec,
    StreamUnit,
    Topology,
    VectorClock,
    consumed,
    needed,
    requests,
)
from tests.models.protocol.collect import run_from
from tests.models.protocol.tasks import (
    AckTask,
    CheckpointTask,
    CommitTask,
    DiscardTask,
    DropTask,
    PersistTask,
    QueryTask,
    TrimTask,
)
from tests.models.world import Add, Join, Keep, MemoryStorage, Row, Total, Union, Window, World


def unit(
    stream: str, offset: int, rows: Sequence[Any] = (), clock: dict[str, int] | None = None
) -> StreamUnit:
    return StreamUnit(stream, offset, tuple(rows), VectorClock(clock or {stream: offset + len(rows)}))


def rows(*times: int) -> list[Row]:
    return [(time, 0, time) for time in times]


def two_inputs(function: Any = None) -> FTOperator:
    stream = PStream("o")
    stream.subscribe("d", 0)
    inputs = {s: VectorClock({s: 0}) for s in ("a", "b")}
    names = ["o", *(name for s in "ab" for name in (f"{s}|o", consumed(s, "o"), needed(s, "o")))]
    origin = VectorClock(dict.fromkeys(names, 0))
    return FTOperator("o", inputs, function or Union(), stream, readers=["d"], retains=True, origin=origin)


# P-streams


def test_a_stream_gives_every_reader_its_p_units_in_order_and_frees_what_all_have() -> None:
    stream = PStream("s")
    stream.subscribe("x", 0)
    stream.subscribe("y", 0)
    units = [unit("s", 0, "ab"), unit("s", 2, "c")]
    for each in units:
        assert stream.write(each) == []
    assert stream.read("x") == units[0]
    stream.acknowledged("x")
    assert stream.read("x") == units[1]
    assert stream.checkpoint() == tuple(units)
    stream.acknowledged("y")
    assert stream.checkpoint() == (units[1],)


def test_writing_again_is_dropped_and_a_gap_is_an_error() -> None:
    stream = PStream("s")
    stream.subscribe("x", 0)
    stream.write(unit("s", 0, "ab"))
    stream.write(unit("s", 0, "a"))
    stream.write(unit("s", 1, "bc"))
    assert [each.rows for each in stream.checkpoint()] == [("a", "b"), ("c",)]
    with pytest.raises(InternalError, match="gap"):
        stream.write(unit("s", 4, "e"))


def test_what_is_retained_is_read_when_it_is_durable_and_so_is_what_follows() -> None:
    stream = PStream("s", always=True)
    stream.subscribe("x", 0)
    first, second = unit("s", 0, "a"), unit("s", 1, "b")
    assert stream.write(first) == [PersistTask(first)]
    assert stream.write(second) == [PersistTask(second)]
    stream.persisted(second)
    assert stream.read("x") is None
    stream.persisted(first)
    assert stream.read("x") == first


def test_one_retain_marker_retains_one_p_unit() -> None:
    stream = PStream("s")
    stream.subscribe("x", 0)
    stream.retain = True
    assert stream.write(unit("s", 0)) == []
    assert stream.write(unit("s", 0, "a")) == [PersistTask(unit("s", 0, "a"))]
    assert stream.write(unit("s", 1, "b")) == []


def test_a_stream_is_trimmed_once_for_each_bound() -> None:
    stream = PStream("s")
    assert stream.trim_from(3) == [TrimTask("s", 3)]
    assert stream.trim_from(3) == stream.trim_from(2) == []


def test_a_reader_that_has_the_first_p_units_of_a_loaded_stream_does_not_get_them() -> None:
    stream = PStream("s")
    stream.load_stream(2, [unit("s", 2, "cd"), unit("s", 4, "ef")])
    stream.subscribe("x", 5)
    assert stream.read("x") == unit("s", 4, "ef")
    assert stream.end == 6
    with pytest.raises(InvalidUsageError, match="once"):
        stream.subscribe("x", 0)


# Lineage


def test_lineage_answers_for_the_last_p_unit_before_an_offset() -> None:
    lineage = Lineage([(0, VectorClock({"s": 0}))])
    for end in (3, 5):
        lineage.add(end, VectorClock({"s": end}))
    assert [lineage.at(offset)["s"] for offset in (0, 2, 3, 4, 7)] == [0, 0, 3, 3, 5]
    lineage.forget(4)
    assert lineage.at(4)["s"] == 3
    with pytest.raises(InternalError, match="forgotten"):
        lineage.at(2)


def test_progress_without_tuples_moves_a_clock_on_and_never_back() -> None:
    lineage = Lineage([(0, VectorClock({"s": 4}))])
    lineage.add(0, VectorClock({"s": 2}))
    assert lineage.at(0) == {"s": 4}
    lineage.add(0, VectorClock({"s": 6}))
    assert lineage.at(0) == {"s": 6}
    lineage.add(2, VectorClock({"s": 5}))
    assert lineage.at(2) == {"s": 6}


def test_a_run_ends_at_the_first_gap() -> None:
    extents = [unit("s", at, "x" * size).extent for at, size in ((6, 2), (0, 2), (2, 2))]
    assert [extent.offset for extent in run_from(extents, 1)] == [0, 2]
    assert [extent.offset for extent in run_from(extents, 7)] == [6]
    assert run_from(extents, 4) == []


# Algorithm 1


def test_lines_6_to_13_the_first_marker_is_sent_on_and_the_last_stores_the_snapshot() -> None:
    operator = two_inputs()
    operator.on_unit("a", unit("a", 0, rows(1)))
    assert operator.on_marker("a", CheckpointMarker(7)) == [Send("o", "d", CheckpointMarker(7))]
    tasks = operator.on_marker("b", CheckpointMarker(7))
    assert {task.part for task in tasks if isinstance(task, CheckpointTask)} == {
        "restart",
        "state",
        "results",
        "queue a",
        "queue b",
    }
    parts = {task.part: task.content for task in tasks if isinstance(task, CheckpointTask)}
    assert parts["queue a"] == ((0, (1, 0, 1)),)
    assert parts["restart"].received == {"a": 1, "b": 0}


def test_lines_14_and_15_a_release_trims_what_the_operator_owns_and_goes_up_once() -> None:
    operator = two_inputs()
    marker = ReleaseMarker(VectorClock({"o": 4, "checkpoint": 2}))
    assert operator.on_marker("o", marker) == [
        TrimTask("o", 4),
        DiscardTask("o", 2),
        Send("a", "o", marker),
        Send("b", "o", marker),
    ]
    assert operator.on_marker("o", marker) == []


def test_line_16_a_retain_marker_is_kept_or_sent_on() -> None:
    operator = two_inputs()
    assert operator.on_marker("a", RetainMarker()) == []
    assert operator.stream.retain
    operator.retains = False
    assert operator.on_marker("a", RetainMarker()) == [Send("o", "d", RetainMarker())]


def test_line_19_what_was_received_is_dropped_also_in_part() -> None:
    operator = two_inputs()
    operator.on_unit("a", unit("a", 0, rows(1, 2)))
    operator.on_unit("a", unit("a", 0, rows(1)))
    operator.on_unit("a", unit("a", 1, rows(2, 3)))
    assert [offset for offset, _ in operator.queues["a"]] == [0, 1, 2]
    assert operator.latest_offsets() == {"a": 3, "b": 0}
    with pytest.raises(InternalError, match="gap"):
        operator.on_unit("a", unit("a", 5, rows(6)))


def test_lines_20_and_21_what_comes_between_markers_is_in_the_snapshot() -> None:
    operator = two_inputs()
    operator.on_marker("a", CheckpointMarker(1))
    operator.on_unit("a", unit("a", 0, rows(1)))
    operator.on_unit("b", unit("b", 0, rows(2)))
    tasks = operator.on_marker("b", CheckpointMarker(1))
    parts = {task.part: task.content for task in tasks if isinstance(task, CheckpointTask)}
    assert parts["queue a"] == ()
    assert parts["queue b"] == ((0, (2, 0, 2)),)
    assert parts["restart"].received == {"a": 0, "b": 1}


def test_lines_26_to_28_a_query_takes_tuples_by_time_and_not_by_arrival() -> None:
    operator = two_inputs()
    assert operator.on_unit("b", unit("b", 0, rows(2, 5))) == []
    assert operator.on_unit("a", unit("a", 0, rows(1, 2, 9))) == [QueryTask("o")]
    assert operator.on_unit("a", unit("a", 3, rows(9))) == []
    operator.queried_now()
    (results,) = operator.stream.checkpoint()
    assert [row[0] for row in results.rows] == [1, 2, 2, 5]
    # The tuples of `a` that wait are not consumed.
    assert results.clock["a>o"] == 2
    assert results.clock["b>o"] == 2


def test_lines_29_to_36_a_sink_is_sent_one_p_unit_at_a_time_and_releases_when_it_is_durable() -> None:
    topology = Topology([SourceSpec("s")], [OperatorSpec("o", ["s"], Add())], [SinkSpec("out", "o")])
    graph = PersistentOperatorGraph(topology)
    graph.begin({}, 0)
    for at in range(2):
        graph.receive("s", at, rows(at))
        assert graph.deliver("s", "o") == [QueryTask("o")]
        graph.completed(QueryTask("o"))
    (commit,) = graph.deliver("o", "out")
    assert isinstance(commit, CommitTask)
    assert ("o", "out") not in graph.ready()
    assert graph.released == {}
    graph.completed(commit)
    assert graph.released["s"] == 1
    graph.deliver("o", "out")  # the release marker
    assert graph.deliver("s", "o") == [AckTask("s", 1), TrimTask("s", 1)]


def test_a_transactional_sink_records_progress_between_its_two_phases() -> None:
    sink = SinkSpec("out", "s", transactional=True)
    graph = PersistentOperatorGraph(Topology([SourceSpec("s")], [], [sink]))
    graph.begin({}, 0)
    graph.receive("s", 0, rows(1))
    tasks, phases = graph.deliver("s", "out"), []
    while tasks and isinstance(tasks[0], CommitTask):
        phases.append(tasks[0].phase)
        tasks = graph.completed(tasks[0])
    assert phases == ["prepare", "record", "commit"]


# Lineage of results (Scabbard Fig. 4)


def test_the_emission_of_a_result_releases_what_only_results_up_to_it_depend_on() -> None:
    world = World(
        Topology(
            [SourceSpec("s", replayable=False)],
            [OperatorSpec("sum", ["s"], Window(size=4, slide=2), stateful=True, fault_tolerant=True)],
            [SinkSpec("out", "sum")],
        )
    )
    for time in range(0, 6, 2):
        world.emit("s", rows(time, time + 1))
        world.run_until_idle()
    # [-2, 2) and [0, 4) are out: what follows needs tuples from time 2 on, the second p-unit.
    assert [row[0] for row in world.storage.output["out"]] == [2, 4]
    assert [each.offset for each in world.storage.units("s")] == [2, 4]
    assert world.storage.recorded["out"]["s<sum"] == 2
    assert world.storage.recorded["out"]["s>sum"] == 6
    world.check_recovery()


def test_p_units_of_state_go_when_the_results_that_depend_on_them_are_out() -> None:
    world = World(
        Topology(
            [SourceSpec("s")],
            [OperatorSpec("sum", ["s"], Window(), stateful=True, fault_tolerant=True)],
            [SinkSpec("out", "sum")],
        )
    )
    world.emit("s", rows(0, 1))
    world.run_until_idle()
    world.begin_checkpoint()
    world.run_until_idle()
    assert world.storage.completed() == [1]
    world.emit("s", rows(8, 9))
    world.run_until_idle()
    assert world.storage.completed() == []
    assert world.storage.snapshots == {}
    assert world.storage.acked("s") == 2
    world.check_recovery()


def test_a_join_depends_on_both_its_inputs_from_the_window_on() -> None:
    operator = two_inputs(Join(window=3))
    operator.on_unit("a", unit("a", 0, rows(1, 5, 6)))
    operator.on_unit("b", unit("b", 0, rows(2, 5, 9)))
    operator.queried_now()
    clock = operator.stream.checkpoint()[-1].clock
    assert {name: clock[name] for name in ("a>o", "a<o", "b>o", "b<o", "o")} == {
        "a>o": 3,
        "a<o": 1,
        "b>o": 2,
        "b<o": 1,
        "o": 4,
    }


# Checkpoints


def aggregate(**source: Any) -> Topology:
    return Topology(
        [SourceSpec("s", **source)],
        [OperatorSpec("total", ["s"], Total(), stateful=True, fault_tolerant=True)],
        [SinkSpec("out", "total")],
    )


def test_a_checkpoint_is_complete_when_all_its_p_units_are_durable() -> None:
    world = World(aggregate())
    world.begin_checkpoint()
    graph = world.running
    tasks = graph.insert_checkpoint_marker("total")
    for task in tasks[:-1]:
        assert graph.completed(task) == []
    assert [type(task).__name__ for task in graph.completed(tasks[-1])] == ["CompleteTask"]
    with pytest.raises(InvalidUsageError, match="under way"):
        graph.begin_checkpoint()


def test_the_record_of_a_checkpoint_goes_before_its_p_units() -> None:
    world = World(aggregate())
    for number in (1, 2):
        world.emit("s", rows(number))
        world.begin_checkpoint()
        world.run_until_idle()
        assert world.storage.completed() == [number]
        assert {key[0] for key in world.storage.snapshots} == {number}
    graph = world.running
    graph.released = VectorClock({"checkpoint": 1})
    (task,) = graph.collect()
    assert isinstance(task, DropTask)
    assert graph.collect() == []


def test_without_a_checkpoint_nothing_is_released_that_a_sum_over_all_time_needs() -> None:
    world = World(aggregate(replayable=False))
    for time in range(4):
        world.emit("s", rows(time))
        world.run_until_idle()
    assert len(world.storage.units("s")) == 4
    world.begin_checkpoint()
    world.run_until_idle()
    assert world.storage.units("s") == []


def test_a_checkpoint_needs_an_operator_and_a_marker_a_checkpoint() -> None:
    graph = PersistentOperatorGraph(aggregate())
    with pytest.raises(InvalidUsageError, match="no checkpoint"):
        graph.insert_checkpoint_marker("total")
    without = PersistentOperatorGraph(Topology([SourceSpec("s")], [], [SinkSpec("out", "s")]))
    with pytest.raises(InvalidUsageError, match="nothing"):
        without.begin_checkpoint()


# Recovery


def test_the_phases_of_a_recovery_follow_each_other_and_are_timed() -> None:
    world = World(aggregate(replayable=False))
    world.emit("s", rows(1, 2, 3))
    world.run_until_idle()
    world.begin_checkpoint()
    world.run_until_idle()
    ticks = count()
    recovery = Recovery(world.topology, world.storage, lambda: next(ticks) ** 2)
    with pytest.raises(InvalidUsageError, match="follow each other"):
        recovery.upstream_requesting()
    recovery.progress_recovery()
    recovery.upstream_requesting()
    with pytest.raises(InvalidUsageError, match="everything first"):
        recovery.upstream_replay()
    for name in reversed(recovery.loads):
        recovery.load(name)
    graph, _, report = recovery.upstream_replay()
    assert report.checkpoint == 1
    assert graph.operators["total"].offset == 3
    assert report.progress_recovery_s < report.upstream_requesting_s < report.data_recovery_s


def test_a_complete_checkpoint_without_a_p_unit_is_damage() -> None:
    world = World(aggregate())
    world.emit("s", rows(1))
    world.begin_checkpoint()
    world.run_until_idle()
    for part in ("state", "restart"):
        del world.storage.snapshots[1, "total", part]
        other = world.fork()
        with pytest.raises(CorruptDataError, match="lacks a p-unit"):
            other.recover()


def test_p_units_behind_a_gap_are_cut_off_and_made_again() -> None:
    world = World(aggregate(replayable=False))
    world.emit("s", rows(1, 2))
    world.send("s", 1)
    world.send("s", 1)
    world.run(world.tasks[1])
    world.crash()
    world.recover()
    assert world.storage.units("s") == []
    assert world.rows["s"] == []


def test_what_was_released_although_it_is_needed_is_found() -> None:
    topology = aggregate()
    facts = Facts.none(topology)
    facts.acked["s"] = 3
    with pytest.raises(InternalError, match="released"):
        requests(topology, facts)


def test_a_sink_rolls_forward_what_was_recorded_and_forgets_the_rest() -> None:
    storage = MemoryStorage()
    for at in range(2):
        storage.prepare("out", unit("s", at, rows(at)))
    storage.record("out", unit("s", 0, rows(0)).clock)
    world = World(Topology([SourceSpec("s")], [], [SinkSpec("out", "s", transactional=True)]))
    world.storage = storage
    world.rows["s"] = rows(0, 1)
    world.crash()
    world.recover()
    assert storage.output == {"out": rows(0)}
    assert storage.prepared == {}
    world.finish()


# Topology


def test_downstream_of_a_fault_tolerant_operator_and_before_a_sink_all_are() -> None:
    topology = Topology(
        [SourceSpec("s")],
        [
            OperatorSpec("c", ["b"], Add()),
            OperatorSpec("b", ["a"], Add(), fault_tolerant=True),
            OperatorSpec("a", ["s"], Keep()),
            OperatorSpec("d", ["a"], Keep()),
        ],
        [SinkSpec("out", "c"), SinkSpec("side", "d")],
    )
    assert list(topology.operators) == ["a", "b", "d", "c"]
    assert topology.fault_tolerant == ["b", "d", "c"]
    assert topology.entries() == ["b", "d"]
    assert topology.origin("b") == dict.fromkeys(["b", "a>b", "a<b", "a|b", "s>a|b", "s<a|b", "s|a|b"], 0)


@pytest.mark.parametrize(
    ("operators", "sinks", "match"),
    [
        ([OperatorSpec("a", ["b"], Add()), OperatorSpec("b", ["a"], Add())], [], "each other"),
        ([OperatorSpec("a", ["x"], Add())], [], "not there"),
        ([OperatorSpec("s", ["s"], Add())], [], "name"),
        ([OperatorSpec("a<b", ["s"], Add())], [], "name"),
        ([OperatorSpec("a", ["s", "s"], Union())], [], "twice"),
        ([OperatorSpec("a", ["s"], Add())], [], "nobody reads"),
        ([], [SinkSpec("out", "x")], "not there"),
        (
            [OperatorSpec("a", ["s"], Total(), stateful=True), OperatorSpec("b", ["a"], Add())],
            [],
            "fault-tolerant",
        ),
    ],
)
def test_a_graph_that_cannot_run_is_refused(
    operators: list[OperatorSpec], sinks: list[SinkSpec], match: str
) -> None:
    with pytest.raises(InvalidUsageError, match=match):
        Topology([SourceSpec("s")], operators, sinks)
