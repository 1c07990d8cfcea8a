"""The pipeline and the slow table of a soak of freshness contracts; see `contract_soak`."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.conf.pipeline import Pipeline

__all__ = ["LIMIT_S", "MS_OF_A_ROW", "PLACE", "SHARE", "SlowTable", "is_slow", "pipeline_in", "write_batch"]

LIMIT_S, SHARE = 8.0, 0.95
MS_OF_A_ROW = 5.0
"""The time that the sink takes for a row."""
PLACE = "CONTRACT_SOAK"
"""The variable that names the directory to `write_batch`."""
_PERIOD_S, _SLOW_S = 600, 60
_SLOWDOWN = 6.0
_SPARK = {
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.ui.enabled": "false",
}


def pipeline_in(place: Path, engine: str = "local", trigger: str | None = None) -> Pipeline:
    """Return the pipeline; with Spark, its sink is `write_batch`."""
    return Pipeline.model_validate(
        {
            "engine": engine,
            "source": {"type": "pstream", "path": str(place / "in")},
            "queue": {
                "key": "k", "time": "t", "arrival": "arrived", "policy": "freshest", "buckets": 2,
                "freshness": {f"p{SHARE * 100:g}": f"{LIMIT_S:g} s"},
            },
            "sink": {"type": "noop"} if engine == "local"
            else {"type": "foreach_batch", "function": f"{__name__}:{write_batch.__name__}"},
            "query": {"checkpoint": str(place / "checkpoint")}
            | ({} if engine == "local" else {"spark": _SPARK})
            | ({} if trigger is None else {"trigger": trigger}),
        }
    )  # fmt: skip


def is_slow(at_s: float) -> bool:
    """Return whether the sink is so slow at a time that no budget keeps the promise: a minute of each ten."""
    return at_s % _PERIOD_S >= _PERIOD_S - _SLOW_S


class SlowTable:
    """A table that takes some milliseconds for each row, and in some minutes six times as many."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
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


_TABLES: dict[str, SlowTable] = {}


def table_in(place: Path) -> SlowTable:
    """Return this process's table."""
    return _TABLES.setdefault(str(place), SlowTable(place / "table.db"))


def write_batch(rows: DataFrame, batch: int) -> None:
    """Write a micro-batch of Spark into the table; runs on the driver."""
    arrow: Any = rows.select("k", "t").toArrow()
    table_in(Path(os.environ[PLACE])).write(iter(arrow.to_batches()), "", batch)
