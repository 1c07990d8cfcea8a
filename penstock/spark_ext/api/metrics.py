"""The metrics of update queues, from the progress of the Spark queries that run them.

Every bucket's task emits its metrics with its rows, as one JSON value, and ``observe`` collects them in the
query's progress. So the metrics are exactly those of the attempts that Spark committed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.spark_ext.border.connection import observed_metrics

__all__ = [
    "BAD_RECORDS_PREFIX",
    "OBSERVATION_PREFIX",
    "MetricsFile",
    "ProgressReader",
    "bad_records",
    "batch_metrics",
    "had_input",
    "is_last",
    "metrics",
]

OBSERVATION_PREFIX = "penstock."
"""An update queue's metrics are observed under this prefix and its name."""

BAD_RECORDS_PREFIX = "penstock_bad_records."
"""The number of a source's records that could not be read is observed under this prefix and its name."""


class SeveralQueries(Protocol):
    """A running graph."""

    @property
    def queries(self) -> Mapping[str, StreamingQuery]:
        """Its queries by name."""


def metrics(query: StreamingQuery | SeveralQueries) -> list[dict[str, Any]]:
    """Return the metrics of the recent micro-batches of a query, or of a graph's queries, oldest first.

    One entry for each batch and update queue (Spark keeps as many batches as
    ``spark.sql.streaming.numRecentProgressUpdates`` says): ``query``, ``query_id``, ``batch_id``,
    ``timestamp``, ``operator``, ``batch_ms``, ``bad_records`` (of a pipeline's sources), and the fields of
    `penstock.operators.scheduling.metrics.BatchMetrics`, with ``queue_staleness_ms`` and
    ``application_staleness_ms`` as ``{"avg", "p95", "max"}``.

    Parameters
    ----------
    query : StreamingQuery or RunningGraph
        A query with a Penstock operator, or a `penstock.start` result; it may have ended.
    """
    queries = list(query.queries.values()) if hasattr(query, "queries") else [query]
    reports = [progress for one in queries for progress in one.recentProgress]
    reports.sort(key=lambda progress: str(progress.timestamp))
    return [entry for progress in reports for entry in batch_metrics(progress)]


def batch_metrics(progress: StreamingQueryProgress) -> list[dict[str, Any]]:
    """Return the metrics of every update queue in one progress report."""
    entries = []
    for observation, row in observed_metrics(progress).items():
        if not observation.startswith(OBSERVATION_PREFIX) or row["metrics"] is None:
            continue
        parts = [BatchMetrics.from_json(json.loads(line)) for line in row["metrics"].splitlines()]
        entries.append(
            {
                "query": progress.name,
                "query_id": str(progress.id),
                "batch_id": progress.batchId,
                "timestamp": progress.timestamp,
                "operator": observation.removeprefix(OBSERVATION_PREFIX),
                "batch_ms": progress.durationMs.get("triggerExecution", 0),
                "bad_records": bad_records(progress),
                **BatchMetrics.merge(parts).summary(),
            }
        )
    return entries


def bad_records(progress: StreamingQueryProgress) -> int:
    """Return the number of records that a pipeline's sources could not read in one micro-batch."""
    observed = observed_metrics(progress)
    return sum(row["records"] for name, row in observed.items() if name.startswith(BAD_RECORDS_PREFIX))


def had_input(progress: StreamingQueryProgress) -> bool:
    """Return whether any source had new rows for a batch. A batch without input only serves waiting keys."""
    return any(source.startOffset != source.endOffset for source in progress.sources)


def is_last(*, new_input: bool, waits: bool, drain: bool, first: bool) -> bool:
    """Return whether a query with the trigger available_now is done.

    Spark does not end such a query if keys may wait: waiting keys need timeouts, and Spark runs batches
    without input as long as a query may have timeouts.

    Parameters
    ----------
    new_input, waits : bool
        Whether any source had new rows for the batch that ended, and whether keys wait after it.
    drain : bool
        Whether the query goes on until nothing waits.
    first : bool
        Whether it is the first batch of a start. A first batch without input was planned by an earlier start
        and does not show whether there is input now, so another batch follows.
    """
    return not first and not new_input and not (drain and waits)


class ProgressReader:
    """Reads each progress report of a query once.

    Spark returns all recent reports at once, which is slow if many buckets report. So they are requested only
    if there is more than one new batch.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last = -1

    def new(self) -> list[StreamingQueryProgress]:
        """Return the reports of micro-batches that ended since the last call, oldest first."""
        last = self._query.lastProgress
        if last is None or last.batchId <= self._last:
            return []
        reports = [last] if last.batchId == self._last + 1 else self._query.recentProgress
        # A trigger that found nothing to do reports progress too, but runs no batch.
        new = [
            report for report in reports if report.batchId > self._last and "addBatch" in report.durationMs
        ]
        if new:
            self._last = new[-1].batchId
        return new


class MetricsFile(StreamingQueryListener):
    """Appends the metrics of every micro-batch to a file, one JSON object a line.

    Parameters
    ----------
    path : str
        The file; created if missing, private to the user.
    query : str, optional
        The name of the query to write; by default all of the session are.
    """

    def __init__(self, path: str, query: str | None = None) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        self._query = query
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._one_ended = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Record a run, whose last line is still to come. Spark calls this before ``start()`` returns."""
        self._started.add(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Append the batch's metrics."""
        if self._query is not None and event.progress.name != self._query:
            return
        lines = [json.dumps(entry) + "\n" for entry in batch_metrics(event.progress)]
        if lines:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(lines)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Write nothing for a query without data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Notify waiters for the run's last line."""
        with self._one_ended:
            self._ended.add(str(event.runId))
            self._one_ended.notify_all()

    def wait(self, run: str, timeout_s: float) -> bool:
        """Wait until Spark has reported all batches of an ended query's run; return whether it has.

        A run of another session is not waited for. Spark notifies listeners some time after a batch has
        ended, and maybe after the query has.
        """
        if run not in self._started:
            return True
        with self._one_ended:
            return self._one_ended.wait_for(lambda: run in self._ended, timeout_s)
