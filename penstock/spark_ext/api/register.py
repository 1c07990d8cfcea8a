"""`register`: make Penstock's parts known to a Spark session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock._clock import monotonic_s
from penstock.conf.arguments import check_keywords
from penstock.monitoring.opentelemetry import OpenTelemetryExporter, otlp_provider
from penstock.monitoring.prometheus import PrometheusServer
from penstock.spark_ext.border.connection import default_parallelism
from penstock.spark_ext.metrics_listener import BatchListener, Receiver, append_to_file
from penstock.spark_ext.short_errors import shorten_errors
from penstock.spark_ext.sources.market import MarketDataSource
from penstock.spark_ext.sources.p_stream_source import p_stream_source
from penstock.spark_ext.sources.wake import register_wake
from penstock.spark_ext.worker.python_workers import prepare_workers
from penstock.spark_ext.worker.restart import check_starts
from penstock.units import parse_address

__all__ = ["listen", "register", "remove_metrics", "wait_for_metrics"]

_LOGGER = logging.getLogger(__name__)
_LAST_LINE_S = 10.0
"""The longest wait for a query's last metrics after its end."""


@dataclass(frozen=True, slots=True)
class _Destination:
    """A destination of a session's metrics: its listener, and the function that ends it."""

    listener: BatchListener
    close: Callable[[], object] | None


_destinations: WeakKeyDictionary[SparkSession, dict[tuple[str, str | None], _Destination]] = (
    WeakKeyDictionary()
)


@check_keywords
def register(
    spark: SparkSession,
    *,
    metrics_file: str | None = None,
    metrics_query: str | None = None,
    prometheus: str | int | None = None,
    opentelemetry: bool | Any = False,
) -> None:
    """Register Penstock's data sources with `spark` and, if asked, write or offer metrics.

    The formats ``pstream`` and ``market`` need this call; `update_queue` does not. Registering twice is
    harmless. Metrics are written and offered until the session is stopped.

    Parameters
    ----------
    spark : SparkSession
        The session.
    metrics_file : str, optional
        A file to which the metrics of every micro-batch of the session's queries are appended, one JSON
        object on each line (see `penstock.metrics`). Further calls add further files.
    metrics_query : str, optional
        The name of the query or graph whose metrics are written and offered; by default all queries.
    prometheus : str or int, optional
        Offer metrics to Prometheus at ``http://HOST:PORT/metrics``: ``HOST:PORT``, or a port of 127.0.0.1.
        Anyone who can reach the address can read the metrics. Metrics name queries and operators, and hold no
        rows.
    opentelemetry : bool or MeterProvider
        Record metrics with OpenTelemetry: with the given provider, or if True, with a provider that sends
        OTLP over HTTP, configured by the variables ``OTEL_EXPORTER_OTLP_*`` and
        ``OTEL_METRIC_EXPORT_INTERVAL``.

    Raises
    ------
    InvalidUsageError
        If workers on a cluster run a Python without Penstock's dependencies, an extra is missing, or the
        address cannot be used.
    """
    prepare_workers(spark)
    check_starts(spark)
    shorten_errors(spark)
    spark.dataSource.register(MarketDataSource)
    register_wake(spark)
    spark.dataSource.register(p_stream_source(default_parallelism(spark)))
    if metrics_file is not None:
        path = metrics_file
        _add(spark, f"the file {path}", metrics_query, lambda: (append_to_file(path), None))
    if prometheus is not None:
        host, port = parse_address(prometheus)
        _add(spark, f"Prometheus at {host}:{port}", metrics_query, lambda: _to_prometheus(host, port))
    if opentelemetry is not False:
        _add(spark, "OpenTelemetry", metrics_query, lambda: _to_opentelemetry(opentelemetry))


def _to_prometheus(host: str, port: int) -> tuple[Receiver, Callable[[], object]]:
    server = PrometheusServer(host, port)
    _LOGGER.info("metrics are offered to Prometheus [url=%s]", server.url)
    return server.exporter.add, server.close


def _to_opentelemetry(provider: Any) -> tuple[Receiver, Callable[[], object]]:
    if provider is not True:
        return OpenTelemetryExporter(provider).add, provider.force_flush
    ours: Any = otlp_provider()
    return OpenTelemetryExporter(ours).add, ours.shutdown


def _add(
    spark: SparkSession,
    name: str,
    query: str | None,
    make: Callable[[], tuple[Receiver, Callable[[], object] | None]],
) -> None:
    """Send metrics to a new destination, unless the session has a destination with that name.

    `make` returns the receiver, and a function to call when the session stops.
    """
    known = _destinations.setdefault(spark, {})
    if (name, query) not in known:
        receive, close = make()
        listener = BatchListener(receive, query)
        spark.streams.addListener(listener)
        known[name, query] = _Destination(listener, close)


def listen(spark: SparkSession, name: str, receive: Receiver, query: str | None = None) -> None:
    """Pass the metrics of a session's queries to a function, until the session stops.

    Parameters
    ----------
    name : str
        The name of the destination in messages. If the session already has a destination with this name,
        nothing is added.
    query : str, optional
        The name of the query or graph to listen to; by default all queries.
    """
    _add(spark, name, query, lambda: (receive, None))


def remove_metrics(spark: SparkSession, *, stopped: bool = False) -> None:
    """End the destinations of a session's metrics.

    Penstock calls this function after a session has stopped (`stopped` is true). For Spark Connect it also
    calls this function before the session stops, because the client would otherwise wait for reports from a
    server that it has left.
    """
    for destination in _destinations.pop(spark, {}).values():
        if not stopped:
            spark.streams.removeListener(destination.listener)
        if destination.close is not None:
            destination.close()


def wait_for_metrics(queries: Iterable[StreamingQuery]) -> None:
    """Wait until all metrics of queries that have ended are written.

    Spark reports batches asynchronously. If a report is missing after ten seconds, the function logs that.
    """
    deadline = monotonic_s() + _LAST_LINE_S
    known = [entry for of_session in _destinations.values() for entry in of_session.items()]
    for query, ((name, _), destination) in product(queries, known):
        if not destination.listener.wait(query.runId, max(0.0, deadline - monotonic_s())):
            _LOGGER.warning("%s: the last metrics may be missing: Spark has not reported them yet", name)
