"""The standing of a freshness promise after a micro-batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.operators.freshness.controller import MARGIN
from penstock.operators.scheduling.staleness import Staleness

__all__ = ["Standing"]

_MAX_FIXED_SHARE = MARGIN / 2
"""The greatest share of a limit for the fixed cost, because an update may just miss a micro-batch."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of one promise in one bucket, or in several buckets (`merge`).

    Attributes
    ----------
    limit_us : int
        The promised staleness.
    share : float
        The promised share of time and keys within the limit.
    staleness : Staleness
        The application staleness of the class in the micro-batch.
    late_us, time_us : float
        In the last seconds: the time during which keys were staler than the limit, and the total time. Both
        are summed over keys. This staleness includes the rest of the micro-batch after the operator's work,
        which is mostly time in the sink.
    needs : float or None
        The work of the class divided by the work that can be done in time; see `Decision.needs`. None if the
        fixed cost of a micro-batch alone is too long.
    fixed_us : float
        The fixed cost of a micro-batch.
    earlier_us : float
        The part of `late_us` that comes from earlier micro-batches.
    ended_us : int
        The end of the operator's work, up to which `staleness` is measured.
    """

    limit_us: int
    share: float
    staleness: Staleness
    late_us: float
    time_us: float
    needs: float | None
    fixed_us: float
    earlier_us: float = 0.0
    ended_us: int = 0

    @property
    def is_kept(self) -> bool:
        """Return whether the promise holds."""
        return self.late_us <= (1.0 - self.share) * self.time_us

    @property
    def breaks_us(self) -> float:
        """The time at which the promise breaks, unless the micro-batch is committed earlier; can be infinite.

        Until the commit, the staleness of all keys grows as fast as time. If the commit comes x after the
        operator's end, every measured staleness has grown by x. So keys were late for at least the time in
        which their measured staleness exceeded the limit minus x.
        """
        if self.time_us == 0.0:  # no key of the class
            return math.inf
        spare_us = (1.0 - self.share) * self.time_us - self.earlier_us
        if spare_us < 0.0:
            return self.ended_us
        exceeded_us = self.staleness.exceeded_us(spare_us)
        return math.inf if exceeded_us is None else self.ended_us + max(self.limit_us - exceeded_us, 0.0)

    def advise(self) -> str:
        """Return advice on how to keep the promise; empty if the promise can hold."""
        if self.needs is None:
            fixed, limit = self.fixed_us / 1000, self.limit_us / 1000
            return (
                f"a micro-batch's fixed {fixed:.0f} ms are too long for {limit:g} ms: they must be below "
                f"{_MAX_FIXED_SHARE * limit:g} ms; promise more time"
            )
        if self.needs <= 1.0:
            return ""
        return f"{self.needs:.1f} times the cores, or a cost of a tuple or number of keys this much smaller"

    def summary(self) -> dict[str, Any]:
        """Return the standing for users."""
        percentile = f"p{self.share * 100:g}"
        known = self.staleness.summary()
        within = 1.0 - self.late_us / self.time_us if self.time_us else 1.0
        return {
            "promised_ms": self.limit_us / 1000,
            "staleness_ms": {percentile: round(self.staleness.percentile_ms(self.share), 3), **known},
            "within": round(within, 4),
            "kept": self.is_kept,
            "needs": None if self.needs is None else round(self.needs, 3),
            "advice": self.advise(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for `from_json`."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {**fields, "staleness": self.staleness.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Standing:
        """Restore a standing from the output of `to_json`."""
        return Standing(**{**value, "staleness": Staleness.from_json(value["staleness"])})

    @staticmethod
    def merge(parts: Iterable[Standing]) -> Standing:
        """Merge the standings of one promise in several buckets (at least one)."""
        parts = list(parts)
        needs = [part.needs for part in parts]
        return Standing(
            parts[0].limit_us,
            parts[0].share,
            Staleness.merge(part.staleness for part in parts),
            sum(part.late_us for part in parts),
            sum(part.time_us for part in parts),
            None if None in needs else max(need for need in needs if need is not None),
            max(part.fixed_us for part in parts),
            sum(part.earlier_us for part in parts),
            min(part.ended_us for part in parts),
        )
