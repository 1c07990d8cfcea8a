"""The metrics of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.operators.freshness.standing import Standing
from penstock.operators.scheduling.staleness import Staleness

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchMetrics"]


@dataclass(slots=True)
class BatchMetrics:
    """The metrics of one bucket in one micro-batch, or of several buckets (`merge`).

    For an update queue, ``rows_in == conflated + late + duplicates + dropped + emitted + growth of
    waiting_keys``. Window operators count tuples in `rows_in`, `late` and `dropped`. They count windows in
    `conflated` (replaced by a newer window of their key), `emitted`, `rows_out` and `budget_used_rows`.
    Staleness is measured since the bucket's previous batch.

    Attributes
    ----------
    rows_in, conflated, late, duplicates, dropped, emitted : int
        `rows_in` counts the tuples that arrived. `conflated` counts tuples that a newer tuple replaced.
        `late` counts tuples that are older than an emitted tuple. `duplicates` counts tuples of a union whose
        key and time equal those of another tuple. `dropped` counts tuples with a null. `emitted` counts the
        served tuples; with ``apply`` these are the tuples that ``apply`` gets.
    rows_out : int
        The number of output rows. It differs from `emitted` if ``apply`` filters or multiplies rows.
    waiting_keys : int
        The number of keys that wait after the batch; under append semantics, the number of waiting tuples.
    keys : int
        The number of keys ever seen that have not left; for a join, the number of keys with state.
    expired : int
        Keys that left the state because they had no update for their time to live.
    held, freed : int
        For transactions in batches, `held` is the number of tuples of a batch that is not complete. For a
        join, `held` counts tuples that are kept for future matches, and `freed` counts tuples that are
        removed. No tuple waits in a join, so ``rows_in == late + duplicates + dropped + freed + growth of
        held``, and `emitted` counts matches.
    committed, rejected : int
        For transactions: ``rows_in == committed + rejected + growth of held``.
    rejections : dict of str to int
        The number of rejected transactions, by the text of the reason.
    requests : int
        For transactions: the number of answered requests of clients.
    forwarded : int
        Transactions that the coordinator ran, because they need several buckets.
    budget_used_rows : int
        Served tuples that are charged to the budget. This number differs from `emitted` only for eager
        windows, because some served windows are not complete yet.
    budget_rows : int
        The number of tuples that the controller of a freshness contract allowed the operator to serve; 0 if
        there is no contract.
    interval_ms : float
        The trigger interval that the controller of a freshness contract chose; 0 if there is no contract, or
        if keys wait and the next micro-batch starts at once. For several buckets, the shortest interval.
    freshness : dict of str to Standing
        The standing of each promise of a freshness contract, by class of key.
    budget_used_ms : float
        The time that serving took, summed over buckets.
    cost_us : float or None
        The cost of a tuple that the scheduler used; None while unknown.
    append_buckets : int
        Buckets whose queue has append semantics after the batch. The other `buckets` have update semantics.
    switches : int
        Number of switches of semantics in this batch, in either direction.
    duration_ms : dict of str to float
        Time by phase (load, enqueue, serve, commit), summed over buckets.
    state_bytes_written, state_bytes : int
        The bytes of state that this batch committed, and the memory of the working copies.
    loads, catch_ups, hits : int
        The numbers of buckets whose state was read whole (`loads`), was cached and brought up to date by
        deltas (`catch_ups`), and was cached and current (`hits`).
    """

    rows_in: int = 0
    conflated: int = 0
    late: int = 0
    duplicates: int = 0
    dropped: int = 0
    emitted: int = 0
    rows_out: int = 0
    waiting_keys: int = 0
    keys: int = 0
    expired: int = 0
    held: int = 0
    freed: int = 0
    committed: int = 0
    rejected: int = 0
    rejections: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    forwarded: int = 0
    budget_used_rows: int = 0
    budget_rows: int = 0
    interval_ms: float = 0.0
    budget_used_ms: float = 0.0
    cost_us: float | None = None
    append_buckets: int = 0
    switches: int = 0
    queue_staleness: Staleness = field(default_factory=Staleness)
    application_staleness: Staleness = field(default_factory=Staleness)
    freshness: dict[str, Standing] = field(default_factory=dict)
    duration_ms: dict[str, float] = field(default_factory=dict)
    state_bytes_written: int = 0
    state_bytes: int = 0
    loads: int = 0
    catch_ups: int = 0
    hits: int = 0
    buckets: int = 1

    def count_outcomes(self, reasons: pa.Array[Any]) -> None:
        """Count transactions by their reason of rejection, which is null if a transaction was committed."""
        self.committed += reasons.null_count
        if reasons.null_count < len(reasons):
            for one in reasons.drop_null().value_counts().to_pylist():
                self.rejections[one["values"]] = self.rejections.get(one["values"], 0) + one["counts"]

    @staticmethod
    def merge(parts: Sequence[BatchMetrics]) -> BatchMetrics:
        """Merge the metrics of several buckets of one batch."""
        merged = BatchMetrics(buckets=0)
        for name in _SUMMED:
            setattr(merged, name, sum(getattr(part, name) for part in parts))
        costs = [(part.cost_us, max(part.emitted, 1)) for part in parts if part.cost_us is not None]
        if costs:
            tuples = sum(weight for _, weight in costs)
            merged.cost_us = sum(cost * weight for cost, weight in costs) / tuples
        merged.interval_ms = min((part.interval_ms for part in parts), default=0.0)
        merged.queue_staleness = Staleness.merge(part.queue_staleness for part in parts)
        merged.application_staleness = Staleness.merge(part.application_staleness for part in parts)
        for name in dict.fromkeys(name for part in parts for name in part.freshness):
            standings = [part.freshness[name] for part in parts if name in part.freshness]
            merged.freshness[name] = Standing.merge(standings)
        for part in parts:
            for phase, duration in part.duration_ms.items():
                merged.duration_ms[phase] = merged.duration_ms.get(phase, 0.0) + duration
            for why, count in part.rejections.items():
                merged.rejections[why] = merged.rejections.get(why, 0) + count
        return merged

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values, for `from_json`."""
        plain = (*_SUMMED, "interval_ms", "cost_us", "duration_ms", "rejections")
        fields = {name: getattr(self, name) for name in plain}
        fields["queue_staleness"] = self.queue_staleness.to_json()
        fields["application_staleness"] = self.application_staleness.to_json()
        fields["freshness"] = {name: one.to_json() for name, one in self.freshness.items()}
        return fields

    @staticmethod
    def from_json(value: dict[str, Any]) -> BatchMetrics:
        """Restore metrics from the output of `to_json`."""
        fields = dict(value)
        for name in ("queue_staleness", "application_staleness"):
            fields[name] = Staleness.from_json(fields[name])
        standings = fields["freshness"].items()
        fields["freshness"] = {name: Standing.from_json(one) for name, one in standings}
        return BatchMetrics(**fields)

    def summary(self) -> dict[str, Any]:
        """Return the metrics for users, with staleness as average, p95 and maximum in ms."""
        fields = asdict(self)
        del fields["queue_staleness"], fields["application_staleness"]
        if self.cost_us is not None:
            fields["cost_us"] = round(self.cost_us, 3)
        fields["budget_used_ms"] = round(self.budget_used_ms, 3)
        fields["duration_ms"] = {name: round(ms, 3) for name, ms in self.duration_ms.items()}
        del fields["freshness"]
        fields["classes"] = {name: one.summary() for name, one in self.freshness.items()}
        fields["queue_staleness_ms"] = self.queue_staleness.summary()
        fields["application_staleness_ms"] = self.application_staleness.summary()
        return fields


_SUMMED = (
    "rows_in",
    "conflated",
    "late",
    "duplicates",
    "dropped",
    "emitted",
    "rows_out",
    "waiting_keys",
    "keys",
    "expired",
    "held",
    "freed",
    "committed",
    "rejected",
    "requests",
    "forwarded",
    "budget_used_rows",
    "budget_rows",
    "budget_used_ms",
    "append_buckets",
    "switches",
    "state_bytes_written",
    "state_bytes",
    "loads",
    "catch_ups",
    "hits",
    "buckets",
)
