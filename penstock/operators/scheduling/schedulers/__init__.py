"""The choice of a scheduler."""

from __future__ import annotations

from penstock.operators.scheduling.abc import Scheduler
from penstock.operators.scheduling.linked_scheduler import LinkedScheduler
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers.freshest_scheduler import FreshestScheduler
from penstock.operators.scheduling.weighted_scheduler import WeightedScheduler

__all__ = ["new_scheduler"]


def new_scheduler(policy: Policy, *, weighted: bool) -> Scheduler:
    """Return an empty scheduler. If `weighted`, it serves keys by their weights."""
    if policy is Policy.FRESHEST:
        return FreshestScheduler()
    return WeightedScheduler(policy) if weighted else LinkedScheduler(policy)
