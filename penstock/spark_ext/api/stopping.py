"""Stopping a streaming query between two of its micro-batches."""

from __future__ import annotations

import logging
import threading

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock._clock import monotonic_s
from penstock.spark_ext.border.connection import has_running_tasks

__all__ = ["stop_between_batches"]

_LOG = logging.getLogger(__name__)
_POLL_S = 0.01
_BATCH_END_S = 10.0
_TASKS_END_S = 10.0
"""The longest wait for the tasks of a cancelled batch."""


def stop_between_batches(
    query: StreamingQuery, spark: SparkSession, *, batch_end_s: float = _BATCH_END_S
) -> None:
    """Stop a query, if possible between two batches, and wait for its tasks.

    Right after a batch no task runs, because Spark takes a moment to plan the next batch. A batch that does
    not end in time is cancelled. Its tasks end a moment later, remove their unfinished files, and log errors.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        The query; it may have ended.
    spark : pyspark.sql.SparkSession
        The session in which the query runs.
    batch_end_s : float
        The longest wait for the running batch, in seconds.
    """
    pause = threading.Event()
    last = _last_batch(query)
    deadline = monotonic_s() + batch_end_s
    while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == last:
        if monotonic_s() > deadline:
            _LOG.warning(
                "the running micro-batch did not end within %.0f s and is cancelled; the next start runs it "
                "again [query=%s]",
                batch_end_s,
                query.name or query.id,
            )
            break
        pause.wait(_POLL_S)
    query.stop()
    deadline = monotonic_s() + _TASKS_END_S
    while has_running_tasks(spark, str(query.runId)) and monotonic_s() < deadline:
        pause.wait(2 * _POLL_S)


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return None if progress is None else progress.batchId
