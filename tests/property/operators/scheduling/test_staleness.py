"""The meters of both queues against staleness by its definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper.append_queue import AppendQueue
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.simulation import Queue
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from tests.oracles.naive_staleness import NaiveStaleness, integrate

STREAM = UpdateStream(pa.schema([("key", pa.int64()), ("number", pa.int64())]), ("key",), "number")
START = 1_000


@dataclass(frozen=True)
class Step:
    """A step after `gap`: keys arrive, tuples are served (some arrive meanwhile), meters are read."""

    gap: int
    keys: tuple[int, ...] = ()
    limit: int = 0
    cost: int = 0
    meanwhile: tuple[int, ...] = ()
    account_meanwhile: bool = False
    account: bool = False


@dataclass
class Run:
    """A queue, and an independent record of its steps."""

    queue: Queue
    accounts: bool
    now: int = START
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    dequeues: list[tuple[int, int, int]] = field(default_factory=list)
    deliveries: list[tuple[int, int, int]] = field(default_factory=list)
    parts: list[tuple[Staleness, Staleness]] = field(default_factory=list)
    key_time: int = 0
    read_at: int | None = None

    def take(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.now += step.gap
            self._enter(step.keys)
            if step.limit:
                self._serve(step)
            if step.account and self.accounts:
                self.read()
        self.read()

    def read(self) -> None:
        self.key_time += (self.now - (self.now if self.read_at is None else self.read_at)) * self._known()
        self.read_at = None if self.read_at is None else self.now
        self.parts.append(self.queue.account_staleness(self.now))

    def _known(self) -> int:
        return len({key for _, key in self.arrivals})

    def _enter(self, keys: Sequence[int]) -> None:
        if not keys:
            return
        if self.read_at is None:
            self.read_at = self.now
        first = len(self.arrivals)
        numbers = list(range(first, first + len(keys)))
        rows = pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.int64()), pa.array(numbers, pa.int64())], schema=STREAM.schema
        )
        self.queue.enqueue(Arrivals.from_rows(STREAM, rows, first), self.now)
        self.arrivals += [(self.now, key) for key in keys]

    def _serve(self, step: Step) -> None:
        served = self.queue.dequeue(step.limit, self.now)
        left = list(
            zip(served.rows.column("key").to_pylist(), served.rows.column("number").to_pylist(), strict=True)
        )
        self.dequeues += [(self.now, key, number) for key, number in left]
        self.now += step.cost // 2
        self._enter(step.meanwhile)
        if step.account_meanwhile and self.accounts:
            self.read()
        self.now += step.cost - step.cost // 2
        self.queue.deliver(served, self.now)
        self.deliveries += [(self.now, key, number) for key, number in left]


def steps(keys: int, *, meanwhile: bool) -> st.SearchStrategy[list[Step]]:
    arriving = st.lists(st.integers(0, keys - 1), max_size=4).map(tuple)
    step = st.builds(
        Step,
        gap=st.integers(0, 5_000),
        keys=arriving,
        limit=st.integers(0, 3),
        cost=st.integers(0, 20_000),
        meanwhile=arriving if meanwhile else st.just(()),
        account_meanwhile=st.booleans(),
        account=st.booleans(),
    )
    return st.lists(step, max_size=14)


def check(measured: Staleness, expected: NaiveStaleness, key_time: int) -> None:
    assert measured.area == pytest.approx(expected.area, rel=1e-9)
    assert measured.longest_us == expected.longest
    assert measured.key_time == key_time
    assert sum(measured.mass.values()) == pytest.approx(expected.stale_time, rel=1e-9)
    if not key_time:
        return
    assert measured.average_ms == pytest.approx(expected.area / key_time / 1000, rel=1e-9)
    for share in (0.5, 0.95):
        value = measured.percentile_ms(share) * 1000
        # A bin is 2 % wide, the lowest 1 µs.
        assert expected.share_up_to(value * 1.0201 + 1.001, key_time) >= share - 1e-9
        below = value / 1.0201 - 1.001
        assert below <= 0 or expected.share_up_to(below, key_time) <= share + 1e-9


def check_run(make: Callable[[], Queue], taken: Sequence[Step]) -> None:
    run = Run(make(), accounts=True)
    run.take(taken)
    whole = [Staleness.merge(part[kind] for part in run.parts) for kind in (0, 1)]
    check(whole[0], integrate(run.arrivals, run.dequeues, run.now), run.key_time)
    check(whole[1], integrate(run.arrivals, run.deliveries, run.now), run.key_time)
    once = Run(make(), accounts=False)
    once.take(taken)
    for merged, single in zip(whole, once.parts[0], strict=True):
        assert merged.area == pytest.approx(single.area, rel=1e-9)
        assert merged.longest_us == single.longest_us
        assert merged.mass.keys() == single.mass.keys()
        for number, amount in merged.mass.items():
            assert amount == pytest.approx(single.mass[number], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("policy", Policy)
@given(taken=steps(1, meanwhile=True))
def test_an_update_queue_measures_the_staleness_of_one_key(policy: Policy, taken: list[Step]) -> None:
    check_run(lambda: UpdateQueue(STREAM, policy, cost_us=2_000.0), taken)


@pytest.mark.parametrize("policy", Policy)
@given(taken=steps(5, meanwhile=True))
def test_an_update_queue_measures_the_staleness_of_many_keys(policy: Policy, taken: list[Step]) -> None:
    check_run(lambda: UpdateQueue(STREAM, policy, cost_us=2_000.0), taken)


@pytest.mark.parametrize("accept", [1.0, 0.6])
@given(taken=steps(3, meanwhile=True))
def test_an_append_queue_measures_staleness_with_and_without_shedding(
    accept: float, taken: list[Step]
) -> None:
    check_run(lambda: AppendQueue(STREAM, accept=accept, seed=3), taken)


@given(taken=steps(3, meanwhile=True))
def test_an_append_queue_serves_every_tuple_in_the_order_of_arrival(taken: list[Step]) -> None:
    run = Run(AppendQueue(STREAM), accounts=False)
    run.take([*taken, Step(1, limit=1_000)])
    assert [number for _, _, number in run.dequeues] == list(range(len(run.arrivals)))
    assert [(key, number) for _, key, number in run.dequeues] == [
        (key, number) for number, (_, key) in enumerate(run.arrivals)
    ]


@given(taken=steps(3, meanwhile=True), seed=st.integers(0, 9))
def test_what_is_shed_does_not_depend_on_batches(taken: list[Step], seed: int) -> None:
    split = Run(AppendQueue(STREAM, accept=0.5, seed=seed), accounts=True)
    split.take([*taken, Step(1, limit=1_000)])
    together = Run(AppendQueue(STREAM, accept=0.5, seed=seed), accounts=True)
    together.take([Step(1, keys=tuple(key for _, key in split.arrivals), limit=1_000)])
    numbers = [number for _, _, number in together.dequeues]
    assert [number for _, _, number in split.dequeues] == numbers
    assert np.all(np.diff(numbers) > 0)
