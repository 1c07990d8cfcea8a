"""Stopping a streaming query between two of its micro-batches."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock._clock import monotonic_s
from penstock.spark_ext.border.connection import has_running_tasks

__all__ = ["stop_between_batches"]

_POLL_S = 0.01
_BATCH_END_S = 10.0
"""The longest wait for the running batch."""
_TASKS_END_S = 10.0
"""The longest wait for the tasks of a cancelled batch."""


def stop_between_batches(query: StreamingQuery, spark: SparkSession) -> None:
    """Stop a query, between two batches if possible, and wait for its tasks.

    Right after a batch no task runs, because Spark takes a moment to plan the next batch. If the query is
    stopped during a batch, Spark cancels the batch's tasks. The tasks end a moment later, remove their
    unfinished files, and log errors.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        The query; it may have ended.
    spark : pyspark.sql.SparkSession
        The session in which the query runs.
    """
    pause = threading.Event()
    last = _last_batch(query)
    deadline = monotonic_s() + _BATCH_END_S
    while query.isActive and query.status["isTriggerActive"] and monotonic_s() < deadline:
        if _last_batch(query) != last:
            break
        pause.wait(_POLL_S)
    query.stop()
    deadline = monotonic_s() + _TASKS_END_S
    while has_running_tasks(spark, str(query.runId)) and monotonic_s() < deadline:
        pause.wait(2 * _POLL_S)


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return None if progress is None else progress.batchId
