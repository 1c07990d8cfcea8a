"""The commit log of a p-stream: numbered files, each either whole or absent.

    00000000000000000041.entry       entry 41
    00000000000000000042.entry       entry 42, the newest
    00000000000000000040.start       the state after entry 40, which stands for entries 1 to 40

Invariants (docs/design/0007-p-streams.md):

1. Entry n + 1 is created exclusively, by a process that has read all entries up to n. So the process takes
   these entries into account: a batch is committed once, a fenced session commits nothing, and a release
   never goes past the progress of a subscribed reader.
2. Entries are deleted in ascending order, and only entries before the newest start's entry. So if entry n
   still exists after a process has read or created entry n + 1, there is only one entry n + 1. If entry n is
   gone, the process may have created a second entry n + 1, which no other process will find.
3. A start is durable before entries that it replaces are deleted, and a release before rows are deleted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock import _clock
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.log_codec import check_follows, from_bytes, to_bytes
from penstock.checkpointing.p_stream.log_record import (
    Claim,
    Commit,
    Compaction,
    Entry,
    Release,
    Segment,
    Start,
    Subscribe,
    Subscription,
    Unsubscribe,
    WriterState,
)
from penstock.checkpointing.p_stream.update_log import claims
from penstock.checkpointing.trace import trace
from penstock.errors import ConflictError, CorruptDataError, FencedError

if TYPE_CHECKING:
    from penstock.checkpointing.files import Files

__all__ = ["CommitLog"]

_FILE = re.compile(r"(?P<number>\d{20})\.(?P<kind>entry|start)")


def _name(number: int, kind: str) -> str:
    return f"{number:020}.{kind}"


class CommitLog:
    """One process's view of a log. `refresh` loads the entries of other processes.

    Each writer and reader has its own object, which is not safe to share among threads.

    Parameters
    ----------
    files : Files
        The directory of the log.
    cleanup : CleanupRule, optional
        The rule that decides when a start replaces entries.

    Raises
    ------
    CorruptDataError
        If a file of the log is damaged or missing.
    UnavailableError
        If the file system refuses.
    """

    def __init__(self, files: Files, cleanup: CleanupRule | None = None) -> None:
        self._files = files
        self._cleanup = cleanup or CleanupRule()
        self._load()

    def _set(self, start: Start) -> None:
        self.number = start.number
        """The number of the newest known entry."""
        self.start = start.start
        """The first row that is kept."""
        self.end = start.end
        """The number of rows ever committed."""
        self.commits = list(start.commits)
        """The commits whose rows are not all released, in their order."""
        self.writers = dict(start.writers)
        """The newest commit of each writer."""
        self.readers = dict(start.readers)
        """The subscribed readers, and the first row of each."""
        self.compaction = start.compaction
        """The newest compaction of an update log."""
        self.claims = dict(start.claims)
        """The rows of an update log that readers may read again."""
        self.retired = start.retired
        """The segments that the newest compaction replaced, for readers without a claim."""
        self._started_at = start.number

    # ------------------------------------------------------------------------------------- reading

    def refresh(self) -> None:
        """Load all entries that other processes have added.

        Raises
        ------
        CorruptDataError
            If an entry is damaged or missing.
        UnavailableError
            If the file system refuses.
        """
        begin = self.number
        self._follow()
        if not self._exists(begin):
            self._load()

    def _follow(self) -> None:
        while (entry := self._read(self.number + 1)) is not None:
            self._apply(entry)

    def _exists(self, number: int) -> bool:
        """Return whether an entry still exists. The first start counts as the deletion of entry 0."""
        if number == 0:
            return not self._numbers("start")
        try:
            return bool(self._files.read_range(_name(number, "entry"), 0, 1))
        except FileNotFoundError:
            return False

    def _numbers(self, kind: str) -> list[int]:
        names = (_FILE.fullmatch(fact.name) for fact in self._files.list())
        return sorted(int(match["number"]) for match in names if match and match["kind"] == kind)

    def _load(self) -> None:
        """Read the newest start and all entries after it; repeat if a newer start appears."""
        seen = None
        while True:
            newest = max(self._numbers("start"), default=0)
            entries = self._numbers("entry")
            start = self._read_start(newest)
            if start is not None:
                self._set(start)
                self._follow()
                if self._exists(newest) and self.number >= max(entries, default=0):
                    return
            if seen == newest:
                lost = newest if start is None or not self._exists(newest) else self.number + 1
                raise CorruptDataError(
                    "an entry of the commit log is missing", file=self._files.path_of(_name(lost, "entry"))
                )
            seen = newest

    def _read_start(self, number: int) -> Start | None:
        if number == 0:
            return Start()
        name = _name(number, "start")
        try:
            content = self._files.read(name)
        except FileNotFoundError:
            return None
        file = self._files.path_of(name)
        start = from_bytes(content, file)
        if not isinstance(start, Start) or start.number != number:
            raise CorruptDataError("the file is not the start that its name says", file=file)
        return start

    def _read(self, number: int) -> Entry | None:
        name = _name(number, "entry")
        try:
            content = self._files.read(name)
        except FileNotFoundError:
            return None
        file = self._files.path_of(name)
        entry = from_bytes(content, file)
        if isinstance(entry, Start):
            raise CorruptDataError("the file is not an entry of a commit log", file=file, kind="start")
        check_follows(entry, self.end, self.commits, file)
        return entry

    def _apply(self, entry: Entry) -> None:
        self.number += 1
        match entry:
            case Commit():
                self.end = entry.end
                if entry.rows:
                    self.commits.append(entry)
                self.writers[entry.writer] = WriterState(entry.batch, entry.session, entry.clock, entry.plan)
            case Subscribe(reader, offset):
                self.readers[reader] = Subscription(self.number, offset)
            case Unsubscribe(reader):
                self.readers.pop(reader, None)
                self.claims.pop(reader, None)
            case Claim(reader, start, stop):
                self.claims[reader] = claims.renew(self.claims.get(reader), start, stop)
            case Compaction():
                self._replace(entry)
            case Release(start):
                self.start = start
                self.commits = [commit for commit in self.commits if commit.end > start]

    def _replace(self, entry: Compaction) -> None:
        """Replace the commits before the end of a compaction; keep replaced commits that claims need."""
        commit = entry.commit
        old = [one for one in self.commits if one.offset < entry.end]
        self.claims = {
            name: claims.keep_view(claimed, old, entry.end) for name, claimed in self.claims.items()
        }
        self.commits = [*([commit] if commit.rows else []), *self.commits[len(old) :]]
        self.compaction = entry
        self.writers[commit.writer] = WriterState(commit.batch, commit.session, {})
        self.retired = tuple(claims.segment_names(old))

    def segments(self) -> set[str]:
        """Return the names of the segments that readers may need."""
        return {*claims.needed_segments(self.commits, self.claims.values()), *self.retired}

    def find_commits(self, offset: int) -> Iterator[Commit]:
        """Return the commits that have rows at or after `offset`, in their order."""
        return (commit for commit in self.commits if commit.end > offset)

    # ------------------------------------------------------------------------------------- writing

    def _append(self, decide: Callable[[], Entry | None], holds: Callable[[], bool]) -> bool:
        """Add the entry that `decide` returns; return False if `decide` returns None.

        Parameters
        ----------
        decide : callable
            A function that returns an entry to follow all entries of the log, or None if there is nothing to
            add. It is called again after other processes have added entries.
        holds : callable
            A function that returns whether the log has the entry's effect, called if the entry is gone.
        """
        while True:
            self.refresh()
            entry = decide()
            if entry is None:
                return False
            before = self.number
            self._trace(entry)
            try:
                self._files.publish(_name(before + 1, "entry"), to_bytes(entry))
            except ConflictError:
                continue
            if self._exists(before):
                self._apply(entry)
                if isinstance(entry, Commit):
                    place = {"log": self._files.location, "number": self.number}
                    trace("committed", **place, writer=entry.writer, session=entry.session)
                return True
            self._load()
            if holds():
                return True
            if before + 1 < self._started_at:
                self._files.delete(_name(before + 1, "entry"))

    def _trace(self, entry: Entry) -> None:
        """Record an entry that is about to be added."""
        place = {"log": self._files.location, "number": self.number + 1}
        match entry:
            case Commit():
                names = [segment.name for segment in entry.segments]
                trace(
                    "commit", **place, writer=entry.writer, session=entry.session, batch=entry.batch,
                    offset=entry.offset, end=entry.end, segments=names,
                )  # fmt: skip
            case Release(start):
                trace("trim", **place, start=start)

    def commit(
        self,
        writer: str,
        batch: int,
        segments: Sequence[Segment],
        *,
        clock: Mapping[str, int] | None = None,
        session: str = "",
        plan: int | None = None,
    ) -> bool:
        """Make segments visible, unless this batch of the writer is in the log already.

        Parameters
        ----------
        writer, batch, segments, clock, plan
            See `Commit`. The segments must be durable at the latest when the log syncs all files.
        session : str
            The attempt that commits; see `begin`. An empty text allows any attempt of the writer to commit.

        Returns
        -------
        bool
            False if the batch, or a later batch, was already committed.

        Raises
        ------
        FencedError
            If another session of this writer has begun, or the writer has sessions and `session` is empty.
        CorruptDataError, UnavailableError
            As for `refresh`. After `UnavailableError` the commit may be in the log; a second call is safe.
            But if the segments were not durable, they may be lost: write them again first.
        """

        def decide() -> Commit | None:
            state = self.writers.get(writer)
            if session != ("" if state is None else state.session):
                raise FencedError(
                    "another process writes to the p-stream under the same name",
                    writer=writer,
                    hint="give each writer a name of its own",
                )
            if state is not None and batch <= state.batch:
                return None
            now = _clock.now_us()
            return Commit(writer, batch, session, self.end, now, tuple(segments), dict(clock or {}), plan)

        return self._append(decide, lambda: self._has(writer, session, batch))

    def begin(self, writer: str, session: str) -> WriterState:
        """Begin a session: from now on, commits of the writer's other sessions are refused.

        Returns
        -------
        WriterState
            The writer's newest commit, with batch -1 if there is none.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `refresh`.
        """

        def decide() -> Commit:
            state = self.writers.get(writer, WriterState(-1, "", {}))
            return Commit(
                writer, state.batch, session, self.end, _clock.now_us(), (), state.clock, state.plan
            )

        self._append(decide, lambda: self._has(writer, session, -1))
        return self.writers[writer]

    def _has(self, writer: str, session: str, batch: int) -> bool:
        state = self.writers.get(writer)
        return state is not None and state.session == session and state.batch >= batch

    def subscribe(self, reader: str, offset_of: Callable[[], int]) -> Subscription:
        """Subscribe a reader unless it is subscribed; return its first row.

        Parameters
        ----------
        reader : str
            The reader's name.
        offset_of : callable
            A function that returns the first row that the reader needs, or raises an error.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `refresh`.
        """
        self._append(
            lambda: None if reader in self.readers else Subscribe(reader, offset_of()),
            lambda: reader in self.readers,
        )
        return self.readers[reader]

    def unsubscribe(self, reader: str) -> bool:
        """Remove a reader; return whether it was subscribed.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `refresh`.
        """
        return self._append(
            lambda: Unsubscribe(reader) if reader in self.readers else None,
            lambda: reader not in self.readers,
        )

    def release(self, start_of: Callable[[], int]) -> bool:
        """Advance the stream's first row; return whether it moved.

        Parameters
        ----------
        start_of : callable
            A function that returns the first row that is still needed according to the log. If the stream
            already starts at this row or later, nothing is added.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `refresh`.
        """
        return self._append(
            lambda: Release(start) if (start := start_of()) > self.start else None,
            lambda: self.start >= start_of(),
        )

    def claim(self, reader: str, start: int, stop: int) -> None:
        """Keep rows `start` to `stop` - 1 unchanged for a reader, despite later compactions.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `refresh`.
        """
        self._append(
            lambda: None if claims.covers(self.claims, reader, start, stop) else Claim(reader, start, stop),
            lambda: claims.covers(self.claims, reader, start, stop),
        )

    def replace(self, compaction: Compaction) -> bool:
        """Replace rows by the newest row of each key; return False if another compaction was first.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `refresh`.
        """

        def decide() -> Compaction | None:
            is_next = claims.next_compaction(self.compaction) == compaction.commit.batch
            return compaction if is_next else None

        return self._append(decide, lambda: self.compaction == compaction)

    def shorten(self) -> None:
        """If there are many entries, write a start and delete the entries that it replaces.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `refresh`.
        """
        if not self._cleanup.allows_shortening(self.number - self._started_at, len(self.commits)):
            return
        start = Start(
            self.number, self.start, self.end, tuple(self.commits), dict(self.writers), dict(self.readers),
            self.compaction, dict(self.claims), self.retired,
        )  # fmt: skip
        # The state after an entry is the same, whichever process writes it.
        with contextlib.suppress(ConflictError):
            self._files.publish(_name(start.number, "start"), to_bytes(start))
        self._started_at = start.number
        for kind in ("entry", "start"):
            for number in self._numbers(kind):
                if number < start.number:
                    self._files.delete(_name(number, kind))
