"""Report queries that fail while a program follows another query."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark_ext.api.failure import failure_of
from penstock.spark_ext.border.connection import Py4JError
from penstock.spark_ext.graph.handle import RunningGraph

__all__ = ["report_failures"]

_POLL_S: Final = 1.0
_LOST: Final = (Py4JError, PySparkException, ConnectionError)
"""The errors of Spark's driver, or a server of Spark Connect, that does not answer."""


@contextmanager
def report_failures(followed: Sequence[StreamingQuery] | RunningGraph) -> Iterator[None]:
    """Print a line for each query that runs at the start of the block, and fails during the block.

    Parameters
    ----------
    followed : sequence of StreamingQuery, or RunningGraph
        The queries or the graph whose failures the caller reports.
    """
    others: list[StreamingQuery] = []
    # Without Spark's driver, all queries have ended, and the caller reports why.
    with suppress(*_LOST):
        active = SparkSession.active().streams.active
        # A graph may start its next query at any moment, so its queries are listed last.
        queries = followed.queries.values() if isinstance(followed, RunningGraph) else followed
        own = {query.id for query in queries}
        others = [query for query in active if query.id not in own]
    at_end = threading.Event()

    def watch() -> None:
        is_last = False
        with suppress(*_LOST):
            while others and not is_last:
                is_last = at_end.wait(_POLL_S)
                for query in [one for one in others if not one.isActive]:
                    others.remove(query)
                    _report(query)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        at_end.set()
        watcher.join()


def _report(query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        name = query.name or str(query.id)
        print(failure_of(error, "another query failed", query=name), file=sys.stderr, flush=True)
