"""Conformance tests of a scheduler of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from penstock.checkpointing.fields import Fields
from penstock.operators.scheduling.abc import Scheduler
from penstock.operators.scheduling.weights import ONE

__all__ = ["SchedulerTests"]

_KEYS: Final = 8
_RUNS: Final = 60


class _Driver:
    """Passes random arrivals to a scheduler, and records which keys wait."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        scheduler.reserve(_KEYS)
        self.scheduler = scheduler
        self.waiting: set[int] = set()
        self.now_us = 1_000
        self.draw = np.random.default_rng(seed)

    def arrive(self) -> None:
        ids = self.draw.permutation(_KEYS)[: self.draw.integers(0, _KEYS + 1)]
        resident = np.array([key in self.waiting for key in ids.tolist()], np.bool_)
        interval = self.draw.uniform(0, 100, len(ids))
        shares = ONE // self.draw.integers(1, 9, len(ids))
        arrived = self.now_us - self.draw.integers(0, 100, len(ids))
        self.scheduler.arrive(ids, resident, interval, 3.0, shares=shares, arrived_us=arrived)
        self.now_us += int(self.draw.integers(0, 50))
        self.waiting.update(ids.tolist())

    def pop(self, limit: int, held: set[int]) -> list[int]:
        marks = np.zeros(_KEYS, np.int64)
        marks[list(held)] = 1
        keys: list[int] = self.scheduler.pop(limit, marks, now_us=self.now_us).tolist()
        self.waiting.difference_update(keys)
        return keys

    def run(self) -> None:
        for _ in range(int(self.draw.integers(1, 12))):
            self.arrive()
            self.pop(int(self.draw.integers(0, _KEYS)), set())


class SchedulerTests:
    """The contract of a scheduler: it serves each waiting key once, in an order that survives storage."""

    @pytest.fixture
    def new(self) -> Callable[[], Scheduler]:
        """Return a function that makes an empty scheduler."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    @pytest.mark.parametrize("seed", range(_RUNS))
    def test_each_waiting_key_is_served_once(self, new: Callable[[], Scheduler], seed: int) -> None:
        """Pop keys except held keys, and count the keys that remain."""
        driver = _Driver(new(), seed)
        for _ in range(12):
            driver.arrive()
            held = set(np.flatnonzero(driver.draw.random(_KEYS) < 0.3).tolist())
            free, limit = driver.waiting - held, int(driver.draw.integers(0, _KEYS + 1))
            popped = driver.pop(limit, held)
            assert len(popped) == len(set(popped)) == min(limit, len(free))
            assert set(popped) <= free
            assert len(driver.scheduler) == len(driver.waiting)
        remaining = set(driver.waiting)
        assert set(driver.pop(_KEYS, set())) == remaining
        assert len(driver.scheduler) == 0

    @pytest.mark.parametrize("seed", range(_RUNS))
    def test_a_stored_order_is_kept(self, new: Callable[[], Scheduler], seed: int) -> None:
        """Store the waiting keys, restore them in another scheduler, and serve both."""
        driver, other = _Driver(new(), seed), new()
        driver.run()
        other.reserve(_KEYS)
        ids = np.array(sorted(driver.waiting), np.int64)
        stored: dict[str, Any] = driver.scheduler.store(ids)
        assert list(stored) == list(other.columns)
        other.put_back(ids, stored)
        other.rebuild(ids, Fields(driver.scheduler.meta, "a unit"))
        for limit in (1, 2, _KEYS):
            assert other.pop(limit, now_us=driver.now_us).tolist() == driver.pop(limit, set())

    @pytest.mark.parametrize("seed", range(_RUNS))
    def test_a_subset_keeps_the_order(self, new: Callable[[], Scheduler], seed: int) -> None:
        """Check that a renumbered subset of the waiting keys is served in the original order."""
        driver = _Driver(new(), seed)
        driver.run()
        numbers = driver.draw.permutation(np.array(sorted(driver.waiting), np.int64))
        some = driver.scheduler.subset(numbers, np.ones(len(numbers), np.bool_))
        for limit in (1, 2, _KEYS):
            popped = some.pop(limit, now_us=driver.now_us)
            assert numbers[popped].tolist() == driver.pop(limit, set())

    def test_keys_that_arrive_together_are_served_in_that_order(self, new: Callable[[], Scheduler]) -> None:
        """Let keys of equal weight and rate arrive at the same time."""
        scheduler = new()
        scheduler.reserve(3)
        ids, shares = np.array([2, 0, 1]), np.full(3, ONE, np.int64)
        arrived = np.zeros(3, np.int64)
        scheduler.arrive(ids, np.zeros(3, np.bool_), np.zeros(3), 1.0, shares=shares, arrived_us=arrived)
        assert scheduler.pop(2).tolist() == [2, 0]
        assert scheduler.pop(2).tolist() == [1]
