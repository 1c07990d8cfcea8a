"""The policies by which a queue chooses the key to serve next (UpStream §5.2, §5.3)."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Policy"]


class Policy(StrEnum):
    """The order in which waiting keys are served.

    FIFO
        Keys in the order of their newest arrivals: an update goes to the tail (UpStream §5.2).
    IN_PLACE
        An update takes the place of the older update. This policy minimizes staleness if all keys update
        equally often (UpStream §5.2).
    LINECUTTING
        As IN_PLACE, but an update of a slow key (``u_k < 1 / (c * n)``) goes to the front (UpStream §5.3).
        u_k is the key's update rate, and c is the cost of a tuple. n counts all keys that wait or are in
        service, including the key itself, because all of them are served before the key's next turn. Keys
        that cut the line keep their order among themselves, so the queue is IN_PLACE if all keys are slow.
    FRESHEST
        The key whose service lowers weighted staleness most goes first. This depends on its staleness and
        update rate (`penstock.operators.scheduling.schedulers.freshest_scheduler`).
    """

    FIFO = "fifo"
    IN_PLACE = "in_place"
    LINECUTTING = "linecutting"
    FRESHEST = "freshest"

    @property
    def uses_rates(self) -> bool:
        """True if the order depends on how often keys update, and so on the clock."""
        return self in (Policy.LINECUTTING, Policy.FRESHEST)
