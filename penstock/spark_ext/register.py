"""`register`: make Penstock's parts known to a Spark session."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from penstock.spark_ext.market_source import MarketDataSource
from penstock.spark_ext.metrics import MetricsFile
from penstock.spark_ext.p_stream_source import p_stream_source

__all__ = ["register"]


_files: WeakKeyDictionary[SparkSession, set[tuple[str, str | None]]] = WeakKeyDictionary()


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
        JSON object a line (see `penstock.metrics`). Calls with other files add them.
    metrics_query : str, optional
        The name of the query whose metrics the file gets; by default those of all.
    """
    spark.dataSource.register(MarketDataSource)
    spark.dataSource.register(p_stream_source(spark.sparkContext.defaultParallelism))
    known = _files.setdefault(spark, set())
    if metrics_file is not None and (metrics_file, metrics_query) not in known:
        known.add((metrics_file, metrics_query))
        spark.streams.addListener(MetricsFile(metrics_file, metrics_query))
