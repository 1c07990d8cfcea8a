"""Listeners of Spark that get the metrics of every micro-batch."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.conf.arguments import check_keywords
from penstock.monitoring.batch import OperatorBatch
from penstock.spark_ext.api.metrics import operator_batches

__all__ = ["BatchListener", "MetricsListener", "append_to_file"]

_LOGGER = logging.getLogger(__name__)

Receiver = Callable[[list[OperatorBatch]], object]


class BatchListener(StreamingQueryListener):
    """Calls a function with the metrics of each micro-batch that has metrics.

    Spark calls listeners in a separate thread, some time after each micro-batch has ended, in the order of
    the micro-batches.

    Parameters
    ----------
    receive : callable
        Takes the metrics of the operators of one micro-batch.
    query : str, optional
        The name of the query or graph to listen to; by default all queries of the session.
    """

    def __init__(self, receive: Receiver, query: str | None = None) -> None:
        self._receive = receive
        self._query = query
        self._has_failed = False
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._one_ended = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember a run, so that `wait` waits for its batches.

        Spark calls this before ``start()`` returns.
        """
        self._started.add(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Pass on the batch's metrics."""
        # The queries of a graph have its name, or a name that begins with its name and a dot.
        if self._query is not None and not f"{event.progress.name}.".startswith(f"{self._query}."):
            return
        batches = operator_batches(event.progress)
        if not batches:
            return
        try:
            self._receive(batches)
        except Exception:  # what users' code raises; Spark would not show it
            level = logging.DEBUG if self._has_failed else logging.WARNING
            _LOGGER.log(level, "a listener could not take metrics", exc_info=True)
            self._has_failed = True

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing for a query without data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """End the calls of `wait` for this run."""
        with self._one_ended:
            self._ended.add(str(event.runId))
            self._one_ended.notify_all()

    def wait(self, run: str, timeout_s: float) -> bool:
        """Wait until Spark has reported all batches of a run that ended; return False at a time-out.

        The method returns True at once for a run whose start this listener has not seen. Spark notifies
        listeners some time after a batch has ended, and possibly after the query has ended.
        """
        if run not in self._started:
            return True
        with self._one_ended:
            return self._one_ended.wait_for(lambda: run in self._ended, timeout_s)


@check_keywords
class MetricsListener(BatchListener):
    """A listener of Spark that calls a function with the metrics of each micro-batch.

    Add it with ``spark.streams.addListener``. Spark calls listeners in a separate thread, some time after a
    micro-batch has ended. The first error of the function is logged as a warning. Errors
    do not reach the query.

    Parameters
    ----------
    receive : callable
        Takes the entries of one micro-batch, one for each operator, in the form of `penstock.metrics`.
    query : str, optional
        The name of the query or graph to listen to; by default all queries of the session.

    Examples
    --------
    >>> spark.streams.addListener(penstock.MetricsListener(print))  # doctest: +SKIP
    """

    def __init__(self, receive: Callable[[list[dict[str, Any]]], object], query: str | None = None) -> None:
        super().__init__(lambda batches: receive([batch.entry() for batch in batches]), query)


def append_to_file(path: str) -> Receiver:
    """Return a receiver that appends metrics to a file, one JSON object on each line.

    If the file does not exist, it is created, and only the user can read it.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)

    def append(batches: list[OperatorBatch]) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(batch.entry()) + "\n" for batch in batches)

    return append
