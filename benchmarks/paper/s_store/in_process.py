"""Figures 5 and 7: triggers and windows in the engine, against round trips to it (S-Store §4.1, §4.3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.paper.s_store.scale import Point, Scale
from benchmarks.paper.s_store.texts import by_hand, native, statements, trigger_chain, warm
from penstock.procedures.in_process.open_database import OpenDatabase

__all__ = ["figure_5", "figure_7"]


def rate(seconds: float, run: Callable[[int], Any]) -> float:
    """Return how often a second `run` runs, which takes a number of its own each time."""
    run(0)
    count = 1
    begin = time.monotonic()
    while (now := time.monotonic()) - begin < seconds:
        run(count)
        count += 1
    return (count - 1) / (now - begin)


def batches(seconds: float, size: int, run: Callable[[pa.RecordBatch], Any], *names: str) -> float:
    """Return how many transactions a second `run` makes of batches."""

    def one(number: int) -> None:
        rows = np.arange(number * size, (number + 1) * size) + 1_000_000_000
        run(pa.RecordBatch.from_arrays([pa.array(rows)] * len(names), names=names))

    return size * rate(seconds, one)


def figure_5(scale: Scale) -> list[Point]:
    """Transactions a second of a procedure whose rows pass stages, by the number of triggers."""
    most = max(scale.triggers)
    points: list[Point] = []
    for triggers in scale.triggers:
        with warm(statements(most)).open() as db:

            def driven(number: int, db: OpenDatabase = db, triggers: int = triggers) -> None:
                db.call("begin", id=number, value=number)
                for at in range(triggers):
                    db.call(f"pass_on{at}", id=number)

            by_statement = rate(scale.seconds, driven)
        with warm(trigger_chain(triggers)).open() as db:

            def call(number: int, db: OpenDatabase = db) -> None:
                db.call("begin", id=number, value=number)

            by_trigger = rate(scale.seconds, call)
            run = lambda rows, db=db: db.run("begin", rows)  # noqa: E731
            many = batches(scale.seconds, scale.batch, run, "id", "value")
        points.append({
            "triggers": triggers, "a call a stage": by_statement,
            "triggers in the engine": by_trigger, "in batches": many,
        })  # fmt: skip
    return points


def figure_7(scale: Scale) -> list[Point]:
    """Transactions a second that insert into a window, by its size."""
    points: list[Point] = []
    for slide in scale.slides:
        for size in scale.sizes:
            with warm(by_hand(size, slide)).open() as db:
                db.load("facts", {"id": [0], "next": [0], "staged": [0]})

                def driven(number: int, db: OpenDatabase = db, slide: int = slide) -> None:
                    after = db.call("stage", value=number)["next"]
                    if db.call("note", next=after)["staged"] == slide:
                        db.call("slide", next=after)
                        db.call("expire", next=after)

                by_statement = rate(scale.seconds, driven)
            with warm(by_hand(size, slide)).open() as db:
                db.load("facts", {"id": [0], "next": [0], "staged": [0]})
                run = lambda rows, db=db: db.run("add", rows)  # noqa: E731
                tables = batches(scale.seconds, scale.batch, run, "value")
            with warm(native(size, slide)).open() as db:

                def call(number: int, db: OpenDatabase = db) -> None:
                    db.call("add", value=number)

                by_window = rate(scale.seconds, call)
                run = lambda rows, db=db: db.run("add", rows)  # noqa: E731
                many = batches(scale.seconds, scale.batch, run, "value")
            points.append({
                "size": size, "slide": slide, "by hand, a call a query": by_statement,
                "native window": by_window, "by hand, in batches": tables, "native, in batches": many,
            })  # fmt: skip
    return points
