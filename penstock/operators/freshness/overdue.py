"""Report that a micro-batch runs for longer than a freshness contract allows.

Metrics come at the end of a micro-batch, which is too late if a sink hangs. The rows that a micro-batch
serves arrived before it started. So once a micro-batch has run for longer than the limit of a class, all its
results of this class are late.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Overdue", "OverdueTimers", "log_overdue"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A running micro-batch whose results are later than promised.

    Attributes
    ----------
    query : str
        The query's name.
    name : str
        The class of keys.
    promised_s : float
        The promised staleness. The micro-batch has already run for this long.
    """

    query: str
    name: str
    promised_s: float


def log_overdue(overdue: Overdue) -> None:
    """Log a warning."""
    _LOGGER.warning(
        "promise of freshness broken: a micro-batch still runs [query=%s class=%s promised_ms=%g]",
        overdue.query, overdue.name, 1000 * overdue.promised_s,
    )  # fmt: skip


class OverdueTimers:
    """Timers of one micro-batch at a time.

    Parameters
    ----------
    query : str
        The query's name.
    report : callable
        Called on another thread, at most once for each class and micro-batch.
    """

    def __init__(self, query: str, report: Callable[[Overdue], None] = log_overdue) -> None:
        self.report = report
        self._query = query
        self._timers: list[threading.Timer] = []

    @property
    def active(self) -> bool:
        """Whether a micro-batch runs."""
        return bool(self._timers)

    def begin(self, limits: Mapping[str, float]) -> None:
        """Start the timers of a micro-batch that starts now, given the promised seconds of each class."""
        self.end()
        for name, promised_s in limits.items():
            timer = threading.Timer(promised_s, self._fire, (Overdue(self._query, name, promised_s),))
            timer.daemon = True
            timer.start()
            self._timers.append(timer)

    def end(self) -> None:
        """Cancel the timers: the micro-batch has ended."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _fire(self, overdue: Overdue) -> None:
        self.report(overdue)
