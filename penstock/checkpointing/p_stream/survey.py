"""Survey a p-stream: find its rows, writers, readers and garbage."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.checkpointing.files import FileFacts, Files
from penstock.checkpointing.p_stream.description import COMPACTOR
from penstock.checkpointing.p_stream.log_record import Commit, Segment
from penstock.checkpointing.p_stream.stream import PStream, is_committed
from penstock.checkpointing.p_stream.update_log import UpdateLog

__all__ = [
    "Garbage",
    "LogFacts",
    "Reader",
    "Survey",
    "Writer",
    "delete_garbage",
    "is_p_stream",
    "survey_p_stream",
]

_DESCRIPTION = "p-stream"
_UNFINISHED = re.compile(r"^\.(?P<name>.+)\.[0-9a-f]{32}\.tmp$")
_ENTRY = re.compile(r"(?P<number>\d{20})\.(?:entry|start)")
_PROGRESS_DIRECTORY = re.compile(r".+-(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer at its newest commit.

    Parameters
    ----------
    name : str
        The writer's name.
    batch : int
        The number of the newest commit; -1 if there is none.
    session : str
        The attempt that made the newest commit.
    clock : mapping of str to int
        The writer's position in each of its sources.
    time_us : int or None
        The time of the newest commit, by the writer's clock; None if its rows are released.
    """

    name: str
    batch: int
    session: str
    clock: Mapping[str, int]
    time_us: int | None


@dataclass(frozen=True, slots=True)
class Reader:
    """A subscribed reader. It released all rows before `offset`, and not the `unreleased` rows after."""

    name: str
    offset: int
    unreleased: int


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file that no process will ever need again."""

    files: Files
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The state of an update log.

    Parameters
    ----------
    log : UpdateLog
        The definition of the update log.
    end : int
        The end of the compacted rows.
    keys, deletes : int
        The number of rows that the newest compaction kept, one for each key, and how many of these rows
        delete their key.
    tail : int
        The number of rows committed after the newest compaction. At most this many rows are superseded.
    kept_bytes : int
        The total size of replaced segments, which readers may still need until the next compaction.
    """

    log: UpdateLog
    end: int
    keys: int
    deletes: int
    tail: int
    kept_bytes: int

    @property
    def superseded_share(self) -> float:
        """The maximum share of superseded rows among all rows."""
        return self.tail / max(1, self.tail + self.keys)


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a survey.

    Parameters
    ----------
    location, identity, schema, direct_io
        The p-stream's location, identity and columns, and whether it uses direct I/O.
    start, end : int
        The first row that is kept, and the number of rows ever committed.
    entries : int
        The number of the log's newest entry.
    commits : tuple of Commit
        The commits whose rows are not all released.
    size_bytes : int
        The total size of all files, including unfinished files.
    writers, readers : tuple
        The writers and the subscribed readers.
    spare : tuple of Commit
        The commits that all readers have passed. A trim deletes them.
    garbage : tuple of Garbage
        The files that ended attempts and processes have left behind.
    pending_files, pending_bytes : int
        The number and the size of segments that no commit names yet, but a later commit may name.
    damage : tuple of str
        A text for each missing or cut segment. The sizes of files show this damage.
    log : LogFacts, optional
        The state of an update log.
    """

    location: str
    identity: str
    schema: pa.Schema
    direct_io: bool
    start: int
    end: int
    entries: int
    commits: tuple[Commit, ...]
    size_bytes: int
    writers: tuple[Writer, ...]
    readers: tuple[Reader, ...]
    spare: tuple[Commit, ...]
    garbage: tuple[Garbage, ...]
    pending_files: int
    pending_bytes: int
    damage: tuple[str, ...] = field(default=())
    log: LogFacts | None = None

    @property
    def segments(self) -> list[Segment]:
        """The segments of all commits, in the order of their rows."""
        return [segment for commit in self.commits for segment in commit.segments]

    @property
    def segment_bytes(self) -> int:
        """The total size of committed p-units."""
        return sum(commit.size_bytes for commit in self.commits)

    @property
    def committed_rows(self) -> int:
        """The number of rows in committed p-units. Readers may already have released some of these rows."""
        return sum(commit.rows for commit in self.commits)

    @property
    def garbage_bytes(self) -> int:
        """The total size of the garbage."""
        return sum(one.size_bytes for one in self.garbage)


def is_p_stream(files: Files) -> bool:
    """Return whether a directory is a p-stream.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    return any(fact.name == _DESCRIPTION and not fact.is_directory for fact in files.list())


