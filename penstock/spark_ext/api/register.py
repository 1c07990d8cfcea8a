"""`register`: make Penstock's parts known to a Spark session."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import product
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock._clock import monotonic_s
from penstock.spark_ext.api.metrics import MetricsFile
from penstock.spark_ext.border.connection import default_parallelism
from penstock.spark_ext.sources.market import MarketDataSource
from penstock.spark_ext.sources.p_stream_source import p_stream_source
from penstock.spark_ext.worker.python_workers import prepare_workers
from penstock.spark_ext.worker.restart import check_starts

__all__ = ["register", "remove_metrics", "wait_for_metrics"]

_LOGGER = logging.getLogger(__name__)
_LAST_LINE_S = 10.0
"""The wait for a query's last metrics after its end."""

_files: WeakKeyDictionary[SparkSession, dict[tuple[str, str | None], MetricsFile]] = WeakKeyDictionary()


def register(
    spark: SparkSession, *, metrics_file: str | None = None, metrics_query: str | None = None
) -> None:
    """Register Penstock's data sources with `spark` and, if asked, write metrics to a file.

    `update_queue` works without it; the formats ``pstream`` and ``market`` do not.

    Parameters
    ----------
    spark : SparkSession
        The session; registering twice is harmless.
    metrics_file : str, optional
        A file to which the metrics of every micro-batch of the session's queries are appended, one
        JSON object a line (see `penstock.metrics`). Further calls add further files.
    metrics_query : str, optional
        The name of the query whose metrics the file gets; by default all queries.

    Raises
    ------
    InvalidUsageError
        If workers on a cluster run a Python without Penstock's dependencies.
    """
    prepare_workers(spark)
    check_starts(spark)
    spark.dataSource.register(MarketDataSource)
    spark.dataSource.register(p_stream_source(default_parallelism(spark)))
    files = _files.setdefault(spark, {})
    if metrics_file is not None and (metrics_file, metrics_query) not in files:
        file = files[metrics_file, metrics_query] = MetricsFile(metrics_file, metrics_query)
        spark.streams.addListener(file)


def remove_metrics(spark: SparkSession) -> None:
    """Take the metrics files of a session from its queries; called before the session stops.

    The client of Spark Connect would wait for the reports of a server that it has left.
    """
    for file in _files.pop(spark, {}).values():
        spark.streams.removeListener(file)


def wait_for_metrics(queries: Iterable[StreamingQuery]) -> None:
    """Wait until the metrics files are complete for queries that have ended.

    Spark reports batches asynchronously; if it has not reported within ten seconds, this is logged.
    """
    deadline = monotonic_s() + _LAST_LINE_S
    files = [known for of_session in _files.values() for known in of_session.items()]
    for query, ((path, _), file) in product(queries, files):
        if not file.wait(query.runId, max(0.0, deadline - monotonic_s())):
            _LOGGER.warning("%s: the last metrics may be missing: Spark has not told of them yet", path)
