"""Service in random order, for comparison with policies."""

from __future__ import annotations

from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers.freshest_scheduler import (
    SKIPPED,
    FreshestScheduler,
    take_greatest,
)
from penstock.operators.simulation.draws import draws
from penstock.operators.update_stream.stream import Integers, UpdateStream

__all__ = ["RandomQueue", "RandomScheduler"]


class RandomScheduler(FreshestScheduler):
    """A scheduler that chooses among the waiting keys at random; for simulations.

    Parameters
    ----------
    seed : int
        The seed of the order.
    """

    def __init__(self, *, seed: int) -> None:
        super().__init__(Policy.IN_PLACE)
        self._seed, self._drawn = seed, 0

    def pop(self, limit: int, held: Integers | None = None, *, now_us: int = 0) -> Integers:
        """Remove and return up to `limit` keys; see `Scheduler.pop`."""
        line = self._line[: self._size]
        chances = draws(self._seed, self._drawn, len(line))
        self._drawn += len(line)
        if held is not None:
            chances[held[line] != 0] = SKIPPED
        chosen, self._size = take_greatest(limit, line, chances)
        return chosen


class RandomQueue(UpdateQueue):
    """An update queue that serves its keys in random order; for simulations, its state is not stored."""

    def __init__(self, stream: UpdateStream, *, seed: int) -> None:
        super().__init__(stream, Policy.IN_PLACE)
        self._queue = RandomScheduler(seed=seed)
