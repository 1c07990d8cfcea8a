"""Figures 9a and 9b: strong and weak recovery, in normal operation and after a crash (S-Store §4.4)."""

from __future__ import annotations

import multiprocessing
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.harness import scratch
from benchmarks.paper.s_store.clients import until_over
from benchmarks.paper.s_store.scale import Point, Scale
from benchmarks.paper.s_store.texts import warm, workflow
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase

__all__ = ["crash", "figure_9a", "figure_9b"]

Recovery = Literal["weak", "strong"]


def _opened(made: Database, place: Path, recovery: Recovery, triggers: int) -> OpenDatabase:
    """Open a new database with the rows that its procedures count in."""
    db = made.open(place, recovery=recovery)
    db.load("counts", {"id": list(range(triggers + 1)), "count": [0] * (triggers + 1)})
    return db


def _call(db: OpenDatabase, number: int) -> None:
    db.call("flow", value=number)


def figure_9a(scale: Scale) -> list[Point]:
    """Workflows a second, each durable by itself, by the number of triggers."""
    points: list[Point] = []
    for triggers in scale.triggers:
        made = warm(workflow(triggers), ["flow"])
        point: Point = {"triggers": triggers}
        for recovery in get_args(Recovery):
            with scratch("s-store") as place, _opened(made, Path(place) / "db", recovery, triggers) as db:
                db.call("flow", value=1)
                point[recovery] = until_over(scale.seconds, partial(_call, db))
        points.append(point)
    return points


def crash(place: Path, recovery: Recovery, triggers: int, count: int) -> None:
    """Run workflows in a process of its own, which ends without a checkpoint."""

    def run() -> None:
        db = _opened(workflow(triggers), place, recovery, triggers)
        for number in range(count):
            _call(db, number)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"workflows failed: exit code {process.exitcode}")


def figure_9b(scale: Scale) -> list[Point]:
    """Seconds until a database is open again after a crash, by the number of triggers.

    Raises
    ------
    SystemExit
        If its tables are others.
    """
    points: list[Point] = []
    for triggers in scale.triggers:
        made = warm(workflow(triggers), ["flow"])
        point: Point = {"triggers": triggers}
        expected = sum(range(scale.recovered))
        for recovery in get_args(Recovery):
            with scratch("s-store") as place:
                database = Path(place) / "db"
                crash(database, recovery, triggers, scale.recovered)
                begin = time.monotonic()
                with made.open(database, recovery=recovery) as db:
                    point[recovery] = time.monotonic() - begin
                    counts: list[Any] = db.table("counts")["count"].to_pylist()
                if counts != [expected] * (triggers + 1):
                    raise SystemExit(f"{recovery} recovery gave {counts}, not {expected}")
        points.append(point)
    return points
