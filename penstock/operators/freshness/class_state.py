"""The controller's memory of one promise: waiting keys, and how late results were in the last seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.checkpointing.fields import Fields
from penstock.operators.freshness.contract import Promise

__all__ = ["ClassState", "Stretch", "read_class"]

_WINDOW_US = 2_000_000
"""The promise is judged over this time, or over twice the limit if that is longer."""
_SLICES = 4
"""The number of slices of the window. Micro-batches that end in the same slice are remembered as one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The lateness of the results of a class in a stretch of time.

    Attributes
    ----------
    began_us, ended_us : int
        The stretch.
    late_us, time_us : float
        The time during which keys were staler than the limit, and the total time, each summed over keys.
    """

    began_us: int
    ended_us: int
    late_us: float
    time_us: float

    def since(self, begin_us: float) -> Stretch:
        """Return the part of the stretch after a time, as if lateness were spread evenly over the stretch."""
        if begin_us <= self.began_us:
            return self
        share = (self.ended_us - begin_us) / (self.ended_us - self.began_us)
        return Stretch(int(begin_us), self.ended_us, share * self.late_us, share * self.time_us)

    def plus(self, later: Stretch) -> Stretch:
        """Return both stretches as one."""
        return Stretch(
            self.began_us, later.ended_us, self.late_us + later.late_us, self.time_us + later.time_us
        )


@dataclass(frozen=True, slots=True)
class ClassState:
    """The controller's memory of one promise.

    Attributes
    ----------
    waiting : float
        The smoothed number of keys that wait before a micro-batch serves.
    recent : tuple of Stretch
        The stretches of the window over which the promise is judged, in order of time.
    broken : bool
        Whether the promise is broken.
    """

    waiting: float = 0.0
    recent: tuple[Stretch, ...] = ()
    broken: bool = False

    @property
    def late_us(self) -> float:
        """The time in the window during which keys were staler than the limit, summed over keys."""
        return sum(one.late_us for one in self.recent)

    @property
    def time_us(self) -> float:
        """The time in the window, summed over keys."""
        return sum(one.time_us for one in self.recent)

    def at(self, promise: Promise, now_us: int) -> ClassState:
        """Return the state with the stretches of the window that ends at `now_us`."""
        begin_us = now_us - _window_us(promise)
        return replace(
            self, recent=tuple(one.since(begin_us) for one in self.recent if one.ended_us > begin_us)
        )

    def add(self, promise: Promise, newest: Stretch) -> ClassState:
        """Return the state after one more stretch, which counts as a whole even if it exceeds the window."""
        kept = self.at(promise, newest.ended_us).recent
        slice_us = _window_us(promise) // _SLICES
        if kept and kept[-1].ended_us // slice_us == newest.ended_us // slice_us:
            *before, last = kept
            return replace(self, recent=(*before, last.plus(newest)))
        return replace(self, recent=(*kept, newest))


def _window_us(promise: Promise) -> int:
    return max(_WINDOW_US, 2 * promise.limit_us)


def read_class(fields: Fields) -> ClassState:
    """Restore the JSON values of a `ClassState`.

    Raises
    ------
    CorruptDataError
        If a field is missing or malformed.
    """
    recent = tuple(
        Stretch(one.count("began_us"), one.count("ended_us"), one.real("late_us"), one.real("time_us"))
        for one in (fields.objects("recent") if fields.has("recent") else ())
    )
    return ClassState(fields.real("waiting"), recent, fields.flag("broken"))
