"""Measure the time of calls by part, and the share of estimates (H-Store Fig. 5.10).

    python -m benchmarks.paper.h_store.houdini_overhead [--transactions 8000] [--partitions 16]
        [--benchmarks tatp tatp_text tpcc auction_mark] [--singles 500]

As in the paper, a call counts from the request to the answer, in an open database with so many partitions and
several models for a procedure. The first half of the requests trains the models and warms the database. The
other half runs in calls of 1,000 (`db.run`), then a few requests of it again one at a time (`db.call`). All
times are those of the CPU: one thread runs the partitions one after the other, so that the work of all of
them counts. The database is in memory. With a location, each call waits for the disk, too; with a server, for
the network.

- estimating: the predictor estimates, and learns from what transactions accessed.
- executing: the compiled transactions run, with the encoding of events and results.
- planning: the partitions of events by the compiler's keys, and the order by predictions.
- coordinating: rows move to the coordinator and back, and tables are copied for a wrong prediction.
- other: the rest of the call.

Estimates are only made for calls with a transaction whose one partition the compiler does not know. In mode
``used`` a database also runs calls without predictions where these do not help (`PredictionLimits`).
In mode ``always`` it does not, so each such call is estimated.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.paper.h_store.houdini import SETTINGS, THRESHOLD, requests_of
from penstock.designing.traces.recording import record
from penstock.predicting.models.predictor import Predictor, describe_placements
from penstock.predicting.models.runtime import RunningPredictor
from penstock.predicting.training import Samples, train
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.partitions.placement import place_tables
from penstock.procedures.partitions.predicted.call import PredictedCall
from penstock.procedures.partitions.predicted.run import PredictionLimits, use_predictor

__all__ = ["PARTS", "Clock", "measure", "report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "houdini_overhead.txt"
CALL_SIZE = 1_000
PAPER = 0.058
"""The mean share of the time of transactions that goes to estimates (H-Store §5.5.2)."""
PARTS: dict[str, list[tuple[Any, str]]] = {
    "estimating": [(RunningPredictor, name) for name in ("predict", "observe", "correct")],
    "executing": [(PredictedCall, "_run"), (TableSet, "run")],
    "planning": [(PredictedCall, "_plan"), (PartitionedTables, "event_keys"), (PartitionedTables, "route")],
    "coordinating": [
        (PredictedCall, "_copy"), (PredictedCall, "put_back"),
        *((PartitionedTables, name) for name in ("fetch_rows", "split_keys", "apply_deltas", "_apply")),
    ],
}  # fmt: skip
LIMITS = {"used": PredictionLimits(), "always": PredictionLimits(max_forwarded=1.0, max_copied=1 << 60)}
T = TypeVar("T")


class Clock:
    """The CPU time of this thread by what it does; a part within another one counts for itself."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self._running = ["other"]
        self._since = time.thread_time()

    def turn(self) -> None:
        """Count the time until now for the part that runs."""
        now = time.thread_time()
        self.parts[self._running[-1]] += now - self._since
        self._since = now

    def time(self, part: str, function: Callable[..., T]) -> Callable[..., T]:
        """Return a function whose time counts for a part."""

        def timed(*arguments: Any, **options: Any) -> T:
            self.turn()
            self._running.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self.turn()
                self._running.pop()

        return timed


