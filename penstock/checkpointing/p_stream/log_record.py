"""Records of a p-stream's commit log: entries, and starts, which replace all entries up to a number.

All are p-units without blocks (`penstock.checkpointing.p_unit`), so that each has a format version and a
checksum. The kinds of entries and their meta::

    commit       {"writer": text, "batch": int, "session": text, "offset": int, "time_us": int,
                  "clock": {text: int}, "segments": [[name, [[at, size, rows], ...]], ...],
                  "plan": int}  of a query's micro-batch only
    subscribe    {"reader": text, "offset": int}
    unsubscribe  {"reader": text}
    release      {"start": int}

and the meta of a start::

    start        {"number": int, "start": int, "end": int, "commits": [meta of a commit, ...],
                  "writers": {text: {"batch": int, "session": text, "clock": {text: int}, "plan": int}, ...},
                  "readers": {text: [number, offset], ...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files.abc import is_name
from penstock.checkpointing.p_unit import PUnit, decode, encode
from penstock.errors import CorruptDataError

__all__ = [
    "Commit",
    "Entry",
    "Release",
    "Segment",
    "Start",
    "Subscribe",
    "Subscription",
    "Unit",
    "Unsubscribe",
    "WriterState",
    "from_bytes",
    "to_bytes",
]


@dataclass(frozen=True, slots=True)
class Unit:
    """One p-unit of a segment: where its block begins, its bytes, and its rows."""

    at: int
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of p-units."""

    name: str
    units: tuple[Unit, ...]

    @property
    def rows(self) -> int:
        """The number of rows of all units."""
        return sum(unit.rows for unit in self.units)

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
        The attempt that wrote it; empty if any attempt of the writer may commit.
    offset : int
        The number of rows in the stream before this commit.
    time_us : int
        The time of the commit, in microseconds since the Unix epoch, by the writer's clock.
    segments : tuple of Segment
        The segments that it makes visible, in row order. Empty for the start of a session.
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
        return self.offset + self.rows

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


Entry = Commit | Subscribe | Unsubscribe | Release
"""One entry of the log."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The beginning of a subscription: the number of its entry, which is unique, and the row."""

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


def to_bytes(entry: Entry | Start) -> memoryview:
    """Return the bytes of the file of an entry or a start."""
    match entry:
        case Commit():
            unit = PUnit("commit", _meta(entry))
        case Subscribe(reader, offset):
            unit = PUnit("subscribe", {"reader": reader, "offset": offset})
        case Unsubscribe(reader):
            unit = PUnit("unsubscribe", {"reader": reader})
        case Release(start):
            unit = PUnit("release", {"start": start})
        case Start():
            unit = PUnit("start", _meta_of_start(entry))
        case _:
            assert_never(entry)
    return encode(unit)


def _meta(commit: Commit) -> dict[str, Any]:
    return {
        "writer": commit.writer,
        "batch": commit.batch,
        "session": commit.session,
        "offset": commit.offset,
        "time_us": commit.time_us,
        "clock": dict(commit.clock),
        "segments": [
            [segment.name, [[unit.at, unit.size_bytes, unit.rows] for unit in segment.units]]
            for segment in commit.segments
        ],
        **_plan(commit),
    }


def _plan(of: Commit | WriterState) -> dict[str, int]:
    return {} if of.plan is None else {"plan": of.plan}


def _meta_of_start(start: Start) -> dict[str, Any]:
    return {
        "number": start.number,
        "start": start.start,
        "end": start.end,
        "commits": [_meta(commit) for commit in start.commits],
        "writers": {
            name: {
                "batch": state.batch,
                "session": state.session,
                "clock": dict(state.clock),
                **_plan(state),
            }
            for name, state in start.writers.items()
        },
        "readers": {
            name: [subscription.number, subscription.offset] for name, subscription in start.readers.items()
        },
    }


def from_bytes(content: bytes | memoryview, file: object) -> Entry | Start:
    """Return the entry or start that a file holds; `file` names it in errors.

    Raises
    ------
    CorruptDataError
        If it is cut, changed, of a newer format, or neither.
    """
    unit = decode(content, file)
    fields = Fields(unit.meta, file)
    match unit.kind:
        case "commit":
            return _commit(fields)
        case "subscribe":
            return Subscribe(fields.name("reader"), fields.count("offset"))
        case "unsubscribe":
            return Unsubscribe(fields.name("reader"))
        case "release":
            return Release(fields.count("start"))
        case "start":
            return _start(fields)
    raise CorruptDataError("the file is not an entry of a commit log", file=file, kind=unit.kind)


def _commit(fields: Fields) -> Commit:
    return Commit(
        fields.text("writer"),
        fields.number("batch", least=-1),
        fields.text("session"),
        fields.count("offset"),
        fields.number("time_us"),
        tuple(_segment(one) for one in fields.rows("segments", 2)),
        fields.numbers("clock"),
        _plan_in(fields),
    )


def _plan_in(fields: Fields) -> int | None:
    return fields.number("plan") if fields.has("plan") else None


def _segment(fields: Fields) -> Segment:
    return Segment(fields.name(0), tuple(Unit(*unit) for unit in fields.count_rows(1, 3)))


def _start(fields: Fields) -> Start:
    writers, readers = fields.fields("writers"), fields.fields("readers")
    start = Start(
        fields.count("number"),
        fields.count("start"),
        fields.count("end"),
        tuple(_commit(one) for one in fields.objects("commits")),
        {name: _writer_state(writers.fields(name)) for name in writers},
        {name: _subscription(readers.row(name, 2)) for name in readers},
    )
    for name in start.readers:
        if not is_name(name):
            raise fields.damage_error("readers", "names")
    end = start.start
    for number, commit in enumerate(start.commits):
        # The first may hold released rows.
        if commit.end <= end or (number and commit.offset != end):
            raise fields.damage_error("commits", "commits that follow one another")
        end = commit.end
    if end != start.end:
        raise fields.damage_error("end", "the end of the last commit")
    return start


def _writer_state(fields: Fields) -> WriterState:
    return WriterState(
        fields.number("batch", least=-1), fields.text("session"), fields.numbers("clock"), _plan_in(fields)
    )


def _subscription(fields: Fields) -> Subscription:
    return Subscription(fields.count(0), fields.count(1))
