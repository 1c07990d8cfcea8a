"""Designs that bound the latency to durable, in turns, each over a new database.

    python -m benchmarks.oltp.designs [--benchmark voter] [--rate 10000] [--seconds 3] [--rounds 3]

`appended` is a write-ahead log whose files grow with each commit. In `filled` its next files are filled with
zeros first, as in use. `frozen` exempts the objects that exist after opening from garbage collection
(`gc.freeze`), as `penstock serve` does. `switching` lets threads release the interpreter's lock after 0.5
instead of 5 ms. Each round runs all designs, every second one in reverse order. Then a file is appended to
and synced, first alone, and then beside a thread that publishes files all the time.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import REPOSITORY, print_and_save, report_head, scratch
from benchmarks.oltp.measure import latencies, opened
from penstock import _durable
from penstock._durable.appended import AppendedFile
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.write_ahead_log import WriteAheadLog
from penstock.procedures.programs.oltp import OLTP, OltpBenchmark

__all__ = ["report"]

RESULTS = REPOSITORY / "benchmarks" / "results"
DESIGNS = ("appended", "filled", "appended, frozen", "filled, frozen", "filled, frozen, switching")
_APPENDED_BYTES, _PUBLISHED_BYTES = 2_500, 200_000
_PACE_S = 0.001


@contextmanager
def _used(design: str, benchmark: OltpBenchmark, scale: Any, interval: str) -> Iterator[OpenDatabase]:
    bytes_before_room, switch_s = WriteAheadLog.bytes_before_room, sys.getswitchinterval()
    if "filled" not in design:
        WriteAheadLog.bytes_before_room = sys.maxsize
    try:
        with scratch("oltp") as place, opened(benchmark, scale, place, interval) as db:
            if "switching" in design:
                sys.setswitchinterval(switch_s / 10)
            if "frozen" in design:
                gc.collect()
                gc.freeze()
            yield db
    finally:
        WriteAheadLog.bytes_before_room = bytes_before_room
        sys.setswitchinterval(switch_s)
        gc.unfreeze()


def report(
    name: str, rate: int, seconds: float, rounds: int, interval: str, *, quick: bool = False
) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.oltp.designs --benchmark {name} --rate {rate} --seconds {seconds:g} "
        f"--rounds {rounds} --interval {interval}"
    )
    benchmark = OLTP[name]
    scale = benchmark.small if quick else benchmark.full
    taken: dict[str, list[list[float]]] = {design: [] for design in DESIGNS}
    for number in range(rounds):
        events = benchmark.requests(scale, max(int(rate * seconds), 10), 2 + number)
        for design in DESIGNS[:: 1 if number % 2 == 0 else -1]:
            with _used(design, benchmark, scale, interval) as db:
                spent, _ = latencies(db, benchmark, events, rate)
            taken[design].append(np.percentile(spent, [50, 95, 99]).tolist())
    names = ("p50, ms", "p95, ms", "p99, ms")
    yield f"{'median of the rounds':<28}" + "".join(f"{one:>10}" for one in names) + "  p99 of each round"
    for design, rows in taken.items():
        each = ", ".join(f"{row[2]:.1f}" for row in rows)
        yield f"{design:<28}" + "".join(f"{one:>10.1f}" for one in np.median(rows, axis=0)) + f"  {each}"
    yield f"{f'appends of {_APPENDED_BYTES} bytes':<28}" + "".join(f"{one:>10}" for one in names)
    for filled, publishes in itertools.product((False, True), repeat=2):
        with scratch("syncs") as place:
            spent_ms = _syncs(Path(place), seconds / 3, filled=filled, publishes=publishes)
        way = f"{DESIGNS[filled]}, {'beside publishing' if publishes else 'alone'}"
        yield f"{way:<28}" + "".join(f"{one:>10.1f}" for one in np.percentile(spent_ms, [50, 95, 99]))


def _syncs(place: Path, seconds: float, *, filled: bool, publishes: bool) -> list[float]:
    """Return the milliseconds of appends of `_APPENDED_BYTES`."""
    ended = threading.Event()

    def publish() -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            path = place / f"{filled} {number}"
            _durable.publish(path, bytes(_PUBLISHED_BYTES))
            _durable.delete(path)

    other = threading.Thread(target=publish)
    file = AppendedFile(place / f"{filled} {publishes}", b"", WriteAheadLog.part_bytes if filled else 0)
    taken: list[float] = []
    if publishes:
        other.start()
    begin = time.perf_counter()
    try:
        while (at := time.perf_counter()) - begin < seconds or not taken:
            file.append(b"c" * _APPENDED_BYTES)
            taken.append(1_000 * (time.perf_counter() - at))
            time.sleep(_PACE_S)  # the pace of commits; nothing is waited for
    finally:
        ended.set()
        if publishes:
            other.join()
        file.close()
    return taken


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--benchmark", default="voter", choices=OLTP)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interval", default="1ms")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    out = chosen.out or RESULTS / f"oltp_designs_{chosen.benchmark}.txt"
    print_and_save(report(chosen.benchmark, chosen.rate, chosen.seconds, chosen.rounds, chosen.interval), out)


if __name__ == "__main__":
    main()
