"""Metrics for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock._extras import need_extra
from penstock.monitoring.batch import OperatorBatch
from penstock.monitoring.measures import BOUNDS_S, DISTRIBUTIONS, MEASURES, labels_of

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

__all__ = ["OpenTelemetryExporter", "otlp_provider"]

_SAMPLE_US = 10_000
"""A micro-batch records one percentile of staleness for each such span of its time."""
_MAX_SAMPLES = 1_000


class OpenTelemetryExporter:
    """Records the metrics of micro-batches with instruments of a meter named ``penstock``.

    OpenTelemetry's histograms count observations. So staleness is recorded as evenly spaced percentiles: one
    per 10 ms of a micro-batch, at least one and at most a thousand.

    Parameters
    ----------
    provider : opentelemetry.metrics.MeterProvider
        The program's provider.
    """

    def __init__(self, provider: MeterProvider) -> None:
        from opentelemetry.metrics import get_meter

        from penstock._version import __version__

        meter = get_meter("penstock", __version__, meter_provider=provider)
        self._instruments: dict[str, Any] = {}
        for measure in MEASURES:
            make = meter.create_counter if measure.kind == "counter" else meter.create_gauge
            self._instruments[measure.name] = make(measure.name, unit=measure.unit, description=measure.text)
        for distribution in DISTRIBUTIONS:
            self._instruments[distribution.name] = meter.create_histogram(
                distribution.name,
                unit="s",
                description=distribution.text,
                explicit_bucket_boundaries_advisory=BOUNDS_S,
            )

    def add(self, batches: Iterable[OperatorBatch]) -> None:
        """Record the metrics of micro-batches, in order."""
        for batch in batches:
            query, operator = labels_of(batch)
            own = {"query": query, "operator": operator}
            for measure in MEASURES:
                instrument = self._instruments[measure.name]
                record = instrument.add if measure.kind == "counter" else instrument.set
                for values, value in measure.read(batch):
                    record(value, own | dict(zip(measure.labels, values, strict=True)))
            for distribution in DISTRIBUTIONS:
                instrument = self._instruments[distribution.name]
                for kind, staleness in distribution.read(batch):
                    count = min(max(round(1000 * batch.batch_ms / _SAMPLE_US), 1), _MAX_SAMPLES)
                    for value in staleness.sample_us(count):
                        instrument.record(value / 1e6, own | {"class": kind})


def otlp_provider() -> MeterProvider:
    """Return a provider that sends metrics by OTLP over HTTP; ``OTEL_*`` variables configure it."""
    need_extra("opentelemetry", "metrics for OpenTelemetry")
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
