"""Whatever crashes when, what comes out is what a run without crashes gives, and what is kept is what is needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.checkpointing.protocol import OperatorSpec, SinkSpec, SourceSpec, Topology
from penstock.errors import PenstockError
from tests.protocol_known_bad import KNOWN_BAD
from tests.protocol_model import Add, Join, Keep, Total, Union, Window, World

KINDS: dict[str, tuple[Any, int, bool]] = {
    "keep": (Keep(), 1, False),
    "add": (Add(), 1, False),
    "union": (Union(), 2, False),
    "join": (Join(), 2, True),
    "window": (Window(), 1, True),
    "total": (Total(), 1, True),
}


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    sources = [
        SourceSpec(f"s{i}", replayable=draw(st.booleans()), retained=draw(st.booleans()))
        for i in range(draw(st.integers(1, 3)))
    ]
    streams = [source.name for source in sources]
    operators = list[OperatorSpec]()
    for i in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        function, inputs, stateful = KINDS[kind]
        if inputs > len(streams):
            continue
        read = draw(st.lists(st.sampled_from(streams), min_size=inputs, max_size=inputs, unique=True))
        operators.append(
            OperatorSpec(
                f"{kind}{i}",
                read,
                function,
                stateful=stateful,
                fault_tolerant=stateful or inputs > 1 or draw(st.booleans()),
                retained=draw(st.booleans()),
            )
        )
        streams.append(operators[-1].name)
    read_by = {stream for operator in operators for stream in operator.inputs}
    sinks = [
        SinkSpec(f"out of {stream}", stream, transactional=draw(st.booleans()))
        for stream in streams
        if stream not in read_by or draw(st.integers(0, 3)) == 0
    ]
    return Topology(sources, operators, sinks)


class Protocol(RuleBasedStateMachine):
    """Random graphs, events in any order, and a crash after any of them."""

    world: World
    time: int

    @initialize(topology=topologies())
    def start(self, topology: Topology) -> None:
        self.world = World(topology)
        self.time = 0

    def running(self) -> bool:
        return self.world.graph is not None

    @rule(source=st.integers(0, 2), gaps=st.lists(st.integers(0, 3), min_size=1, max_size=5), key=st.integers(0, 2))
    def emit(self, source: int, gaps: list[int], key: int) -> None:
        names = list(self.world.rows)
        rows = []
        for gap in gaps:
            self.time += gap
            rows.append((self.time, key, self.time % 7 + 1))
            key = (key + 1) % 3
        self.world.emit(names[source % len(names)], rows)

    @precondition(running)
    @rule(chosen=st.integers(0, 63))
    def act(self, chosen: int) -> None:
        if actions := self.world.actions():
            actions[chosen % len(actions)]()

    @precondition(running)
    @rule(steps=st.integers(1, 30), seed=st.integers(0, 1 << 16))
    def work(self, steps: int, seed: int) -> None:
        self.world.work(steps, seed)

    @precondition(running)
    @rule(source=st.integers(0, 2))
    def retain(self, source: int) -> None:
        names = list(self.world.rows)
        self.world.insert_retain_marker(names[source % len(names)])

    @precondition(running)
    @rule()
    def checkpoint(self) -> None:
        self.world.begin_checkpoint()

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
TestProtocol.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_each_broken_protocol_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    KNOWN_BAD[name](monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        run_state_machine_as_test(
            Protocol,
            settings=settings(
                TestProtocol.settings,
                max_examples=400,
                phases=[Phase.generate],
                database=None,
                report_multiple_bugs=False,
                print_blob=False,
            ),
        )
