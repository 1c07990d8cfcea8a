"""A process that serves an update queue under a freshness contract into a slow table; see `contract_soak`.

Usage: ``python -m tests.crash.pipelines.contract_job DIRECTORY``. It prints a line of JSON for each
micro-batch: what it delivered, and whether the promise holds. It also prints a line when a running
micro-batch is overdue. SIGTERM stops it once nothing waits.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.conf.pipeline import Pipeline
from penstock.jobs.local.pipeline import Places, open_pipeline
from penstock.local_engine.query import LocalBatch
from penstock.operators.freshness.overdue import Overdue

__all__ = ["LIMIT_S", "MS_OF_A_ROW", "SHARE", "is_slow", "pipeline_in"]

LIMIT_S, SHARE = 8.0, 0.95
MS_OF_A_ROW = 5.0
"""The time that the sink takes for a row."""
_PERIOD_S, _SLOW_S = 600, 60
_SLOWDOWN = 6.0
_POLL_S = 0.005


def pipeline_in(place: Path) -> Pipeline:
    """Return the pipeline."""
    return Pipeline.model_validate(
        {
            "engine": "local",
            "source": {"type": "pstream", "path": str(place / "in")},
            "queue": {
                "key": "k", "time": "t", "arrival": "arrived", "policy": "freshest", "buckets": 2,
                "freshness": {f"p{SHARE * 100:g}": f"{LIMIT_S:g} s"},
            },
            "sink": {"type": "noop"},
            "query": {"checkpoint": str(place / "checkpoint")},
        }
    )  # fmt: skip


def is_slow(at_s: float) -> bool:
    """Return whether the sink is so slow at a time that no budget keeps the promise: a minute of each ten."""
    return at_s % _PERIOD_S >= _PERIOD_S - _SLOW_S


class SlowTable:
    """A table that takes some milliseconds for each row, and in some minutes six times as many."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS newest (k TEXT PRIMARY KEY, t INTEGER)")
        self.delivered: list[tuple[str, int]] = []

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """See `penstock.local_engine.outputs.Output.write`."""
        pairs = [(row["k"], row["t"]) for some in rows for row in some.to_pylist()]
        for _ in pairs:
            time.sleep(  # the slow sink itself; nothing is waited for
                MS_OF_A_ROW * (_SLOWDOWN if is_slow(time.time()) else 1.0) / 1000
            )
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT OR REPLACE INTO newest VALUES (?, ?)", pairs)
        self._connection.execute("COMMIT")
        self.delivered += pairs


def main(place: Path) -> None:
    """Run until SIGTERM, and then until nothing waits."""
    table = SlowTable(place / "table.db")
    running = open_pipeline(pipeline_in(place), places=Places(output=lambda schema, checkpoint: table))
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))

    def say(done: LocalBatch) -> None:
        standings: list[dict[str, Any]] = [one.summary() for one in done.metrics.freshness.values()]
        line = {
            "batch": done.number,
            "delivered": table.delivered,
            "kept": all(one["kept"] for one in standings),
            "advice": [one["advice"] for one in standings],
        }
        table.delivered = []
        print(json.dumps(line), flush=True)

    def say_overdue(overdue: Overdue) -> None:
        print(json.dumps({"delivered": [], "kept": False, "overdue": overdue.name}), flush=True)

    for query in running.queries:
        query.overdue.report = say_overdue
    print(json.dumps({"started": True}), flush=True)
    while running.step(say) or not stops:
        time.sleep(_POLL_S)  # polls: another process does not announce its rows


if __name__ == "__main__":
    main(Path(sys.argv[1]))
