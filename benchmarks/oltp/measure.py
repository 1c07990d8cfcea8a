"""Rates and latencies of Penstock's OLTP benchmarks in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.programs.oltp import OltpBenchmark

__all__ = ["call_from_threads", "directory_bytes", "latencies", "opened", "rates"]

Floats = np.ndarray[Any, Any]

_CALLERS = 4
"""The threads whose calls wait for the log at the same time."""
_PACE_S = 0.001
"""A call takes the requests of at least this time."""


@contextmanager
def opened(
    benchmark: OltpBenchmark, scale: Any, place: str | None, interval: str = "0ms"
) -> Iterator[OpenDatabase]:
    """Open a database with its first rows, and with its procedure compiled."""
    with benchmark.database.open(place, commit_interval=interval) as db:
        for name, rows in benchmark.tables(scale).items():
            db.load(name, rows)
        db.run(benchmark.procedure.name, pa.table(benchmark.requests(scale, 100, 0)))
        if place is not None:  # else the checkpoint of the first rows would fall into what is measured
            db.checkpoint()
        yield db


def rates(
    db: OpenDatabase, benchmark: OltpBenchmark, events: pa.RecordBatch, size: int, callers: int = 1
) -> tuple[float, float]:
    """Run requests in calls of `size`; return transactions per second of wall time and of CPU time."""
    batches = [pa.table(events.slice(begin, size)) for begin in range(0, events.num_rows, size)]
    name = benchmark.procedure.name
    begin, spent = time.perf_counter(), time.process_time()
    if callers == 1:
        for rows in batches:
            db.run(name, rows)
    else:
        call_from_threads(db, name, iter(batches), callers)
    wall, cpu = time.perf_counter() - begin, time.process_time() - spent
    return events.num_rows / wall, events.num_rows / cpu


def call_from_threads(db: OpenDatabase, name: str, batches: Iterator[pa.Table], callers: int) -> None:
    """Run calls of one procedure, so many at the same time."""
    lock = threading.Lock()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            while not errors:
                with lock:
                    rows = next(batches, None)
                if rows is None:
                    return
                db.run(name, rows)
        except BaseException as error:  # raised again in the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def latencies(
    db: OpenDatabase, benchmark: OltpBenchmark, events: pa.RecordBatch, rate: int
) -> tuple[Floats, float]:
    """Send requests at a rate; return their latencies in milliseconds, and the rate of answers.

    Each request is due at its own time, even if earlier ones are not answered. A call takes all requests that
    are due, and returns once they are durable; `_CALLERS` calls may wait at once.
    """
    count, name = events.num_rows, benchmark.procedure.name
    ended = np.zeros(count)
    turn, sent = threading.Lock(), 0
    errors: list[BaseException] = []
    begin = time.perf_counter()

    def call() -> None:
        nonlocal sent
        try:
            while not errors:
                with turn:
                    first = sent
                    rest = begin + first / rate - time.perf_counter()
                    time.sleep(max(rest, _PACE_S))  # the pace of clients; nothing is waited for
                    sent = min(max(int((time.perf_counter() - begin) * rate), first) + 1, count)
                    last = sent
                if first == last:
                    return
                db.run(name, pa.table(events.slice(first, last - first)))
                ended[first:last] = time.perf_counter()
        except BaseException as error:  # raised again in the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(_CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    due_at = begin + np.arange(count) / rate
    return 1_000 * (ended - due_at), count / (ended.max() - begin)


def directory_bytes(place: str) -> int:
    """Return the size of all files below a directory, without the zeros that fill files of a log."""
    files = [path for path in Path(place).rglob("*") if path.is_file()]
    return sum(
        len(path.read_bytes().rstrip(b"\0")) if path.suffix == ".wal" else path.stat().st_size
        for path in files
    )
