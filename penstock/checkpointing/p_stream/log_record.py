"""Records of a p-stream's commit log: entries, and starts, which replace all entries up to a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Claim",
    "Commit",
    "Compaction",
    "Entry",
    "ReaderClaim",
    "Release",
    "Segment",
    "Start",
    "Subscribe",
    "Subscription",
    "Unit",
    "Unsubscribe",
    "View",
    "WriterState",
]


@dataclass(frozen=True, slots=True)
class Unit:
    """One p-unit of a segment: the position of its block, its number of bytes, and its number of rows.

    A p-unit of a compacted segment covers `span` offsets, but has rows for only some of them: the rows that a
    compaction kept.
    """

    at: int
    size_bytes: int
    rows: int
    span: int | None = None

    @property
    def offsets(self) -> int:
        """The number of offsets that the rows cover."""
        return self.rows if self.span is None else self.span


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of p-units."""

    name: str
    units: tuple[Unit, ...]

    @property
    def rows(self) -> int:
        """The number of rows of all units."""
        return sum(unit.rows for unit in self.units)

    @property
    def offsets(self) -> int:
        """The number of offsets that the units cover."""
        return sum(unit.offsets for unit in self.units)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all units."""
        return sum(unit.size_bytes for unit in self.units)


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the log.

    Parameters
    ----------
    writer : str
        The writer's name.
    batch : int
        The writer's number of the batch, unique among its commits.
    session : str
        The attempt that wrote the commit; empty if any attempt of the writer may commit.
    offset : int
        The number of rows in the stream before this commit.
    time_us : int
        The time of the commit, in microseconds since the Unix epoch, by the writer's clock.
    segments : tuple of Segment
        The segments that the commit makes visible, in row order. The start of a session has none.
    clock : mapping of str to int
        The vector clock: the writer's position in each of its sources.
    plan : int, optional
        For a query's micro-batch, a checksum of Spark's plan for it, if known.
    """

    writer: str
    batch: int
    session: str
    offset: int
    time_us: int
    segments: tuple[Segment, ...] = ()
    clock: Mapping[str, int] = field(default_factory=dict)
    plan: int | None = None

    @property
    def rows(self) -> int:
        """The number of rows of all segments."""
        return sum(segment.rows for segment in self.segments)

    @property
    def end(self) -> int:
        """The number of rows in the stream after this commit."""
        return self.offset + sum(segment.offsets for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class WriterState:
    """The newest commit of one writer."""

    batch: int
    session: str
    clock: Mapping[str, int]
    plan: int | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A reader subscribes, and needs the rows from `offset` on."""

    reader: str
    offset: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A reader unsubscribes."""

    reader: str


@dataclass(frozen=True, slots=True)
class Release:
    """The stream now begins at row `start`."""

    start: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A reader of an update log reads rows `start` to `stop` - 1, and may read them again."""

    reader: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """The rows before `end` of an update log are replaced by one commit: the newest row of each key.

    Parameters
    ----------
    commit : Commit
        The commit of the remaining rows. Each p-unit records how many offsets it covers (`Unit.span`).
    end : int
        The end of the compacted rows.
    deletes : int
        The number of rows that delete their key.
    marks : tuple of (offset, time_us)
        Pairs that say: all rows before the offset were committed at or before the time. The marks ascend.
    """

    commit: Commit
    end: int
    deletes: int
    marks: tuple[tuple[int, int], ...]

    def offset_at(self, time_us: int) -> int:
        """Return an offset before which all rows are older than a time."""
        return max((offset for offset, time in self.marks if time < time_us), default=0)


Entry = Commit | Subscribe | Unsubscribe | Release | Claim | Compaction
"""One entry of the log."""


@dataclass(frozen=True, slots=True)
class View:
    """Commits that a compaction replaced, kept because a claim covers their rows before `stop`."""

    stop: int
    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class ReaderClaim:
    """The rows that a reader may read again, and the views that keep them, in the order of the rows."""

    start: int
    stop: int
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class Subscription:
    """The beginning of a subscription: the unique number of its log entry, and its first row."""

    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Start:
    """The state of a log after its entry `number`."""

    number: int = 0
    start: int = 0
    end: int = 0
    commits: tuple[Commit, ...] = ()
    writers: Mapping[str, WriterState] = field(default_factory=dict)
    readers: Mapping[str, Subscription] = field(default_factory=dict)
    compaction: Compaction | None = None
    claims: Mapping[str, ReaderClaim] = field(default_factory=dict)
    retired: tuple[str, ...] = ()
