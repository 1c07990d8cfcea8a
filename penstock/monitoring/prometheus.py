"""Metrics for Prometheus."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError
from penstock.monitoring.batch import OperatorBatch
from penstock.monitoring.measures import BOUNDS_S, DISTRIBUTIONS, MEASURES, Measure, labels_of

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

__all__ = ["PrometheusExporter", "PrometheusServer"]

_SUFFIXES = {"": "", "s": "_seconds", "By": "_bytes"}


class PrometheusExporter:
    """A collector for a registry of ``prometheus_client``, fed with micro-batches by `add`.

    The counters start at zero at each start, as Prometheus expects. All methods may be called from any
    thread.

    Histograms of staleness do not count observations. They count key-seconds: in every second, each key adds
    one second. A bucket holds the key-seconds during which keys were at most as stale as the bucket's bound.
    The sum divided by the count is the average staleness.
    """

    def __init__(self) -> None:
        need_extra("prometheus", "metrics for Prometheus")
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        self._counts: dict[str, dict[tuple[str, ...], list[float]]] = defaultdict(dict)

    def add(self, batches: Iterable[OperatorBatch]) -> None:
        """Add the metrics of micro-batches, in order."""
        with self._lock:
            for batch in batches:
                self._add(batch)

    def _add(self, batch: OperatorBatch) -> None:
        own = labels_of(batch)
        for measure in MEASURES:
            values = self._values[measure.name]
            for labels, value in measure.read(batch):
                before = values.get(own + labels, 0.0) if measure.kind == "counter" else 0.0
                values[own + labels] = before + value
        for distribution in DISTRIBUTIONS:
            counts = self._counts[distribution.name]
            for kind, staleness in distribution.read(batch):
                # The integral of staleness over time, the whole time, and the time below each bound.
                new = [staleness.area / 1e12, staleness.key_time / 1e6]
                new += [time / 1e6 for time in staleness.key_time_below_us([1e6 * s for s in BOUNDS_S])]
                old = counts.get((*own, kind), [0.0] * len(new))
                counts[*own, kind] = [a + b for a, b in zip(old, new, strict=True)]

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; ``prometheus_client`` calls it at each scrape."""
        from prometheus_client.core import HistogramMetricFamily

        with self._lock:
            for measure in MEASURES:
                yield self._family(measure)
            for distribution in DISTRIBUTIONS:
                name = f"{_name(distribution.name)}_seconds"
                family: HistogramMetricFamily = HistogramMetricFamily(
                    name, distribution.text, labels=("query", "operator", "class")
                )
                for labels, (area, whole, *below) in self._counts[distribution.name].items():
                    buckets = [(str(bound), time) for bound, time in zip(BOUNDS_S, below, strict=True)]
                    family.add_metric(labels, [*buckets, ("+Inf", whole)], area)
                yield family

    def _family(self, measure: Measure) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
        name = _name(measure.name) + _SUFFIXES[measure.unit]
        family = kind(name, measure.text, labels=("query", "operator", *measure.labels))
        for labels, value in self._values[measure.name].items():
            family.add_metric(labels, value)
        return family


def _name(name: str) -> str:
    return name.replace(".", "_")


class PrometheusServer:
    """An HTTP server with an exporter of its own, which Prometheus scrapes until `close`.

    Parameters
    ----------
    host : str
        The address to listen at.
    port : int
        The port; 0 chooses a free port.

    Raises
    ------
    InvalidUsageError
        If ``prometheus_client`` is not installed, or the address cannot be used.
    """

    def __init__(self, host: str, port: int) -> None:
        self.exporter = PrometheusExporter()
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self.exporter)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise InvalidUsageError(
                "cannot listen for Prometheus", address=f"{host}:{port}", reason=error.strerror,
                hint="choose another port",
            ) from error  # fmt: skip
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
