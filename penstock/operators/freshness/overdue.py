"""Report that a micro-batch runs for longer than a freshness contract allows.

Metrics come at the end of a micro-batch, which is too late if a sink hangs. The rows that a micro-batch
serves arrived before it started. So once a micro-batch has run for longer than the limit of a class, all its
results of this class are late. Once the operator has run, its measurements show whether the promise breaks
sooner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock._clock import monotonic_s

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
        The promised staleness.
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
        self._promised_s: Mapping[str, float] = {}
        self._told: set[str] = set()
        self._telling = threading.Lock()
        self._timers: dict[str, tuple[float, threading.Timer]] = {}

    @property
    def active(self) -> bool:
        """Return whether a micro-batch runs."""
        return bool(self._timers)

    def begin(self, limits: Mapping[str, float], age_s: float = 0.0) -> None:
        """Start the timers of a micro-batch.

        Parameters
        ----------
        limits : mapping of str to float
            The promised seconds of each class.
        age_s : float
            The time that has passed since the micro-batch read its rows.
        """
        self.end()
        self._promised_s, self._told = limits, set()
        for name, promised_s in limits.items():
            self._start(name, max(promised_s - age_s, 0.0))

    def expect(self, name: str, in_s: float) -> None:
        """Report a class of the running micro-batch after `in_s` seconds, unless it was reported before.

        A class without a promise is ignored.
        """
        known = self._timers.get(name)
        if known is not None and monotonic_s() + in_s < known[0]:
            known[1].cancel()
            self._start(name, max(in_s, 0.0))

    def end(self) -> None:
        """Cancel the timers: the micro-batch has ended."""
        with self._telling:  # a timer may fire at this moment
            self._told.update(self._promised_s)
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _start(self, name: str, in_s: float) -> None:
        overdue = Overdue(self._query, name, self._promised_s[name])
        timer = threading.Timer(in_s, self._fire, (overdue, self._told))
        timer.daemon = True
        self._timers[name] = monotonic_s() + in_s, timer
        timer.start()

    def _fire(self, overdue: Overdue, told: set[str]) -> None:
        with self._telling:  # a timer that `expect` has replaced may fire at the same moment
            if overdue.name in told:
                return
            told.add(overdue.name)
        self.report(overdue)