def survey_p_stream(stream: PStream, *, without: Collection[str] = ()) -> Survey:
    """Survey all files of a p-stream, which may be in use.

    Parameters
    ----------
    stream : PStream
        The stream. The call refreshes it.
    without : collection of str
        The names of readers that count as unsubscribed.

    Raises
    ------
    CorruptDataError
        If the log is damaged.
    UnavailableError
        If the file system refuses.
    """
    readers = stream.files.child("readers")
    # List the segments before the log is read: segments committed later are neither garbage nor pending.
    segments, log = stream.segments.list(), stream.files.child("log").list()
    progress_files = {
        fact.name: readers.child(fact.name).list() for fact in readers.list() if fact.is_directory
    }
    stream.refresh()
    progress = {name: offset for name, offset in stream.readers().items() if name not in without}
    commits = tuple(stream.log.commits)
    needed = stream.start if stream.update_log else min(progress.values(), default=stream.start)
    named = stream.log.segments()
    loose = [fact for fact in segments if fact.name not in named]
    unreferenced = [
        fact for fact in loose if is_committed(_UNFINISHED.sub(r"\g<name>", fact.name), stream.log.writers)
    ]
    garbage = [Garbage(stream.segments, fact.name, fact.size_bytes) for fact in unreferenced]
    garbage += [Garbage(stream.files.child("log"), fact.name, fact.size_bytes) for fact in _old_entries(log)]
    for name, facts in progress_files.items():
        old = _old_progress(stream, name, facts, progress)
        garbage += [Garbage(readers.child(name), fact.name, fact.size_bytes) for fact in old]
    times = {commit.writer: commit.time_us for commit in commits}
    every = [
        *segments,
        *log,
        *(fact for facts in progress_files.values() for fact in facts),
        *stream.files.list(),
    ]
    return Survey(
        stream.files.location,
        stream.identity,
        stream.schema,
        stream.direct_io,
        stream.start,
        stream.end,
        stream.log.number,
        commits,
        sum(fact.size_bytes for fact in every),
        tuple(
            Writer(name, state.batch, state.session, state.clock, times.get(name))
            for name, state in sorted(stream.log.writers.items())
            if name != COMPACTOR
        ),
        tuple(Reader(name, offset, stream.end - offset) for name, offset in sorted(progress.items())),
        tuple(commit for commit in commits if commit.end <= needed),
        tuple(garbage),
        len(loose) - len(unreferenced),
        sum(fact.size_bytes for fact in loose) - sum(fact.size_bytes for fact in unreferenced),
        tuple(_damage(stream, commits, segments)),
        _log_facts(stream, sum(fact.size_bytes for fact in segments if fact.name in named)),
    )


def _log_facts(stream: PStream, size_bytes: int) -> LogFacts | None:
    if stream.update_log is None:
        return None
    compaction, commits = stream.log.compaction, stream.log.commits
    rows = 0 if compaction is None else compaction.commit.rows
    return LogFacts(
        stream.update_log,
        0 if compaction is None else compaction.end,
        rows,
        0 if compaction is None else compaction.deletes,
        sum(commit.rows for commit in commits) - rows,
        size_bytes - sum(commit.size_bytes for commit in commits),
    )


def _old_entries(log: Iterable[FileFacts]) -> Iterator[FileFacts]:
    """Yield the unfinished files of the log whose numbers the newest start covers."""
    matches = [(fact, _ENTRY.fullmatch(fact.name)) for fact in log]
    newest = max(
        (int(match["number"]) for fact, match in matches if match and fact.name.endswith(".start")), default=0
    )
    for fact, _ in matches:
        unfinished = _UNFINISHED.fullmatch(fact.name)
        entry = _ENTRY.fullmatch(unfinished["name"]) if unfinished else None
        if entry is not None and int(entry["number"]) <= newest:
            yield fact


def _old_progress(
    stream: PStream, directory: str, facts: Iterable[FileFacts], progress: Mapping[str, int]
) -> Iterator[FileFacts]:
    """Yield the progress files of ended subscriptions, and the superseded progress files of each reader."""
    number = _PROGRESS_DIRECTORY.fullmatch(directory)
    if number is None or int(number["number"]) > stream.log.number:
        return
    offset = next(
        (
            progress[reader]
            for reader, subscription in stream.log.readers.items()
            if f"{reader}-{subscription.number}" == directory and reader in progress
        ),
        None,
    )
    for fact in facts:
        unfinished = _UNFINISHED.fullmatch(fact.name)
        stem = (unfinished["name"] if unfinished else fact.name).removesuffix(".progress")
        if stem.isdecimal() and (offset is None or int(stem) < offset):
            yield fact


def _damage(stream: PStream, commits: Iterable[Commit], listed: Iterable[FileFacts]) -> Iterator[str]:
    sizes = {fact.name: fact.size_bytes for fact in listed}
    for segment in (segment for commit in commits for segment in commit.segments):
        size = sizes.get(segment.name)
        if size is None:
            size = _size_now(stream, segment)
        if size is not None and size < segment.size_bytes:
            what = f"is cut: {size:,} of {segment.size_bytes:,} bytes" if size else "is missing"
            yield f"{stream.segments.path_of(segment.name)}: the segment {what}"


def _size_now(stream: PStream, segment: Segment) -> int | None:
    """Return the size of a segment that was not listed; None if its rows have been released."""
    try:
        return len(stream.segments.read_range(segment.name, 0, segment.size_bytes))
    except FileNotFoundError:
        stream.refresh()
    names = {other.name for commit in stream.log.commits for other in commit.segments}
    return 0 if segment.name in names else None


def delete_garbage(survey: Survey) -> Iterator[Garbage]:
    """Delete the garbage of a survey; yield each file once it is deleted.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    for one in survey.garbage:
        one.files.delete(one.name)
        yield one
