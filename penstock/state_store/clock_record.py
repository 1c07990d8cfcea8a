"""Record the clock readings of a micro-batch's first attempt, so that later attempts serve the same rows.

With a budget of time, or with the policy linecutting or freshest, an operator's output depends on the clock.
A micro-batch may run again after a sink has taken the output of an earlier attempt. A sink that skips known
micro-batches would then miss rows that only the later attempt serves. The output is a function of the state,
the ordered arrivals and the clock. So the first attempt records the clock readings before its output is
visible, and a later attempt that finds a record replays the readings. The record also holds the number of
buckets that the first attempt served at once, because a budget of time depends on it. A later attempt may
run on a machine with more processors.

A record is a file beside the versions of a bucket, ``<number>-<file id of the parent>.clock``, where the
number is the version that follows the parent. It is a p-unit, and becomes garbage by the same rule as a
version (`penstock.state_store.bucket_store`). If the file system cannot create a file exclusively, two
attempts that run at the same time may use different readings. Attempts that run one after the other use the
same readings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from penstock._clock import Clock
from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files import Files
from penstock.errors import CorruptDataError
from penstock.state_store.bucket_store import CLOCK_SUFFIX, Handle, Pointer

__all__ = ["ClockRecord", "Readings", "RecordedClock", "read_clock"]

_KIND = "clock"


@dataclass(frozen=True, slots=True)
class Readings:
    """The recorded facts about the first attempt at a micro-batch of a bucket.

    Attributes
    ----------
    times_us : list of int
        The readings of the clock, in microseconds since the Unix epoch.
    served_at_once : int or None
        The number of buckets that were served at the same time. It is None in a record of version 0.1.0,
        which divided time as if each shuffle partition had a processor.
    """

    times_us: list[int]
    served_at_once: int | None = None


class RecordedClock:
    """A clock that first replays a record, and then reads `clock`.

    Parameters
    ----------
    clock : Clock
        The clock to read after the end of the record. If there is a record, its end is reached only if a
        source returns different rows than before.
    recorded : iterable of int
        The recorded readings, in microseconds.

    Attributes
    ----------
    readings : list of int
        The recorded readings and the readings of `clock`.
    """

    def __init__(self, clock: Clock, recorded: Iterable[int] = ()) -> None:
        self.readings = list(recorded)
        self._clock = clock
        self._at = 0

    def __call__(self) -> int:
        """Return the time in microseconds since the Unix epoch."""
        if self._at == len(self.readings):
            self.readings.append(self._clock())
        self._at += 1
        return self.readings[self._at - 1]


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The record for the next micro-batch of a bucket.

    Parameters
    ----------
    files : Files
        The bucket's directory.
    held : Handle
        The handle of the bucket's state.
    """

    files: Files
    held: Handle

    def read(self) -> Readings | None:
        """Return the record; None if no attempt has made one.

        Raises
        ------
        CorruptDataError
            If the record is damaged.
        UnavailableError
            If the file system refuses.
        """
        return read_clock(self.files, self.held.pointer)

    def publish(self, readings: Readings) -> None:
        """Make the record durable.

        Only one attempt succeeds, except on HDFS if two attempts publish at the same moment.

        Raises
        ------
        ConflictError
            If another attempt has published first. The output of this attempt must not become visible.
        UnavailableError
            If the file system refuses.
        """
        self.files.publish(_name(self.held.pointer), encode(PUnit(_KIND, asdict(readings))))


def read_clock(files: Files, parent: Pointer | None) -> Readings | None:
    """Return the record of the micro-batch after a version of a bucket; None if there is none.

    Raises
    ------
    CorruptDataError
        If the record is damaged.
    UnavailableError
        If the file system refuses.
    """
    name = _name(parent)
    try:
        content = files.read(name)
    except FileNotFoundError:
        return None
    path = files.path_of(name)
    unit = decode(content, path)
    fields = Fields(unit.meta, path)
    times = fields.items("times_us")
    if unit.kind != _KIND:
        raise CorruptDataError("the file is not a record of the clock", file=path)
    served = fields.number("served_at_once", least=1) if fields.has("served_at_once") else None
    return Readings([times.number(number) for number in range(len(times))], served)


def _name(parent: Pointer | None) -> str:
    number, file_id = (parent.version + 1, parent.file_id) if parent else (1, "first")
    return f"{number:012d}-{file_id}{CLOCK_SUFFIX}"
