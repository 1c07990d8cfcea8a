"""Costs by key: only sums of groups are measured, and dear keys wait longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.conf.values import queue_cost_of
from penstock.errors import InvalidUsageError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.rates import correct_costs
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.operators.update_stream.stream import UpdateStream

SCHEMA = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), pa.field("time", pa.int64(), nullable=False)]
)
KEYS = 60
TRUE_US = np.where(np.arange(KEYS) % 6 == 0, 20_000.0, 1_000.0)


def _stream(*, by_key: bool) -> UpdateStream:
    return UpdateStream(SCHEMA, ("key",), "time", costs_by_key=by_key)


class _Server:
    """Micro-batches of a queue whose `apply` takes the true time of each key."""

    def __init__(self, *, by_key: bool) -> None:
        self.now_us = 0.0
        self.queue = UpdateQueue(_stream(by_key=by_key), Policy.FRESHEST)
        self.stale_us = self.key_time = 0.0
        self._draws = np.random.default_rng(5)
        self._sent = 0
        self._query = Query(self._apply, SCHEMA, ("key",))

    def _apply(self, rows: pa.Table) -> pa.Table:
        self.now_us += float(TRUE_US[rows.column("key").to_numpy()].sum())
        return rows

    def step(self, arriving: int = 60, budget_us: int = 40_000) -> None:
        self.now_us += 1_000
        keys = np.unique(self._draws.integers(0, KEYS, arriving))
        rows = pa.RecordBatch.from_arrays(
            [pa.array(keys), pa.array(np.arange(len(keys)) + self._sent)], schema=SCHEMA
        )
        self._sent += len(keys)
        _, metrics = serve(
            self.queue,
            Arrivals.from_rows(self.queue.stream, rows, 0),
            query=self._query,
            budget=Budget(duration_us=budget_us),
            clock=lambda: int(self.now_us),
        )
        self.stale_us += metrics.application_staleness.average_ms * metrics.application_staleness.key_time
        self.key_time += metrics.application_staleness.key_time

    @property
    def staleness(self) -> float:
        return self.stale_us / self.key_time

    def costs(self) -> np.ndarray[Any, Any]:
        found = self.queue.accounts.records["cost_us"][: len(self.queue.accounts.records)]
        order = self.queue.numbers_of(self.queue.stream.codec.encode([pa.array(np.arange(KEYS))]))
        costs: np.ndarray[Any, Any] = found[order]
        return costs


def test_a_measurement_of_one_key_moves_its_cost_half_of_the_way_in_logarithms() -> None:
    assert correct_costs(np.array([100.0]), 400.0, None) == pytest.approx([200.0])
    assert correct_costs(np.array([100.0]), 1e9, None) == pytest.approx([200.0])  # a pause is capped


def test_keys_of_unknown_cost_begin_with_the_mean() -> None:
    assert correct_costs(np.array([0.0, 300.0]), 400.0, 100.0) == pytest.approx([100.0, 300.0])
    assert correct_costs(np.zeros(2), 400.0, None) == pytest.approx([200.0, 200.0])
    assert len(correct_costs(np.zeros(0), 400.0, None)) == 0


def test_costs_are_found_from_sums_of_groups() -> None:
    server = _Server(by_key=True)
    for _ in range(400):
        server.step()
    error = server.costs() / TRUE_US
    assert np.median(np.abs(np.log(error))) < 0.2
    dear = TRUE_US.min() < TRUE_US
    assert server.costs()[dear].min() > 3 * np.median(server.costs()[~dear])


def test_staleness_is_lower_with_costs_by_key() -> None:
    servers = [_Server(by_key=by_key) for by_key in (False, True)]
    for server in servers:
        for _ in range(400):
            server.step()
    without, with_costs = (server.staleness for server in servers)
    assert with_costs < 0.85 * without


@pytest.mark.parametrize("snapshot", [False, True])
def test_costs_survive_a_restart(snapshot: bool) -> None:
    server = _Server(by_key=True)
    deltas = []
    for _ in range(50):
        server.step()
        deltas.append(server.queue.delta())
    restored = UpdateQueue(_stream(by_key=True), Policy.FRESHEST)
    restored.restore(server.queue.snapshot() if snapshot else deltas)
    order = restored.numbers_of(restored.stream.codec.encode([pa.array(np.arange(KEYS))]))
    assert restored.accounts.records["cost_us"][order] == pytest.approx(server.costs())


def test_yaml_and_options_take_costs_by_key() -> None:
    assert queue_cost_of("by key") == "by key"
    options = QueueOptions(
        policy="freshest", cost="by key", budget="1 s", apply=lambda rows: rows, output_schema=SCHEMA
    )
    assert options.costs_by_key
    assert options.cost_us is None


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"policy": "freshest"}, "apply=, which is missing"),
        ({"policy": "fifo", "apply": lambda rows: rows, "output_schema": SCHEMA}, "need policy='freshest'"),
        (
            {
                "policy": "freshest",
                "semantics": "adaptive",
                "apply": lambda rows: rows,
                "output_schema": SCHEMA,
            },
            "and update semantics",
        ),
    ],
)
def test_a_queue_that_cannot_measure_them_is_refused(given: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        QueueOptions(cost="by key", **given)
