"""The queries that lose power (plain, queue, windows, join, graph, transactions), and their driver.

Usage: ``python power_job.py DIRECTORY``; where checkpoints and p-streams lie is in the environment. Runs
until it is killed, or until there is a file ``finished``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.errors import PenstockError
from penstock.spark_ext.api.failure import is_late_worker
from penstock.spark_ext.graph.handle import RunningGraph
from tests.crash.power.power_known_bad import DAEMON, SOURCES
from tests.crash.power.power_source import CALLS, KINDS, SCHEMA, WINDOW_S
from tests.crash.power.power_transactions import NUMBER, spend
from tests.servers.processes import until
from tests.spark.conftest import lean_session
from tests.spark.queries import limits

__all__ = ["BROKEN", "CHECKPOINTS", "FILE_MANAGER", "STREAMS", "Queries"]

CHECKPOINTS, STREAMS = "PENSTOCK_TEST_CHECKPOINTS", "PENSTOCK_TEST_STREAMS"
"""The variables that tell the driver where the disks are."""

FILE_MANAGER = "PENSTOCK_TEST_FILE_MANAGER"
"""The variable that says how Spark writes checkpoints: by Hadoop's ``FileContext``, or its ``FileSystem``."""

BROKEN = "PENSTOCK_KNOWN_BAD"
"""The variable that names what is broken, if anything is; see `tests.crash.power.power_known_bad`."""

_BATCH_ROWS = 200
_PATIENCE_S = 60.0
_AGGREGATES = {"number": "count(*)", "total": "sum(v)"}


class Queries:
    """The queries of one start."""

    def __init__(self, spark: SparkSession, checkpoints: Path, streams: Path, broken: str = "") -> None:
        self._spark = spark
        self._checkpoints = checkpoints
        self._streams = streams
        penstock.register(spark)
        if broken:
            spark.dataSource.register(SOURCES[broken])
        self._running: dict[str, StreamingQuery | RunningGraph] = {}

    def start(self) -> None:
        """Start or restart all."""
        for kind in KINDS:
            self._running[kind] = self._start(kind)

    def check(self) -> None:
        """Raise what a query has failed with; start one again for which the machine was too busy."""
        for kind, one in self._running.items():
            error = _error_of(one)
            if error is not None and not _was_too_busy(error):
                raise error
            if error is not None:
                one.stop()
                self._running[kind] = self._start(kind)

    def stop(self) -> None:
        """Stop all."""
        for one in self._running.values():
            one.stop()

    def _start(self, kind: str) -> StreamingQuery | RunningGraph:
        checkpoint = self._checkpoints / kind
        if kind == "graph":
            graph = (
                penstock.graph("job")
                .source("rows", SCHEMA)
                .where("v >= 0")
                .window("t", size=f"{WINDOW_S} s", unit="s")
                .group_by("k")
                .agg(**_AGGREGATES)
                .sink("pstream", path=str(self._streams / f"out-{kind}"))
            )
            sources = {"rows": self._streams / "left"}
            return penstock.start(
                graph,
                self._spark,
                checkpoint,
                sources=sources,
                persist="always",
                **limits(max_rows=_BATCH_ROWS),
            )
        penstock.repair_checkpoint(checkpoint, dry_run=False)
        writer = self._frame(kind).writeStream.format("pstream").queryName(kind)
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.start(str(self._streams / f"out-{kind}"))
        # On a busy machine Python processes that all start at once come too late for Spark.
        until(lambda: query.lastProgress is not None or query.exception() is not None, _PATIENCE_S)
        return query

    def _frame(self, kind: str) -> DataFrame:
        """Return the rows that a plain query of a kind writes."""
        options: dict[str, Any] = {"key": "k", "time": "t", "state_location": self._checkpoints / "state"}
        rows = self._read(kind)
        if kind == "queue":
            return penstock.update_queue(rows, policy="linecutting", budget=60, **options)
        if kind == "windows":
            return penstock.update_window(
                rows, size=f"{WINDOW_S} s", unit="s", mode="append", aggs=_AGGREGATES, **options
            )
        if kind == "join":
            other = self._read(kind, "right").selectExpr("k", "t", "v AS other")
            return penstock.update_join(
                rows, other, within="0 s", watermark_delay="100000 s", unit="s", **options
            )
        if kind == "transactions":
            right, state = self._read(kind, "right"), self._checkpoints / "state"
            return penstock.transactions(
                right, spend, keep=NUMBER, requests=self._streams / CALLS, state_location=state
            )
        return rows

    def _read(self, kind: str, name: str = "left") -> DataFrame:
        reader = self._spark.readStream.format("pstream").option("reader", f"{kind}-{name}")
        return reader.options(**limits(maxRows=_BATCH_ROWS)).load(str(self._streams / name))


def _was_too_busy(error: Exception) -> bool:
    """Say whether a query failed because a Python worker was late."""
    return is_late_worker(error) or (error.__cause__ is not None and is_late_worker(error.__cause__))


def _error_of(query: StreamingQuery | RunningGraph) -> Exception | None:
    if isinstance(query, StreamingQuery):
        return query.exception()
    try:
        query.await_termination(0)
    except PenstockError as error:
        return error
    return None


def main() -> int:
    """Run the driver and return its exit code."""
    directory = Path(sys.argv[1])
    spark = lean_session(
        directory / "spark",
        as_users=True,
        spark__python__daemon__module=DAEMON,
        # Compiling plans takes longer than a few micro-batches do.
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
        spark__sql__streaming__checkpointFileManagerClass=os.environ[FILE_MANAGER],
    )
    checkpoints, streams = (Path(os.environ[name]) for name in (CHECKPOINTS, STREAMS))
    queries = Queries(spark, checkpoints, streams, os.environ.get(BROKEN, ""))
    queries.start()
    print("started", flush=True)
    while not (directory / "finished").exists():
        queries.check()
        time.sleep(0.05)  # the file is made by another process, which tells nobody
    queries.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
