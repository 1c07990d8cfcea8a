"""The measures that the exporters for Prometheus and OpenTelemetry publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from penstock.monitoring.batch import OperatorBatch
from penstock.operators.freshness.contract import ALL_KEYS
from penstock.operators.scheduling.staleness import Staleness

__all__ = ["BOUNDS_S", "DISTRIBUTIONS", "MEASURES", "DistributionMeasure", "Measure", "labels_of"]

Reading: TypeAlias = Iterator[tuple[tuple[str, ...], float]]
"""The readings of a measure in one micro-batch. Each has the values of `Measure.labels`, and a number."""

BOUNDS_S: Final = tuple(
    float(f"{step}e{exponent}") for exponent in range(-3, 4) for step in (1, 2.5, 5)
)  # fmt: skip
"""The upper bounds of histograms' buckets, in seconds: from a millisecond to 83 minutes."""

_FATES: Final = ("conflated", "late", "duplicates", "dropped", "emitted")


def labels_of(batch: OperatorBatch) -> tuple[str, str]:
    """Return the values of the labels ``query`` and ``operator``, which all measures have."""
    return batch.query or batch.query_id, batch.operator


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that each exporter publishes for each operator.

    Parameters
    ----------
    name : str
        The name for OpenTelemetry. The name for Prometheus has underscores for dots, and the unit as a
        suffix.
    kind : str
        ``counter`` if readings are added up; ``gauge`` if only the newest reading counts.
    text : str
        The description for users.
    read : callable
        A function that returns the readings of one micro-batch: values of `labels`, and a number.
    unit : str
        The unit: ``s`` (seconds), ``By`` (bytes) or empty.
    labels : tuple of str
        The names of the labels in addition to ``query`` and ``operator``.
    """

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    read: Callable[[OperatorBatch], Reading]
    unit: Literal["", "s", "By"] = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DistributionMeasure:
    """A histogram of staleness, in seconds, that each exporter publishes for each operator.

    Parameters
    ----------
    name, text : str
        See `Measure`.
    read : callable
        A function that returns the staleness of one micro-batch for each class of keys.
    """

    name: str
    text: str
    read: Callable[[OperatorBatch], Iterator[tuple[str, Staleness]]]


def _field(name: str) -> Callable[[OperatorBatch], Reading]:
    def read(batch: OperatorBatch) -> Reading:
        yield (), float(getattr(batch.metrics, name))

    return read


def _fields(*names: str) -> Callable[[OperatorBatch], Reading]:
    def read(batch: OperatorBatch) -> Reading:
        for name in names:
            yield (name,), float(getattr(batch.metrics, name))

    return read


def _transactions(batch: OperatorBatch) -> Reading:
    metrics = batch.metrics
    if metrics.committed or metrics.rejected:
        yield from _fields("committed", "rejected")(batch)


def _rejections(batch: OperatorBatch) -> Reading:
    for why, count in batch.metrics.rejections.items():
        yield (why,), float(count)


def _promised(batch: OperatorBatch) -> Reading:
    for name, standing in batch.metrics.freshness.items():
        yield (name,), standing.limit_us / 1e6


def _kept(batch: OperatorBatch) -> Reading:
    for name, standing in batch.metrics.freshness.items():
        yield (name,), float(standing.is_kept)


def _within(batch: OperatorBatch) -> Reading:
    for name, standing in batch.metrics.freshness.items():
        yield (name,), 1.0 - standing.late_us / standing.time_us if standing.time_us else 1.0


def _spark_time(batch: OperatorBatch) -> Reading:
    for phase, ms in batch.spark_ms.items():
        if phase != "triggerExecution":  # it contains all other phases
            yield (phase,), ms / 1000


def _operator_time(batch: OperatorBatch) -> Reading:
    for phase, ms in batch.metrics.duration_ms.items():
        yield (phase,), ms / 1000


def _end(batch: OperatorBatch) -> Reading:
    yield (), datetime.fromisoformat(batch.timestamp).timestamp() + batch.batch_ms / 1000


def _one(_batch: OperatorBatch) -> Reading:
    yield (), 1.0


def _bad_records(batch: OperatorBatch) -> Reading:
    yield (), float(batch.bad_records)


def _batch_time(batch: OperatorBatch) -> Reading:
    yield (), batch.batch_ms / 1000


MEASURES: Final = (
    Measure("penstock.rows.in", "counter", "Rows that reached the operator.", _field("rows_in")),
    Measure("penstock.rows", "counter", "Rows by their fate.", _fields(*_FATES), labels=("fate",)),
    Measure("penstock.rows.out", "counter", "Output rows.", _field("rows_out")),
    Measure("penstock.bad_records", "counter", "Records that could not be read.", _bad_records),
    Measure("penstock.transactions", "counter", "Transactions.", _transactions, labels=("outcome",)),
    Measure("penstock.rejections", "counter", "Rejected transactions by reason.", _rejections,
            labels=("reason",)),
    Measure("penstock.keys.expired", "counter", "Keys whose life has ended.", _field("expired")),
    Measure("penstock.keys", "gauge", "Keys in the state.", _field("keys")),
    Measure("penstock.keys.waiting", "gauge", "Keys that wait to be served.", _field("waiting_keys")),
    Measure("penstock.rows.held", "gauge", "Rows kept for a join or an incomplete batch.", _field("held")),
    Measure("penstock.freshness.promised", "gauge", "The promised staleness.", _promised, "s", ("class",)),
    Measure("penstock.freshness.within", "gauge", "Share of time and keys within the promise.", _within,
            labels=("class",)),
    Measure("penstock.freshness.kept", "gauge", "1 if the promise is kept, else 0.", _kept,
            labels=("class",)),
    Measure("penstock.batches", "counter", "Micro-batches.", _one),
    Measure("penstock.batch.duration", "counter", "Time of micro-batches.", _batch_time, "s"),
    Measure("penstock.batch.phase", "counter", "Time of micro-batches by phase of Spark.", _spark_time, "s",
            ("phase",)),
    Measure("penstock.operator.phase", "counter", "Time of the operator by phase, summed over buckets.",
            _operator_time, "s", ("phase",)),
    Measure("penstock.batch.end", "gauge", "When the newest micro-batch ended, since 1970.", _end, "s"),
    Measure("penstock.state.memory", "gauge", "Memory of the state's working copies.",
            _field("state_bytes"), "By"),
    Measure("penstock.state.written", "counter", "Bytes of state written.",
            _field("state_bytes_written"), "By"),
    Measure("penstock.state.buckets", "counter",
            "Buckets by how their state was found: read whole, caught up, or current (hits).",
            _fields("loads", "catch_ups", "hits"), labels=("found",)),
)  # fmt: skip


def _queue_staleness(batch: OperatorBatch) -> Iterator[tuple[str, Staleness]]:
    yield "all", batch.metrics.queue_staleness


def _application_staleness(batch: OperatorBatch) -> Iterator[tuple[str, Staleness]]:
    yield "all", batch.metrics.application_staleness
    for name, standing in batch.metrics.freshness.items():
        if name != ALL_KEYS:
            yield name, standing.staleness


DISTRIBUTIONS: Final = (
    DistributionMeasure(
        "penstock.staleness.queue", "Staleness until rows are served, over time and keys.", _queue_staleness
    ),
    DistributionMeasure(
        "penstock.staleness.application",
        "Staleness until results are emitted, over time and keys.",
        _application_staleness,
    ),
)
