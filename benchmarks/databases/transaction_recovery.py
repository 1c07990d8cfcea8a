"""The cost of weak and strong recovery, for a running workflow and after a crash (S-Store §4.4, Fig. 9).

    python -m benchmarks.databases.transaction_recovery [--repeats 3] [--seconds 2] [--workflows 300]

The workflow is that of Figure 6: procedures that follow each other, each of which counts. A call runs one
workflow; it is logged and synced before it returns. Weak recovery logs the event, strong recovery each
transaction. The recovered log has no version of the tables. It is in memory (/dev/shm) if possible, so that
it waits for no disk. Both kinds take turns; figures are medians.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, median, print_and_save, report_foot, scratch
from benchmarks.paper.s_store.texts import warm, workflow
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase

__all__ = ["RECOVERIES", "recovery_points", "report", "throughput_points"]

Recovery = Literal["weak", "strong"]
Point = dict[str, Any]
RECOVERIES: tuple[Recovery, ...] = ("strong", "weak")
RESULT = REPOSITORY / "benchmarks" / "results" / "transaction_recovery.txt"
TRIGGERS = (0, 1, 2, 5, 10)
GROUP = 100
"""Workflows of a call where weak recovery makes many durable by one sync."""

_MEMORY = Path("/dev/shm")


def _opened(made: Database, place: str, recovery: Recovery, triggers: int) -> OpenDatabase:
    db = made.open(place, recovery=recovery)
    steps = range(triggers + 1)
    db.load("counts", {"id": list(steps), "count": [0 for _ in steps]})
    return db


def _counts(db: OpenDatabase) -> set[int]:
    return set(db.table("counts")["count"].to_pylist())


def _crash(db: OpenDatabase) -> None:
    """End as a crash does: nothing but the log is there."""
    if db._log is not None:
        db._log.close()


def throughput_points(triggers: Sequence[int], seconds: float) -> list[Point]:
    """Return workflows a second by the number of triggers, each durable before the next one (Fig. 9a)."""
    points = []
    for count in triggers:
        made = warm(workflow(count), ["flow"])
        point: Point = {"triggers": count}
        for recovery in RECOVERIES:
            point[recovery] = _rate(made, recovery, count, seconds, 1)
        point[f"weak, {GROUP} a call"] = _rate(made, "weak", count, seconds, GROUP)
        points.append(point)
    return points


def _rate(made: Database, recovery: Recovery, triggers: int, seconds: float, size: int) -> float:
    events = pa.table({"value": [1] * size})
    with scratch("recovery") as place:
        db = _opened(made, place, recovery, triggers)
        db.run("flow", events)
        calls, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds or not calls:
            db.run("flow", events)
            calls += 1
        took = time.perf_counter() - begin
        if _counts(db) != {(calls + 1) * size}:
            raise AssertionError(f"{recovery}: {_counts(db)} after {calls + 1} calls of {size}")
        _crash(db)
    return calls * size / took


def recovery_points(triggers: Sequence[int], workflows: int) -> list[Point]:
    """Return how many milliseconds it takes to recover so many workflows (Fig. 9b)."""
    points = []
    for count in triggers:
        made = warm(workflow(count), ["flow"])
        point: Point = {"triggers": count}
        for recovery in RECOVERIES:
            point[recovery] = 1000 * _recovering(made, recovery, count, workflows)
        points.append(point)
    return points


def _recovering(made: Database, recovery: Recovery, triggers: int, workflows: int) -> float:
    inside = str(_MEMORY) if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="penstock-recovery-", dir=inside) as place:
        db = _opened(made, place, recovery, triggers)
        for _ in range(workflows):
            db.call("flow", value=1)
        _crash(db)
        begin = time.perf_counter()
        db = made.open(place, recovery=recovery)
        took = time.perf_counter() - begin
        if _counts(db) != {workflows}:
            raise AssertionError(f"{recovery}: {_counts(db)} after {workflows} workflows")
        _crash(db)
    return took


def report(repeats: int, seconds: float, workflows: int, triggers: Sequence[int]) -> Iterator[str]:
    """Return the lines of the result."""
    yield (
        f"python -m benchmarks.databases.transaction_recovery --repeats {repeats} --seconds {seconds:g} "
        f"--workflows {workflows}"
    )
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    parts: list[tuple[str, Callable[[], list[Point]], str]] = [
        ("workflows/s, each call durable", lambda: throughput_points(triggers, seconds), "weak / strong"),
        (
            f"ms to recover {workflows} workflows",
            lambda: recovery_points(triggers, workflows),
            "strong / weak",
        ),
    ]
    for title, measure, ratio in parts:
        runs = [measure() for _ in range(repeats)]
        names = [name for name in runs[0][0] if name != "triggers"]
        above, below = ratio.split(" / ")
        yield ""
        yield title
        yield f"{'triggers':>8}" + "".join(f"{name:>18}" for name in (*names, ratio))
        for place, first in enumerate(runs[0]):
            points = [run[place] for run in runs]
            cells = [f"{median([point[name] for point in points]):>18,.1f}" for name in names]
            cells.append(f"{median([point[above] / point[below] for point in points]):>18.2f}")
            yield f"{first['triggers']:>8}" + "".join(cells)
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--workflows", type=int, default=300)
    parser.add_argument("--triggers", type=int, nargs="*", default=TRIGGERS)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.repeats, options.seconds, options.workflows, options.triggers), options.out)


if __name__ == "__main__":
    main()
