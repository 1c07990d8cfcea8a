"""The metrics of operators, read from the progress reports of their Spark queries.

Every bucket's task emits its metrics with its rows, as one JSON value, and ``observe`` collects them in the
query's progress. So the metrics cover exactly the attempts that Spark committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.monitoring.batch import OperatorBatch
from penstock.monitoring.table import MetricsList
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.spark_ext.border.connection import observed_metrics

__all__ = [
    "BAD_RECORDS_PREFIX",
    "OBSERVATION_PREFIX",
    "ProgressReader",
    "bad_records",
    "batch_metrics",
    "had_input",
    "is_last",
    "metrics",
    "operator_batches",
    "process_all_available",
]

OBSERVATION_PREFIX = "penstock."
"""An operator's metrics are observed under this prefix and the operator's name."""

BAD_RECORDS_PREFIX = "penstock_bad_records."
"""A source's number of unreadable records is observed under this prefix and the source's name."""

_POLL_S = 0.1


class SeveralQueries(Protocol):
    """A running graph."""

    @property
    def queries(self) -> Mapping[str, StreamingQuery]:
        """The queries of the graph, by name."""


@check_keywords
def metrics(query: StreamingQuery | SeveralQueries) -> MetricsList:
    """Return the metrics of the recent micro-batches of a query, or of a graph's queries, oldest first.

    There is one entry for each batch and operator. Spark keeps the last
    ``spark.sql.streaming.numRecentProgressUpdates`` batches. The fields are ``query``, ``query_id``,
    ``batch_id``, ``timestamp``, ``operator``, ``batch_ms``, ``bad_records`` (of a pipeline's sources and
    of `penstock.decode_kafka`), ``spark_ms`` (Spark's time by phase), and the fields of
    `penstock.operators.scheduling.metrics.BatchMetrics`, with ``queue_staleness_ms`` and
    ``application_staleness_ms`` as ``{"avg", "p50", "p95", "max"}``.

    The list has `to_pandas`, and notebooks show it as a table.

    Parameters
    ----------
    query : StreamingQuery or RunningGraph
        A query with a Penstock operator, or the result of `penstock.start`. The query may have ended.

    Raises
    ------
    InvalidUsageError
        If `query` is neither a query nor a running graph.
    """
    if not any(name in dir(query) for name in ("queries", "recentProgress")):
        raise InvalidUsageError(
            "this is no query", got=type(query).__name__, hint="pass what start() returned"
        )
    queries = list(query.queries.values()) if hasattr(query, "queries") else [query]
    reports = [progress for one in queries for progress in one.recentProgress]
    reports.sort(key=lambda progress: str(progress.timestamp))
    return MetricsList(entry for progress in reports for entry in batch_metrics(progress))


def batch_metrics(progress: StreamingQueryProgress) -> list[dict[str, Any]]:
    """Return the entries of every operator in one progress report."""
    return [batch.entry() for batch in operator_batches(progress)]


def operator_batches(progress: StreamingQueryProgress) -> list[OperatorBatch]:
    """Return the metrics of every operator in one progress report."""
    batches = []
    for observation, row in observed_metrics(progress).items():
        if not observation.startswith(OBSERVATION_PREFIX) or row["metrics"] is None:
            continue
        parts = [BatchMetrics.from_json(json.loads(line)) for line in row["metrics"].splitlines()]
        batches.append(
            OperatorBatch(
                query=progress.name,
                query_id=str(progress.id),
                batch_id=progress.batchId,
                timestamp=str(progress.timestamp),
                operator=observation.removeprefix(OBSERVATION_PREFIX),
                batch_ms=progress.durationMs.get("triggerExecution", 0),
                bad_records=bad_records(progress),
                spark_ms={str(phase): int(ms) for phase, ms in progress.durationMs.items()},
                metrics=BatchMetrics.merge(parts),
            )
        )
    return batches


def bad_records(progress: StreamingQueryProgress) -> int:
    """Return the number of records that could not be read or decoded in one micro-batch."""
    observed = observed_metrics(progress)
    return sum(row["records"] for name, row in observed.items() if name.startswith(BAD_RECORDS_PREFIX))


def had_input(progress: StreamingQueryProgress) -> bool:
    """Return whether any source had new rows for a batch; without new rows, it only serves waiting keys."""
    return any(source.startOffset != source.endOffset for source in progress.sources)


def is_last(*, new_input: bool, waits: bool, drain: bool, first: bool) -> bool:
    """Return whether a query with the trigger available_now is done.

    Spark does not end such a query if keys may wait. Waiting keys use timeouts, and while a query may have
    timeouts, Spark keeps running batches without input.

    Parameters
    ----------
    new_input, waits : bool
        Whether any source had new rows for the last batch, and whether keys wait after it.
    drain : bool
        Whether the query continues until no key waits.
    first : bool
        Whether the last batch is the first batch since the query started. If this batch has no input, it was
        planned before this start of the query. Such a batch does not show whether there is input now, so a
        second batch must follow.
    """
    return not first and not new_input and not (drain and waits)


class ProgressReader:
    """Reads each progress report of a query once.

    With many buckets it is slow to request all recent reports. So the reader requests all recent reports only
    if more than one batch is new. Otherwise it requests only the last report.
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


def process_all_available(query: StreamingQuery) -> None:
    """Wait until the available input of a query is processed and no key waits, or the query has ended.

    Spark's own ``processAllAvailable`` waits for a trigger that plans no micro-batch. While a query may have
    timeouts, every trigger plans a micro-batch.

    Raises
    ------
    StreamingQueryException
        If the query failed.
    """
    reader = ProgressReader(query)
    reader.new()
    first = True  # the first batch that ends may have been planned before the call
    while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
        for progress in reader.new():
            waits = any(entry["waiting_keys"] for entry in batch_metrics(progress))
            if is_last(new_input=had_input(progress), waits=waits, drain=True, first=first):
                return
            first = False
