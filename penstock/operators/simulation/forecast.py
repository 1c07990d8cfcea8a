"""Forecast the staleness of results from a sample of rows, by policy, load and cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.freshness.classes import KeyClasses
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.simulation.micro_batches import Engine, run_micro_batches
from penstock.operators.update_stream.stream import Integers, UpdateStream, as_int64, as_micros

__all__ = ["Forecast", "Sample", "forecast"]

_WARM_UP = 0.2
"""The share of a run that passes before staleness is measured."""
_MIN_S = 20.0
"""A sample is repeated until it lasts at least this long."""
_MAX_ROWS = 2_000_000
_TIME, _ARRIVAL = "__time", "__arrival"


@dataclass(frozen=True)
class Sample:
    """A sample of an update stream, in order of arrival.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The rows, with the columns that the classes of a contract depend on.
    key : tuple of str
        The update key.
    order : int64 array
        The rank of each row by time.
    arrived_us : int64 array
        The arrival of each row, from 0.
    """

    rows: pa.RecordBatch
    key: tuple[str, ...]
    order: Integers
    arrived_us: Integers

    @staticmethod
    def of(table: pa.Table, key: Sequence[str], time: str, arrival: str | None = None) -> Sample:
        """Return the sample in a table. If there is no arrival column, rows arrive at their time.

        Raises
        ------
        InvalidUsageError
            If a column is missing, the arrival is not a timestamp, or all rows arrive at the same moment.
        """
        at = arrival or time
        checked = UpdateStream(table.schema, tuple(key), time, at if arrival else None)
        if not pa.types.is_timestamp(table.schema.field(at).type):
            raise InvalidUsageError(
                "the arrival of rows is not a timestamp", column=at, hint="name a timestamp with --arrival"
            )
        batches = table.combine_chunks().to_batches()
        rows = batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
        rows, _ = checked.drop_unusable(rows, "drop")
        arrived = as_micros(rows.column(at))
        if not len(arrived) or arrived.min() == arrived.max():
            raise InvalidUsageError("a sample needs rows of several moments", rows=len(arrived), column=at)
        line = np.argsort(arrived, kind="stable")
        rows, arrived = rows.take(pa.array(line)), arrived[line]
        _, order = np.unique(as_int64(rows.column(time)), return_inverse=True)
        return Sample(rows, tuple(key), order.astype(np.int64), arrived - arrived[0])

    @property
    def span_us(self) -> int:
        """The time from the first arrival to the last arrival, plus one mean interval."""
        return int(self.arrived_us[-1]) * (len(self.arrived_us) + 1) // len(self.arrived_us)

    @property
    def rate(self) -> float:
        """Rows per second."""
        return len(self.arrived_us) / self.span_us * 1e6

    def at_load(self, load: float, most_us: int) -> tuple[pa.RecordBatch, Integers]:
        """Return the rows and their arrivals as if they arrived `load` times as fast.

        A short sample is repeated. Rows that arrive later than `most_us` are left out.
        """
        span = self.span_us / load
        times = max(int(np.ceil(_MIN_S * 1e6 / span)), 1)
        count = len(self.arrived_us)
        if times * count > _MAX_ROWS:
            times = max(_MAX_ROWS // count, 1)
        rows = self.rows.take(pa.array(np.tile(np.arange(count), times)))
        rounds = np.repeat(np.arange(times), count)
        arrived = (np.tile(self.arrived_us, times) / load + rounds * span).astype(np.int64)
        order = np.tile(self.order, times) + rounds * (int(self.order.max()) + 1)
        columns = {_TIME: pa.array(order), _ARRIVAL: pa.array(arrived).view(pa.timestamp("us"))}
        for name, values in columns.items():
            rows = rows.append_column(name, values)
        until = int(np.searchsorted(arrived, most_us, side="right"))
        return rows.slice(0, until), arrived[:until]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The staleness of one run.

    Attributes
    ----------
    load : float
        The load, as a multiple of the load of the sample.
    cores : int
        The number of cores, and of buckets.
    policy : Policy
        The policy.
    staleness : Staleness
        The application staleness of all keys.
    by_class : dict of str to Staleness
        Application staleness by class; empty without a contract.
    kept : dict of str to bool
        Whether each promise holds.
    served : int
        The number of served tuples.
    batch_ms : float
        The mean duration of a micro-batch.
    """

    load: float
    cores: int
    policy: Policy
    staleness: Staleness
    by_class: dict[str, Staleness]
    kept: dict[str, bool]
    served: int
    batch_ms: float

    def to_row(self) -> dict[str, Any]:
        """Return the forecast as a row of a table."""
        row = {"load": self.load, "cores": self.cores, "policy": str(self.policy)}
        row |= {"p50_ms": self.staleness.percentile_ms(0.5), "p95_ms": self.staleness.percentile_ms(0.95)}
        row |= {"avg_ms": self.staleness.average_ms, "batch_ms": self.batch_ms, "served": self.served}
        for name, part in self.by_class.items():
            row |= {
                f"{name}_p50_ms": part.percentile_ms(0.5),
                f"{name}_p95_ms": part.percentile_ms(0.95),
                f"{name}_kept": self.kept[name],
            }
        return row


def forecast(
    sample: Sample,
    engine: Engine,
    limits: Budget | FreshnessContract,
    *,
    loads: Sequence[float],
    cores: Sequence[int],
    policies: Sequence[Policy],
    most_us: int = 300_000_000,
) -> Iterator[Forecast]:
    """Run the sample with each policy on each number of cores at each load.

    Parameters
    ----------
    limits : Budget or FreshnessContract
        A budget is for all buckets together, as for `penstock.update_queue`.
    most_us : int
        The greatest simulated time of a run.
    """
    for load in loads:
        rows, arrived = sample.at_load(load, most_us)
        for count in cores:
            for policy in policies:
                yield _run(rows, arrived, sample.key, engine, limits, load, count, policy)


def _run(
    rows: pa.RecordBatch,
    arrived: Integers,
    key: tuple[str, ...],
    engine: Engine,
    limits: Budget | FreshnessContract,
    load: float,
    cores: int,
    policy: Policy,
) -> Forecast:
    contract = limits if isinstance(limits, FreshnessContract) else None
    stream = UpdateStream(
        rows.schema, key, _TIME, _ARRIVAL, classes=None if contract is None else KeyClasses.of(contract)
    )
    queues = [UpdateQueue(stream, policy) for _ in range(cores)]
    own = limits
    if isinstance(limits, Budget) and limits.rows is not None:
        own = Budget(rows=max(limits.rows // cores, 1))
    end_us = int(arrived[-1])
    ran = list(run_micro_batches(queues, rows, arrived, lambda _: engine, own, end_us=end_us, paced=True))
    late = [one for one in ran if one.started_us >= _WARM_UP * end_us] or ran[-1:]
    by_class, kept = {}, {}
    part_share = 0.0 if contract is None else contract.share
    for promise in () if contract is None else contract.promises:
        parts = [one.metrics.freshness[promise.name] for one in late if promise.name in one.metrics.freshness]
        by_class[promise.name] = whole = Staleness.merge(part.staleness for part in parts)
        beyond = sum(part.staleness.time_above(part.limit_us - part.fixed_us) for part in parts)
        kept[promise.name] = beyond <= (1.0 - part_share) * whole.key_time
    return Forecast(
        load,
        cores,
        policy,
        Staleness.merge(one.metrics.application_staleness for one in late),
        by_class,
        kept,
        sum(one.metrics.emitted for one in late),
        sum(one.ended_us - one.started_us for one in late) / len(late) / 1000,
    )
