"""`register`: make Penstock's parts known to a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.spark_ext.market_source import MarketDataSource
from penstock.spark_ext.metrics import MetricsFile

__all__ = ["register"]


def register(spark: SparkSession, *, metrics_file: str | None = None) -> None:
    """Register Penstock's data sources with `spark` and, if asked, write metrics to a file.

    `update_queue` works without it; ``spark.readStream.format("market")`` does not.

    Parameters
    ----------
    spark : SparkSession
        The session; registering twice is harmless.
    metrics_file : str, optional
        A file to which the metrics of every micro-batch of the session's queries are appended, one
        JSON object a line (see `penstock.metrics`). Each call with a file adds one.
    """
    spark.dataSource.register(MarketDataSource)
    if metrics_file is not None:
        spark.streams.addListener(MetricsFile(metrics_file))
