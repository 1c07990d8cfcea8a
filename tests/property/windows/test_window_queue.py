"""The window queue equals one that keeps everything and looks at every window."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper.tuple_queue import TupleWindowQueue
from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.weights import ONE
from penstock.windows.update.queue import WindowQueue
from penstock.windows.update.results import KeyState, ServedWindows, WindowMode
from tests.oracles.naive_windows import NaiveWindows, Window
from tests.samples.streams import POLICIES, through_bytes

PAYLOAD = pa.schema([("value", pa.int64()), ("text", pa.string())])
MODES = st.sampled_from([WindowMode.LAZY, WindowMode.EAGER])
SIZES = st.integers(1, 7).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))
# Few keys and many steps: what can go wrong needs several panes of one key between two services.
ENTRIES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1, 1, 2, 3, 5, 8, 0])), min_size=1, max_size=12
)
ENQUEUE = st.tuples(st.just("enqueue"), st.tuples(ENTRIES, st.one_of(st.none(), st.integers(-2, 6))))
DEQUEUE = st.tuples(st.just("dequeue"), st.sampled_from([1, 2, 1, 3, 0, 5]))
SHARES = st.one_of(st.none(), st.sampled_from([1, 12_345, ONE, 1 << 40]))
OTHER: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("enqueue"), st.tuples(st.just([]), st.integers(0, 9))),
    st.tuples(st.just("wait"), st.sampled_from([1, 7, 100])),
    st.tuples(st.sampled_from(["deliver", "account"]), st.none()),
)
STORE = st.tuples(st.sampled_from(["reload", "delta", "follow"]), st.none())
STEPS = st.lists(st.one_of(ENQUEUE, DEQUEUE, ENQUEUE, OTHER, STORE), min_size=8, max_size=40)


def _rows(values: list[int]) -> pa.RecordBatch:
    texts = ["x" * (value % 7) for value in values]
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64()), pa.array(texts)], schema=PAYLOAD)


def _enqueue(
    queue: WindowQueue,
    entries: list[tuple[int, int, int]],
    now_us: int,
    watermark: int | None = None,
    share: int | None = None,
) -> Any:
    ids, panes, values = np.array(entries, np.int64).reshape(-1, 3).T.copy()
    shares = None if share is None else np.full(len(ids), share)
    return queue.enqueue(ids, panes, _rows(values.tolist()), now_us, watermark=watermark, shares=shares)


def _windows(served: ServedWindows) -> list[Window]:
    values = served.rows.column("value").to_pylist()
    assert served.rows.column("text").to_pylist() == ["x" * (value % 7) for value in values]
    pairs = list(zip(served.panes.tolist(), values, strict=True))
    assert served.bounds[-1] == len(pairs)
    shares = [pairs[begin:end] for begin, end in pairwise(served.bounds.tolist())]
    return list(zip(served.ids.tolist(), served.start_pane.tolist(), shares, strict=True))


class _Pair:
    """A queue and its model, driven together."""

    def __init__(
        self,
        mode: WindowMode,
        policy: Policy,
        windows: tuple[int, int],
        first_pane: int | None,
        block_rows: int,
        share: int | None,
    ) -> None:
        self.share = share
        self.settings = (mode, *windows, PAYLOAD, policy)
        self.options: Any = {"first_pane": first_pane, "block_rows": block_rows, "page_blocks": 2}
        self.options["weighted"] = share is not None
        self.queue = self.new()
        self.model = NaiveWindows(str(mode), *windows, str(policy), first_pane)
        self.values = 0
        self.totals = np.zeros(3, np.int64)
        self.areas = np.zeros(3)
        self.undelivered: ServedWindows | None = None
        self.units: list[Any] = []
        self.follower: WindowQueue | None = None
        self.followed = 0

    def new(self) -> WindowQueue:
        return WindowQueue(*self.settings, **self.options)

    def enqueue(self, gaps: list[tuple[int, int]], ahead: int | None) -> None:
        model = self.model
        base = -3 if model.watermark is None else model.watermark
        newest = {key: max(own.panes) for key, own in model.keys.items()}
        entries = []
        for key, gap in gaps:
            pane = max(newest.get(key, base), base) + gap
            newest[key] = max(newest.get(key, pane), pane)
            self.values += 1
            entries.append((key, pane, self.values))
        watermark = None if ahead is None else max(newest.values(), default=base) + ahead
        got = _enqueue(self.queue, entries, model.now_us, watermark, self.share)
        late = model.enqueue(entries, watermark)
        assert (got.rows_in, got.late) == (len(entries), late)
        self.totals += (got.late, got.completed, got.disregarded)

    def dequeue(self, limit: int) -> list[Window]:
        self.deliver()
        self.undelivered = self.queue.dequeue(limit, self.model.now_us)
        got = _windows(self.undelivered)
        if self.queue.scheduler.policy is Policy.FRESHEST:
            # The choice depends on rates, which the model does not know. Chosen keys keep their order.
            self.model.order.sort(key=lambda key: KeyState.WAIT in self.queue.states(key))
        assert got == self.model.dequeue(limit)
        waited = [self.model.keys[key].waited for key, _, _ in got]
        assert self.undelivered.staleness_us.tolist() == waited
        assert len(got) <= limit
        return got

    def deliver(self) -> None:
        if self.undelivered is not None:
            self.queue.deliver(self.undelivered, self.model.now_us)
            self.model.deliver(_windows(self.undelivered))
        self.undelivered = None

    def account_staleness(self) -> None:
        waiting, application = self.queue.account_staleness(self.model.now_us)
        self.areas += (waiting.area, application.area, waiting.key_time)

    def store(self) -> None:
        self.deliver()
        self.account_staleness()
        self.units.append(through_bytes(self.queue.delta()))

    def check(self) -> None:
        queue, model = self.queue, self.model
        assert len(queue) == len(model.order)
        assert queue.keys == len(model.keys)
        assert queue.rows_held == sum(len(model.needed(key)) for key in model.keys)
        memory = queue.memory
        assert memory.locations_used <= queue.rows_held
        assert (memory.locations_used == 0) == (queue.rows_held == 0)
        for key, own in model.keys.items():
            states = queue.states(key)
            assert (KeyState.WAIT in states) == (own.waiting is not None)
            assert (KeyState.READY in states) == (key in model.ready)
            assert (KeyState.IDLE in states) == (own.committed is not None and key not in model.ready)
            assert own.waiting is None or own.waiting == model.most_recent(key)
            if model.mode == "lazy":
                assert len(model.needed(key)) <= queue.size + queue.slide - 1
        complete = sum(len(model.complete(key)) for key in model.keys)
        assert self.totals.tolist()[1:] == [complete, model.disregarded()]
        held = {
            key for key, own in model.keys.items() if own.waiting is not None and own.committed is not None
        }
        assert queue.servable == len(model.order) - len(held) + len(model.ready)


def _content(queue: WindowQueue) -> Any:
    (unit,) = queue.snapshot()
    return unit


def assert_same_state(left: WindowQueue, right: WindowQueue) -> None:
    a, b = _content(left), _content(right)
    assert a.meta == b.meta
    for name in ("cells", "rows"):
        # Ranks count on in the older of the two; only their order matters.
        for column in a.blocks[name].schema.names:
            x, y = (unit.blocks[name].column(column) for unit in (a, b))
            if column in ("rank", "ready_rank"):
                continue
            assert x.equals(y), column


@given(MODES, POLICIES, SIZES, st.one_of(st.none(), st.integers(-4, 3)), st.integers(1, 3), SHARES, STEPS)
def test_every_window_served_is_whole_and_the_most_recent_also_across_reloads(
    mode: WindowMode,
    policy: Policy,
    windows: tuple[int, int],
    first_pane: int | None,
    block_rows: int,
    share: int | None,
    steps: list[tuple[str, Any]],
) -> None:
    """With equal weights, the order is the same as without weights."""
    pair = _Pair(mode, policy, windows, first_pane, block_rows, share)
    emitted: dict[int, list[int]] = {}
    for step, value in [
        *steps,
        ("dequeue", 9),
        ("wait", 3),
        ("dequeue", 9),
        ("deliver", None),
        ("account", None),
    ]:
        if step == "enqueue":
            pair.enqueue(*value)
        elif step == "dequeue":
            for key, start, _ in pair.dequeue(value):
                emitted.setdefault(key, []).append(start)
        elif step == "wait":
            pair.model.advance(value)
        elif step == "deliver":
            pair.deliver()
        elif step == "account":
            pair.account_staleness()
        else:
            pair.store()
            if step == "follow":
                follower = pair.new() if pair.follower is None else pair.follower
                follower.restore(pair.units if pair.follower is None else pair.units[pair.followed :])
                pair.follower, pair.followed = follower, len(pair.units)
                assert_same_state(follower, pair.queue)
            elif step == "reload":
                other = pair.new()
                other.restore(pair.units)
                assert_same_state(other, pair.queue)
                third = pair.new()
                third.restore(map(through_bytes, pair.queue.snapshot()))
                assert_same_state(third, pair.queue)
                pair.queue = other
        pair.check()
    for starts in emitted.values():
        assert starts == sorted(set(starts))
    model = pair.model
    assert pair.areas[:2].tolist() == pytest.approx([model.queue_area, model.application_area])


@given(
    MODES,
    st.sampled_from([Policy.FIFO, Policy.IN_PLACE]),
    SIZES,
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=25),
    st.integers(0, 25),
)
def test_a_batch_gives_what_its_entries_give_one_at_a_time(
    mode: WindowMode, policy: Policy, windows: tuple[int, int], gaps: list[tuple[int, int]], cut: int
) -> None:
    together, each = (WindowQueue(mode, *windows, PAYLOAD, policy, block_rows=2) for _ in range(2))
    newest: dict[int, int] = {}
    for part in (gaps[:cut], gaps[cut:]):
        entries = []
        for key, gap in part:
            newest[key] = newest.get(key, -2) + gap
            entries.append((key, newest[key], 10 * newest[key] + key))
        _enqueue(together, entries, 5)
        for entry in entries:
            _enqueue(each, [entry], 5)
        assert_same_state(together, each)
        assert _windows(together.dequeue(2, 7)) == _windows(each.dequeue(2, 7))


@given(MODES, POLICIES, SIZES, STEPS, st.sampled_from([0.5, 20.0, 300.0]))
def test_linecutting_serves_the_most_recent_windows_too(
    mode: WindowMode, policy: Policy, windows: tuple[int, int], steps: list[tuple[str, Any]], cost_us: float
) -> None:
    queue = WindowQueue(mode, *windows, PAYLOAD, Policy.LINECUTTING, cost_us=cost_us)
    equal = WindowQueue(mode, *windows, PAYLOAD, Policy.LINECUTTING, cost_us=cost_us, weighted=True)
    units: list[Any] = []
    pane, now_us = 0, 0
    seen: dict[int, list[int]] = {}
    for step, value in steps:
        now_us += 10
        if step == "enqueue":
            for key, _ in value[0]:
                pane += 1
                seen.setdefault(key, []).append(pane)
                _enqueue(queue, [(key, pane, pane)], now_us)
                _enqueue(equal, [(key, pane, pane)], now_us, share=7 * ONE)
        elif step == "dequeue":
            found = _windows(queue.dequeue(value, now_us))
            assert found == _windows(equal.dequeue(value, now_us))
            for key, start, panes in found:
                expected = [p for p in seen[key] if start <= p < start + queue.size]
                assert [p for p, _ in panes] == expected
        elif step == "reload":
            units.append(queue.delta())
            other = WindowQueue(mode, *windows, PAYLOAD, Policy.LINECUTTING, cost_us=cost_us)
            other.restore(units)
            assert_same_state(other, queue)
            queue = other
            content = _content(equal)
            equal = WindowQueue(mode, *windows, PAYLOAD, Policy.LINECUTTING, cost_us=cost_us, weighted=True)
            equal.restore([content])


@given(
    MODES, SIZES, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 4)), max_size=40)
)
def test_tuples_marked_by_the_queue_make_whole_windows(
    mode: WindowMode, windows: tuple[int, int], steps: list[tuple[int, int, int]]
) -> None:
    """An operator that only knows the marks of Table 1 computes every window from all of its tuples."""
    queue = TupleWindowQueue(mode, *windows, PAYLOAD, Policy.IN_PLACE, block_rows=2, page_blocks=2)
    size, slide = windows
    model = NaiveWindows(str(mode), size, slide, "in_place")
    open_windows: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    emitted: dict[int, list[int]] = {}
    newest: dict[int, int] = {}
    for now_us, (key, gap, services) in enumerate([*steps, (0, 1, 300)]):
        newest[key] = newest.get(key, -3) + gap
        entry = (key, newest[key], now_us)
        _enqueue(queue, [entry], now_us)
        model.enqueue([entry])
        for _ in range(services):
            waiting = {k: own.waiting for k, own in model.keys.items()}
            taken = queue.take(now_us)
            if taken is None:
                break
            starter = taken.pane is not None and not any(
                taken.pane // slide * slide <= pane < taken.pane for pane in model.keys[taken.key].panes
            )
            if taken.win_spec > 0:
                assert taken.key not in open_windows
                assert taken.pane is not None
                assert taken.start_pane == (waiting[taken.key] or 0) * slide
                model.order.remove(taken.key)
                model.keys[taken.key].waiting = None
                open_windows[taken.key] = (taken.pane + taken.win_spec, [])
            else:
                assert taken.win_spec == (0 if starter else -1)
            end, content = open_windows[taken.key]
            assert end == taken.start_pane + size
            if taken.row is not None and taken.pane is not None:
                content.append((taken.pane, taken.row.column("value")[0].as_py()))
            if taken.closes:
                number = taken.start_pane // slide
                assert number in model.complete(taken.key)
                assert (taken.key, taken.start_pane, content) == model.content(taken.key, number)
                emitted.setdefault(taken.key, []).append(number)
                del open_windows[taken.key]
                queue.deliver(taken, now_us)
        for k, own in model.keys.items():
            assert (KeyState.WAIT in queue.states(k)) == (own.waiting is not None)
            assert (k in open_windows) == bool({KeyState.READY, KeyState.IDLE} & queue.states(k))
        assert queue.memory.locations_used <= max(queue.rows_held, 0)
    for numbers in emitted.values():
        assert numbers == sorted(set(numbers))
    assert queue.take(now_us) is None


def test_what_a_queue_cannot_do_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="append"):
        WindowQueue(WindowMode.APPEND, 3, 1, PAYLOAD, Policy.FIFO)
    for size, slide in ((3, 4), (3, 0), (0, 0)):
        with pytest.raises(InvalidUsageError, match="slide"):
            WindowQueue(WindowMode.LAZY, size, slide, PAYLOAD, Policy.FIFO)
    with pytest.raises(InvalidUsageError, match="cost"):
        WindowQueue(WindowMode.LAZY, 3, 1, PAYLOAD, Policy.FIFO, cost_us=0)
    with pytest.raises(InvalidUsageError, match="location"):
        WindowQueue(WindowMode.LAZY, 3, 1, PAYLOAD, Policy.FIFO, block_rows=0)
    whole = WindowQueue(WindowMode.LAZY, 3, 1, PAYLOAD, Policy.FIFO)
    single = TupleWindowQueue(WindowMode.LAZY, 3, 1, PAYLOAD, Policy.FIFO)
    with pytest.raises(InvalidUsageError, match="one at a time"):
        single.dequeue(1, 0)
    with pytest.raises(InvalidUsageError, match="cannot be stored"):
        single.delta()
    with pytest.raises(InvalidUsageError, match="other windows"):
        WindowQueue(WindowMode.LAZY, 3, 2, PAYLOAD, Policy.FIFO).restore(whole.snapshot())
