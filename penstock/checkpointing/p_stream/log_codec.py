"""The files of a p-stream's commit log: entries, and starts, which replace all entries up to a number.

All files are p-units without blocks (`penstock.checkpointing.p_unit`), so that each has a format version and
a checksum. The kinds of entries and their meta::

    commit       {"writer": text, "batch": int, "session": text, "offset": int, "time_us": int,
                  "clock": {text: int}, "segments": [[name, [[at, size, rows], ...]], ...],
                  "plan": int}  "plan" only for a query's micro-batch
    subscribe    {"reader": text, "offset": int}
    unsubscribe  {"reader": text}
    release      {"start": int}
    claim        {"reader": text, "start": int, "stop": int}
    compaction   {"end": int, "deletes": int, "marks": [[offset, time_us], ...],
                  "commit": meta of a commit with "spans": [[int, ...], ...]}

The meta of a start::

    start        {"number": int, "start": int, "end": int, "commits": [meta of a commit, ...],
                  "writers": {text: {"batch": int, "session": text, "clock": {text: int}, "plan": int}, ...},
                  "readers": {text: [number, offset], ...}}

For an update log with a compaction or a claim, the meta of a start also has::

                  "compaction": meta of a compaction, "retired": [name, ...],
                  "claims": {text: {"start": int, "stop": int,
                                    "views": [{"stop": int, "commits": [meta, ...]}, ...]}, ...}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files.abc import is_name
from penstock.checkpointing.p_stream.log_record import (
    Claim,
    Commit,
    Compaction,
    Entry,
    ReaderClaim,
    Release,
    Segment,
    Start,
    Subscribe,
    Subscription,
    Unit,
    Unsubscribe,
    View,
    WriterState,
)
from penstock.checkpointing.p_unit import PUnit, decode, encode
from penstock.errors import CorruptDataError

__all__ = ["check_follows", "from_bytes", "to_bytes"]


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
        case Claim(reader, start, stop):
            unit = PUnit("claim", {"reader": reader, "start": start, "stop": stop})
        case Compaction():
            unit = PUnit("compaction", _meta_of_compaction(entry))
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
        **_spans(commit),
        **_plan(commit),
    }


def _spans(commit: Commit) -> dict[str, list[list[int]]]:
    spans = [[unit.offsets for unit in segment.units] for segment in commit.segments]
    has_spans = any(unit.span is not None for segment in commit.segments for unit in segment.units)
    return {"spans": spans} if has_spans else {}


def _meta_of_compaction(one: Compaction) -> dict[str, Any]:
    marks = [list(mark) for mark in one.marks]
    return {"end": one.end, "deletes": one.deletes, "marks": marks, "commit": _meta(one.commit)}


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
        "readers": {name: [known.number, known.offset] for name, known in start.readers.items()},
        **_meta_of_update_log(start),
    }


def _meta_of_update_log(start: Start) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if start.compaction is not None:
        meta |= {"compaction": _meta_of_compaction(start.compaction), "retired": list(start.retired)}
    if start.claims:
        meta["claims"] = {
            name: {
                "start": one.start,
                "stop": one.stop,
                "views": [
                    {"stop": view.stop, "commits": [_meta(commit) for commit in view.commits]}
                    for view in one.views
                ],
            }
            for name, one in start.claims.items()
        }
    return meta


def from_bytes(content: bytes | memoryview, file: object) -> Entry | Start:
    """Return the entry or start that a file holds; `file` names it in errors.

    Raises
    ------
    CorruptDataError
        If the file is cut, changed, of a newer format, or neither an entry nor a start.
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
        case "claim":
            return Claim(fields.name("reader"), fields.count("start"), fields.count("stop"))
        case "compaction":
            return _compaction(fields)
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
        _segments(fields),
        fields.numbers("clock"),
        _plan_in(fields),
    )


def _segments(fields: Fields) -> tuple[Segment, ...]:
    segments = tuple(_segment(one) for one in fields.rows("segments", 2))
    if not fields.has("spans"):
        return segments
    spans = fields.items("spans")
    if len(spans) != len(segments):
        raise fields.damage_error("spans", "a list for each segment")
    made = []
    for place, segment in enumerate(segments):
        row = spans.row(place, len(segment.units))
        units = (replace(unit, span=row.number(at, unit.rows)) for at, unit in enumerate(segment.units))
        made.append(replace(segment, units=tuple(units)))
    return tuple(made)


def _compaction(fields: Fields) -> Compaction:
    commit, end = _commit(fields.fields("commit")), fields.count("end")
    if commit.offset or (commit.rows and commit.end != end):
        raise fields.damage_error("commit", "the rows before the end of the compaction")
    marks = tuple((one.count(0), one.number(1)) for one in fields.rows("marks", 2))
    if list(marks) != sorted(marks) or any(offset > end for offset, _ in marks):
        raise fields.damage_error("marks", "offsets and times that ascend to the end of the compaction")
    return Compaction(commit, end, fields.count("deletes", commit.rows), marks)


def _claimed(fields: Fields) -> ReaderClaim:
    start, stop = fields.count("start"), fields.count("stop")
    views = tuple(
        View(one.count("stop"), tuple(_commit(commit) for commit in one.objects("commits")))
        for one in fields.objects("views")
    )
    bounds = [start, *(view.stop for view in views), stop]
    if bounds != sorted(bounds):
        raise fields.damage_error("views", "views that follow one another")
    return ReaderClaim(start, stop, views)


def _plan_in(fields: Fields) -> int | None:
    return fields.number("plan") if fields.has("plan") else None


def _segment(fields: Fields) -> Segment:
    return Segment(fields.name(0), tuple(Unit(*unit) for unit in fields.count_rows(1, 3)))


def _start(fields: Fields) -> Start:
    writers, readers = fields.fields("writers"), fields.fields("readers")
    claims = fields.fields("claims") if fields.has("claims") else Fields({})
    retired = fields.items("retired") if fields.has("retired") else Fields([])
    start = Start(
        fields.count("number"),
        fields.count("start"),
        fields.count("end"),
        tuple(_commit(one) for one in fields.objects("commits")),
        {name: _writer_state(writers.fields(name)) for name in writers},
        {name: _subscription(readers.row(name, 2)) for name in readers},
        _compaction(fields.fields("compaction")) if fields.has("compaction") else None,
        {name: _claimed(claims.fields(name)) for name in claims},
        tuple(retired.name(place) for place in range(len(retired))),
    )
    for name in start.readers:
        if not is_name(name):
            raise fields.damage_error("readers", "names")
    end = start.start
    if start.compaction is not None and not start.commits:
        end = start.compaction.end
    for number, commit in enumerate(start.commits):
        # The first commit may hold released rows.
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


def check_follows(entry: Entry, end: int, commits: Sequence[Commit], file: str) -> None:
    """Check that an entry can be next in a log that ends at row `end`.

    Raises
    ------
    CorruptDataError
        If the entry cannot be next.
    """
    match entry:
        case Commit(offset=offset) if offset != end:
            raise CorruptDataError(
                "a commit does not follow the one before it", file=file, offset=offset, expected=end
            )
        case Subscribe(offset=row) | Release(start=row) | Claim(stop=row) if row > end:
            raise CorruptDataError(
                "an entry of the commit log names rows that do not exist", file=file, row=row, end=end
            )
        case Claim(start=start, stop=stop) if start > stop:
            raise CorruptDataError("a claim ends before it begins", file=file, start=start, stop=stop)
        case Compaction(end=row) if row not in (end, *(commit.offset for commit in commits)):
            raise CorruptDataError(
                "a compaction does not end between two commits", file=file, row=row, end=end
            )
