"""After crashes at any moment the output is the same, and only needed data is kept (0006)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.errors import PenstockError
from tests.models.known_bad import KNOWN_BAD
from tests.models.protocol import OperatorSpec, SinkSpec, SourceSpec, Topology
from tests.models.world import Add, Join, Keep, Total, Union, Window, World

KINDS: dict[str, tuple[Any, int, bool]] = {
    "keep": (Keep(), 1, False),
    "add": (Add(), 1, False),
    "union": (Union(), 2, False),
    "join": (Join(), 2, True),
    "window": (Window(), 1, True),
    "total": (Total(), 1, True),
}


# How many sources, and kinds of operators with what they read: sources and operators in order, from 0 on, or
# from the last by -1. In these shapes markers, progress and needs differ by path.
Shape = tuple[int, list[tuple[str, tuple[int, ...]]]]
SHAPES: dict[str, Shape] = {
    "sum": (1, [("total", (0,))]),
    "fan in": (2, [("total", (0,)), ("total", (1,)), ("union", (-1, -2))]),
    "fan out": (1, [("keep", (0,)), ("window", (0,)), ("add", (0,))]),
    "diamond": (1, [("keep", (0,)), ("window", (0,)), ("join", (-2, -1)), ("total", (-1,))]),
    "deep": (1, [("add", (0,)), ("keep", (-1,)), ("window", (-2,)), ("union", (-1, -2)), ("window", (-1,))]),
}
FREE: st.SearchStrategy[Shape] = st.tuples(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), st.tuples(st.integers(0, 7), st.integers(0, 7))),
        min_size=1,
        max_size=5,
    ),
)

# How many things happen by themselves after an event, and the seed of which.
WORK = st.tuples(st.integers(0, 25), st.integers(0, 1 << 16))


def topology_of(shape: Shape, chance: Callable[[], bool]) -> Topology:
    """Return a graph of this shape; `chance` decides what the shape leaves open."""
    number, graph = shape
    sources = [SourceSpec(f"s{i}", replayable=chance(), retained=chance()) for i in range(number)]
    streams = [source.name for source in sources]
    operators = list[OperatorSpec]()
    for kind, read in graph:
        function, inputs, stateful = KINDS[kind]
        chosen = list(dict.fromkeys(streams[at % len(streams)] for at in read[:inputs]))
        if len(chosen) == inputs:
            operators.append(
                OperatorSpec(
                    f"{kind}{len(operators)}",
                    chosen,
                    function,
                    stateful=stateful,
                    fault_tolerant=stateful or inputs > 1 or chance(),
                    retained=chance(),
                )
            )
            streams.append(operators[-1].name)
    read_by = {stream for operator in operators for stream in operator.inputs}
    sinks = [
        SinkSpec(f"out of {stream}", stream, transactional=chance())
        for stream in streams
        if stream not in read_by or (chance() and chance())
    ]
    return Topology(sources, operators, sinks)


@st.composite
def topologies(draw: st.DrawFn, shapes: st.SearchStrategy[Shape]) -> Topology:
    return topology_of(draw(shapes), lambda: draw(st.booleans()))


class Protocol(RuleBasedStateMachine):
    """Random graphs, events in any order, and a crash after any of them."""

    world: World
    time: int

    @initialize(topology=topologies(FREE | FREE | st.sampled_from(list(SHAPES.values()))))
    def start(self, topology: Topology) -> None:
        self.world = World(topology)
        self.time = 0

    def running(self) -> bool:
        return self.world.graph is not None

    def _work(self, work: tuple[int, int]) -> None:
        if self.running():
            self.world.work(*work)

    @rule(
        source=st.integers(0, 2),
        gaps=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        key=st.integers(0, 2),
        work=WORK,
    )
    def emit(self, source: int, gaps: list[int], key: int, work: tuple[int, int]) -> None:
        names = list(self.world.rows)
        rows = []
        for gap in gaps:
            self.time += gap
            rows.append((self.time, key, self.time % 7 + 1))
            key = (key + 1) % 3
        self.world.emit(names[source % len(names)], rows)
        self._work(work)

    @precondition(running)
    @rule(source=st.integers(0, 2), work=WORK)
    def retain(self, source: int, work: tuple[int, int]) -> None:
        names = list(self.world.rows)
        self.world.insert_retain_marker(names[source % len(names)])
        self._work(work)

    @precondition(running)
    @rule(work=WORK)
    def checkpoint(self, work: tuple[int, int]) -> None:
        self.world.begin_checkpoint()
        self._work(work)

    @precondition(running)
    @rule(work=WORK)
    def work(self, work: tuple[int, int]) -> None:
        self._work(work)

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @precondition(lambda self: not self.running())
    @rule(chosen=st.integers(0, 9))
    def recover_step(self, chosen: int) -> None:
        self.world.recover_step(chosen)

    @precondition(lambda self: not self.running())
    @rule()
    def recover(self) -> None:
        self.world.recover()

    @invariant()
    def every_crash_would_lose_nothing(self) -> None:
        if hasattr(self, "world"):
            self.world.check_output()
            self.world.check_recovery()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(stateful_step_count=30, deadline=None, derandomize=True)


def graph_of(shape: str, seed: int) -> Topology:
    """Return a graph of a shape whose other properties are the digits of `seed`."""
    bits = Random(seed)
    return topology_of(SHAPES[shape], lambda: bits.random() < 0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stroll_is_exactly_once_and_leaves_nothing(shape: str) -> None:
    for seed in range(5):
        World(graph_of(shape, seed)).stroll(seed, events=40)


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_each_broken_protocol_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, shape = KNOWN_BAD[name]
    protocol(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        for seed in range(200):
            World(graph_of(shape, seed)).stroll(seed, events=40)
