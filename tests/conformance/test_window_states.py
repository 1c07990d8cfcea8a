"""The states of windows pass the tests of `penstock.testing`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from penstock._clock import SimulatedClock
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.state_store.bucket_store import State
from penstock.testing import StateTests
from penstock.windows.append.panes import Panes
from penstock.windows.layout import WindowLayout
from penstock.windows.panes import new_panes
from penstock.windows.shared_watermark import SeveralPanes
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.oracles.naive_panes import Row
from tests.oracles.naive_windows import Event
from tests.property.windows import test_panes as timed
from tests.property.windows import test_row_windows as counted
from tests.property.windows import test_session_windows as sessions
from tests.property.windows import test_window_deletes as deleting

END = 1_000
"""A watermark that closes all windows."""


class Kind(NamedTuple):
    """A layout of windows, and a function that makes its input of (group, time, value) triples."""

    layout: WindowLayout
    make: Callable[[list[tuple[str | None, int, float]]], list[pa.RecordBatch]]


def _timed(size: int, slide: int, *, sets: bool = True) -> Kind:
    layout = timed.layout_of(size, slide, sets=sets)
    return Kind(layout, lambda rows: [timed.entries_of([Row(*row) for row in rows], layout)])


def _session(gap: int) -> Kind:
    layout = sessions.layout_of(gap)
    return Kind(layout, lambda rows: sessions.entries_of([Event(*row) for row in rows], 2, layout))


KINDS = {
    "sliding": _timed(8, 2),
    "stacks": _timed(8, 1, sets=False),
    "counted": Kind(
        counted.layout_of(6, 2), lambda rows: counted.batch_of([counted.Row(*row) for row in rows])
    ),
    "deleting": Kind(
        deleting.layout_of(4, 2),
        lambda rows: deleting.batch_of([deleting.Row(*row, row[1] % 5 == 0) for row in rows]),
    ),
    "session": _session(4),
}


def rows_of(step: int) -> list[tuple[str | None, int, float]]:
    """Return rows whose times go on, some out of order and some late; a group is there now and then."""
    times = [4 * step + at for at in (0, 3, 1, 2, 3, -2, -9)]
    groups = ["a", "b", None, f"{step % 5}", f"only {step}", "a", "b"]
    return [
        (group, time, float(step + number))
        for number, (group, time) in enumerate(zip(groups, times, strict=True))
    ]


def shown(batches: list[pa.RecordBatch]) -> list[str]:
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


class TestAppendedWindows(StateTests):
    @pytest.fixture
    def new(self, kind: Kind) -> Callable[[], State]:
        self.kind = kind
        return lambda: new_panes(kind.layout)

    def change(self, state: Panes, step: int) -> None:
        state.run(self.kind.make(rows_of(step)), 4 * step - 3)

    def content(self, state: Panes) -> object:
        """Return the watermark, and the windows that close in a copy, some of them with more rows."""
        copy = new_panes(self.kind.layout)
        copy.restore(state.snapshot())
        last = [(group, END - 1, 0.5) for group in ("a", "b", None, "0", "only 3") for _ in range(6)]
        done = [copy.run(self.kind.make(last), END - 40), copy.run([], END)]
        return state.watermark, len(state), [(one.late, shown(one.windows)) for one in done]


@pytest.mark.parametrize(
    ("name", "mode", "ttl"),
    [
        ("sliding", WindowMode.LAZY, None),
        ("stacks", WindowMode.EAGER, 20),
        ("counted", WindowMode.EAGER, None),
        ("deleting", WindowMode.LAZY, 20),
    ],
)
class TestUpdatedWindows(StateTests):
    @pytest.fixture
    def new(self, name: str, mode: WindowMode, ttl: int | None) -> Callable[[], UpdateWindows]:
        self.kind = KINDS[name]
        self.empty = partial(UpdateWindows, self.kind.layout, mode, Policy.IN_PLACE, ttl=ttl)
        return self.empty

    def change(self, state: UpdateWindows, step: int) -> None:
        self.serve(state, rows_of(step), 4 * step - 3, Budget(2), step)
        state.expire()

    def content(self, state: UpdateWindows) -> object:
        """Return the windows that a copy emits when time goes on."""
        copy = self.empty()
        copy.restore(state.snapshot())
        made = [
            self.serve(copy, [("a", END - 1, 0.5)] * 6, END - 40, Budget(3), END),
            self.serve(copy, [("b", END, 0.5)] * 6, END + 40, Budget(None), END + 1),
        ]
        return state.watermark, state.servable, made

    def serve(
        self, state: UpdateWindows, rows: list[Any], watermark: int, budget: Budget, now: int
    ) -> list[str]:
        layout = self.kind.layout
        entering = WindowArrivals(self.kind.make(rows), watermark)
        query, clock = Query(None, layout.window, ()), SimulatedClock(1_000 * (now + 1))
        batches, _ = serve(state, entering, query=query, budget=budget, clock=clock)
        return shown(batches)


class TestJoinedWindows(StateTests):
    @pytest.fixture
    def new(self) -> Callable[[], State]:
        return self.empty

    def empty(self) -> SeveralPanes:
        return SeveralPanes([KINDS["sliding"].layout, KINDS["stacks"].layout])

    def change(self, state: SeveralPanes, step: int) -> None:
        left, right = (KINDS[name].make(rows_of(step)) for name in ("sliding", "stacks"))
        # The left side is ahead, and has no input now and then.
        state.run([left if step % 4 else [], right], [4 * step + 9, 4 * step - 3 if step > 2 else None])

    def content(self, state: SeveralPanes) -> object:
        copy = self.empty()
        copy.restore(state.snapshot())
        done = [*copy.run([[], []], [None, 4]), *copy.run([[], []], [END, END])]
        return len(state), [shown(one.windows) for one in done]