class _Inline:
    """Runs the tasks of a partition at once."""

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a task."""
        done: Future[T] = Future()
        done.set_result(function(*arguments))
        return done

    def shutdown(self) -> None:
        """End nothing."""


@contextmanager
def _one_thread(db: OpenDatabase) -> Iterator[None]:
    """Let the thread of the caller run all partitions."""
    state = db._state
    assert isinstance(state, PartitionedTables)

    def run_each(tasks: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        return {number: task() for number, task in tasks.items()}

    with (
        mock.patch.object(state, "threads", [_Inline()] * state.partitions),
        mock.patch.object(state, "run_each", run_each),
    ):
        yield


@contextmanager
def _timed() -> Iterator[Clock]:
    clock = Clock()
    with ExitStack() as stack:
        for part, methods in PARTS.items():
            for owner, name in methods:
                timed = clock.time(part, getattr(owner, name))
                # A plain function is bound to the object that it is called on, as the method is.
                stack.enter_context(mock.patch.object(owner, name, timed))
        clock.parts.clear()
        clock._since = time.thread_time()
        yield clock
        clock.turn()


@dataclass
class Shares:
    """The time of a transaction in microseconds, and the shares of its parts."""

    us: float
    shares: dict[str, float]
    predicted: float

    @staticmethod
    def of(clock: Clock, transactions: int, predicted: int) -> Shares:
        """Return the shares of what was timed."""
        total = sum(clock.parts.values())
        shares = {part: clock.parts.get(part, 0.0) / total for part in (*PARTS, "other")}
        return Shares(total / transactions * 1e6, shares, predicted / transactions)


def predictor_for(name: str, requests: pa.RecordBatch, tables: Any, partitions: int) -> Predictor:
    """Return the predictor that requests train."""
    database = BENCHMARKS[SETTINGS[name].benchmark or name].database
    procedure = BENCHMARKS[SETTINGS[name].benchmark or name].procedure.name
    placements = place_tables(database.tables, partitions, {})
    models = [
        train(Samples.of(trace, placements, partitions), THRESHOLD, clustered=True)
        for trace in record(database, [(procedure, requests)], tables, kind="kind")
        if trace.transactions >= 20
    ]
    return Predictor(database.name, partitions, describe_placements(placements), THRESHOLD, models)


def measure(name: str, count: int, partitions: int, singles: int) -> dict[tuple[str, str], Shares]:
    """Return the shares by mode, and by calls of many transactions (``run``) and of one (``call``)."""
    setting = SETTINGS[name]
    requests, tables = requests_of(name, count)
    requests = requests.filter(pa.array(~np.isin(requests.column("kind").to_numpy(), setting.left_out)))
    half = requests.num_rows // 2
    predictor = predictor_for(name, requests.slice(0, half), tables, partitions)
    found = {}
    for mode, limits in LIMITS.items():
        found[mode, "run"], found[mode, "call"] = _measure(name, requests, tables, predictor, singles, limits)
    return found


def _measure(
    name: str,
    requests: pa.RecordBatch,
    tables: Any,
    predictor: Predictor,
    singles: int,
    limits: PredictionLimits,
) -> tuple[Shares, Shares]:
    benchmark = BENCHMARKS[SETTINGS[name].benchmark or name]
    partitions = predictor.partitions
    calls = [requests.slice(begin, CALL_SIZE) for begin in range(0, requests.num_rows, CALL_SIZE)]
    known = -(-len(calls) // 2)
    procedure = benchmark.procedure.name
    with benchmark.database.open(partitions=partitions) as db, _one_thread(db):
        use_predictor(db._state, benchmark.database.name, predictor, {}, limits)
        for table, rows in tables.items():
            db.load(table, rows)
        runs = db._state.predicted  # type: ignore[union-attr]
        assert runs is not None
        for call in calls[:known]:
            db.run(procedure, call)
        before = runs.transactions
        with _timed() as clock:
            for call in calls[known:]:
                db.run(procedure, call)
        many = Shares.of(clock, sum(call.num_rows for call in calls[known:]), runs.transactions - before)
        rows_of = calls[-1].slice(0, singles).to_pylist()
        for row in rows_of[:20]:
            db.call(procedure, **row)
        before = runs.transactions
        with _timed() as clock:
            for row in rows_of:
                db.call(procedure, **row)
        one = Shares.of(clock, len(rows_of), runs.transactions - before)
    return many, one


def report(names: Sequence[str], count: int, partitions: int, singles: int) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.paper.h_store.houdini_overhead --transactions {count} "
        f"--partitions {partitions} --singles {singles} --benchmarks {' '.join(names)}"
    )
    yield f"Fig. 5.10: shares of a transaction's CPU time from request to answer, {partitions} partitions,"
    yield "one thread for all. run: in calls of 1,000 transactions. call: one at a time. predicted: the share"
    yield "that ran by a prediction. always: also where predictions do not help. used: as a database does."
    yield ""
    heads = "".join(f"{part:>14}" for part in (*PARTS, "other"))
    yield f"{'':14}{'':12}{'us':>9}{heads}{'predicted':>11}"
    found: dict[str, list[float]] = defaultdict(list)
    for name in names:
        for (mode, size), shares in measure(name, count, partitions, singles).items():
            kind = f"{mode} {size}"
            cells = "".join(f"{share:>14.1%}" for share in shares.shares.values())
            found[kind].append(shares.shares["estimating"])
            yield f"{SETTINGS[name].title:14}{kind:12}{shares.us:>9.1f}{cells}{shares.predicted:>11.1%}"
    yield ""
    means = "; ".join(f"{kind} {sum(each) / len(each):.1%}" for kind, each in found.items())
    yield f"estimating, mean of the benchmarks: {means}; paper {PAPER:.1%}"
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=8_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--singles", type=int, default=500)
    parser.add_argument(
        "--benchmarks", nargs="+", choices=SETTINGS, default=["tatp", "tatp_text", "tpcc", "auction_mark"]
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    lines = report(options.benchmarks, options.transactions, options.partitions, options.singles)
    print_and_save(lines, options.out)


if __name__ == "__main__":
    main()
