"""Runs of freshness contracts in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.freshness.classes import KeyClasses
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget
from penstock.operators.simulation.micro_batches import Engine, MicroBatch, run_micro_batches
from penstock.operators.update_stream.stream import UpdateStream

__all__ = ["SCHEMA", "Traffic", "contract_of", "new_queues", "run", "stream_of"]

SECOND = 1_000_000
SCHEMA = pa.schema([
    ("key", pa.int64()), ("time", pa.int64()), ("tier", pa.string()), ("arrived", pa.timestamp("us")),
])  # fmt: skip


@dataclass(frozen=True)
class Traffic:
    """Rows of random keys, evenly spaced.

    Parameters
    ----------
    rate_at : callable
        Rows a second at a second of the run.
    seconds : int
        Length of the run.
    keys : int
        Number of keys; each of the first `gold` ones is gold, the others are plain.
    """

    rate_at: Callable[[int], float]
    seconds: int
    keys: int = 200
    gold: int = 0
    seed: int = 1

    def rows(self) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return the rows and their arrivals."""
        generator = np.random.default_rng(self.seed)
        arrived = np.concatenate([
            second * SECOND + (np.arange(int(rate)) * SECOND / rate).astype(np.int64)
            for second in range(1, self.seconds + 1)
            if (rate := self.rate_at(second)) >= 1
        ])  # fmt: skip
        keys = generator.integers(0, self.keys, len(arrived))
        tiers = np.where(keys < self.gold, "gold", "plain")
        columns = [keys, np.arange(len(arrived)), tiers, pa.array(arrived).view(pa.timestamp("us"))]
        return pa.RecordBatch.from_arrays([pa.array(one) for one in columns], schema=SCHEMA), arrived


def contract_of(limits: str | dict[str, str], percentile: str = "p95") -> FreshnessContract:
    """Return a contract; classes are tiers."""
    by = {"by": "tier"} if isinstance(limits, dict) else {}
    return FreshnessContract.parse({percentile: limits, **by})


def stream_of(contract: FreshnessContract | None = None) -> UpdateStream:
    """Return the stream of `SCHEMA`, with the classes of a contract."""
    classes = None if contract is None else KeyClasses.of(contract)
    return UpdateStream(SCHEMA, ("key",), "time", "arrived", classes=classes)


def new_queues(
    limits: FreshnessContract | Budget, buckets: int = 1, policy: Policy = Policy.FRESHEST
) -> list[UpdateQueue]:
    contract = limits if isinstance(limits, FreshnessContract) else None
    return [UpdateQueue(stream_of(contract), policy) for _ in range(buckets)]


def run(
    traffic: Traffic,
    limits: FreshnessContract | Budget,
    engine: Engine | Callable[[int], Engine],
    queues: Sequence[UpdateQueue] | None = None,
) -> list[MicroBatch]:
    """Run the traffic; the engine may depend on the second."""
    rows, arrived = traffic.rows()

    def engine_at(now_us: int) -> Engine:
        return engine if isinstance(engine, Engine) else engine(now_us // SECOND)

    end_us = (traffic.seconds + 1) * SECOND
    return list(
        run_micro_batches(
            queues or new_queues(limits), rows, arrived, engine_at, limits, end_us=end_us, place=""
        )
    )
