"""Serve a micro-batch under a freshness contract."""

from __future__ import annotations

import logging
import math
from typing import Any, Protocol

from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.freshness.controller import MARGIN, ControllerState, Decision, plan, update_controller
from penstock.operators.freshness.standing import Standing
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.serve import Budget
from penstock.operators.scheduling.staleness import Staleness

__all__ = ["ContractControl"]

_LOGGER = logging.getLogger(__name__)
_MIN_PATIENCE = 2.0
"""An adaptive queue conflates only if serving its tuples would take more triggers than this."""


class ControlledQueue(Protocol):
    """The queue interface that a contract needs."""

    controller: ControllerState | None
    given_cost_us: float | None

    def __len__(self) -> int:
        """Return the number of waiting tuples."""

    @property
    def waiting_by_promise(self) -> list[int]:
        """Number of waiting keys by class."""

    @property
    def staleness_by_class(self) -> list[Staleness]:
        """Application staleness by class in the last micro-batch; empty without classes."""


class ContractControl:
    """The `BudgetControl` of one bucket in one micro-batch.

    Create this object before arrivals enter the queue.

    Parameters
    ----------
    contract : FreshnessContract
        The contract.
    queue : ControlledQueue
        The bucket's queue, which keeps the controller's state.
    since_us : int, optional
        The arrival time of the oldest entering tuple, if known.
    place : str
        Names the bucket in the log; by default nothing is logged.
    """

    def __init__(
        self,
        contract: FreshnessContract,
        queue: ControlledQueue,
        *,
        since_us: int | None = None,
        place: str | None = None,
    ) -> None:
        self._contract, self._queue, self._since_us, self._place = contract, queue, since_us, place
        self._state = queue.controller or ControllerState()
        self._decision: Decision | None = None
        if queue.given_cost_us is None and self._state.limit and self._state.cycle_us:
            # The time between two services of the queue, for linecutting.
            queue.given_cost_us = self._state.cycle_us / self._state.limit

    @property
    def capacity(self) -> float | None:
        """The number of tuples that a trigger can serve; None before the first micro-batch."""
        return float(self._state.limit) if self._state.limit else None

    @property
    def patience(self) -> float:
        """The number of triggers in which the appended tuples must be served so that no promise breaks."""
        if not self._state.cycle_us:
            return math.inf
        return max(MARGIN * self._contract.tightest_us / self._state.cycle_us - 1.0, _MIN_PATIENCE)

    def plan(self, started_us: int) -> Budget:
        """See `BudgetControl.plan`."""
        waiting = self._queue.waiting_by_promise[: len(self._contract.promises)]
        self._state, decision = plan(self._contract, self._state, waiting, started_us, self._since_us)
        self._decision = decision
        if hasattr(self._queue, "urgent_us"):
            self._queue.urgent_us = decision.urgent_us
        return Budget(rows=decision.rows, duration_us=decision.duration_us)

    def account_batch(self, finished_us: int, serving_us: int, metrics: BatchMetrics) -> None:
        """See `BudgetControl.account_batch`."""
        before, decision = self._state, self._decision
        if decision is None:
            return
        parts = self._queue.staleness_by_class or [metrics.application_staleness]
        after = update_controller(
            self._contract, before, parts[: len(self._contract.promises)], finished_us,
            served=metrics.budget_used_rows, left=len(self._queue), serving_us=serving_us,
        )  # fmt: skip
        self._queue.controller = self._state = after
        metrics.budget_rows = decision.rows
        metrics.interval_ms = after.interval_us / 1000
        for number, promise in enumerate(self._contract.promises):
            one, needs = after.classes[number], decision.needs[number]
            standing = Standing(
                promise.limit_us, self._contract.share, parts[number], one.late_us, one.time_us,
                needs if math.isfinite(needs) else None, after.fit.fixed_us,
                before.classes[number].at(promise, finished_us).late_us, finished_us,
            )  # fmt: skip
            metrics.freshness[promise.name] = standing
            if self._place is not None and one.broken != before.classes[number].broken:
                self._log(promise.name, standing, broken=one.broken)

    def _log(self, name: str, standing: Standing, *, broken: bool) -> None:
        summary = standing.summary()
        newest_ms = standing.staleness.percentile_ms(standing.share)
        facts: dict[str, Any] = {
            "class": name,
            "promised_ms": summary["promised_ms"],
            "promised_share": standing.share,
            "share_within": summary["within"],
            f"newest_batch_p{standing.share * 100:g}_ms": round(newest_ms, 3),
            "needs_times_the_cores": summary["needs"],
        }
        text = " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)
        if broken:
            advice = standing.advise() or "wait: at the measured costs the promise can be kept"
            _LOGGER.warning("promise of freshness broken [%s%s] what helps: %s", self._place, text, advice)
        else:
            _LOGGER.info("promise of freshness kept again [%s%s]", self._place, text)
