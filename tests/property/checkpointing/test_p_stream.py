"""A p-stream against a list of rows: writers, readers, lost and late attempts, trims, in any order."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from obstore.store import MemoryStore

from penstock.checkpointing.files import open_files, stores
from penstock.checkpointing.p_stream import (
    Coder,
    PStream,
    PStreamWriter,
    Segment,
    SegmentWriter,
)
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.segments import writer_of
from penstock.errors import FencedError, InvalidUsageError
from tests.checkpoints.interrupted_files import InterruptedFiles
from tests.long_tests import examples

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})
EXAMPLES = int(os.environ.get("PENSTOCK_STATE_EXAMPLES") or examples(50))
"""`script/fuzz` has more."""

WRITERS = st.sampled_from(["a", "b"])
READERS = st.sampled_from(["x", "y"])
PROCESSES = st.integers(0, 2)
OFTEN = CleanupRule(min_trim_commits=2, min_log_entries=4)


def rows(first: int, count: int) -> pa.Table:
    numbers = list(range(first, first + count))
    return pa.table({"n": numbers, "text": [str(n) if n % 3 else None for n in numbers]}, SCHEMA)


class PStreamMachine(RuleBasedStateMachine):
    """Three processes use one stream, each with its own, often old, view of it."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(os, "fsync", lambda descriptor: None)
        self.directory = Path(tempfile.mkdtemp(prefix="p-stream-"))
        self.place = self.choose_place()
        self.coder = Coder("fast", threads=1, codecs=dict.fromkeys(SCHEMA.names, "plain"))
        self.views = [PStream(self.place, SCHEMA, cleanup=OFTEN) for _ in range(3)]
        self.model: list[int] = []
        self.made = 0
        self.batches = {"a": -1, "b": -1}
        self.sessions: dict[str, str] = {"a": "", "b": ""}
        self.done: dict[str, int] = {}
        self.begun = 0
        self.in_flight: list[tuple[int, str, int, int, int, tuple[Segment, ...]]] = []

    def choose_place(self) -> str:
        """Return the location of the stream."""
        return str(self.directory / "stream")

    def teardown(self) -> None:
        try:
            self._released_at_last()
        finally:
            self._patch.undo()
            shutil.rmtree(self.directory)

    def _released_at_last(self) -> None:
        """Once all rows are released, the only files left are orphans of batches that may still commit."""
        view = PStream(self.place, cleanup=OFTEN)
        for reader in self.done:
            view.trim_from(reader, view.end)
        if not self.done:
            return
        view.trim(now=True)
        assert view.start == view.end
        assert not view.log.commits
        left = [writer_of(fact.name) for fact in view.segments.list()]
        assert all(known is not None and known[1] > self.batches[known[0]] for known in left)
        for _ in range(5):
            view.log.begin("c", "any")
        view.log.shorten()
        assert len(open_files(self.place).child("log").list()) <= 6

    def _written(self, process: int, writer: str, batch: int, count: int) -> tuple[Segment, ...]:
        segments = SegmentWriter(self.views[process].segments, self.coder, writer, batch, unit_rows=4)
        segments.add(rows(self.made, count))
        return segments.finish()

    @rule(process=PROCESSES, writer=WRITERS, count=st.integers(1, 11), clock=st.integers(0, 9))
    def commit(self, process: int, writer: str, count: int, clock: int) -> None:
        if self.sessions[writer]:
            return
        batch = self.batches[writer] + 1
        segments = self._written(process, writer, batch, count)
        assert self.views[process].log.commit(writer, batch, segments, clock={"source": clock})
        self._committed(writer, batch, count)

    def _committed(self, writer: str, batch: int, count: int) -> None:
        self.model += range(self.made, self.made + count)
        self.made += count
        self.batches[writer] = batch

    @rule(process=PROCESSES, writer=WRITERS, back=st.integers(0, 3))
    def commit_again(self, process: int, writer: str, back: int) -> None:
        """A replayed or speculative attempt of a batch that is in the log commits nothing."""
        batch = self.batches[writer] - back
        if batch < 0 or self.sessions[writer]:
            return
        segments = self._written(process, writer, batch, 5)
        assert not self.views[process].log.commit(writer, batch, segments)

    @rule(process=PROCESSES, writer=WRITERS)
    def begin(self, process: int, writer: str) -> None:
        old = self.sessions[writer]
        self.begun += 1
        session = str(self.begun)
        known = self.views[process].log.begin(writer, session)
        assert known.batch == self.batches[writer]
        self.sessions[writer] = session
        if old:
            try:
                self.views[process].log.commit(writer, known.batch + 1, (), session=old)
            except FencedError:
                pass
            else:
                raise AssertionError("a session that another followed has committed")

    @rule(process=PROCESSES, writer=WRITERS, count=st.integers(1, 9))
    def commit_in_session(self, process: int, writer: str, count: int) -> None:
        session = self.sessions[writer]
        if not session:
            return
        batch = self.batches[writer] + 1
        segments = self._written(process, writer, batch, count)
        assert self.views[process].log.commit(writer, batch, segments, session=session)
        self._committed(writer, batch, count)

    @rule(process=PROCESSES, writer=WRITERS, count=st.integers(1, 9))
    def die_before_commit(self, process: int, writer: str, count: int) -> None:
        self._written(process, writer, self.batches[writer] + 1, count)
        self.views[process] = PStream(self.place, cleanup=OFTEN)

    @rule(process=PROCESSES, writer=WRITERS, count=st.integers(1, 9))
    def write(self, process: int, writer: str, count: int) -> None:
        """An attempt makes its segments durable, and commits them later or never."""
        if not self.sessions[writer]:
            batch = self.batches[writer] + 1
            segments = self._written(process, writer, batch, count)
            self.in_flight.append((process, writer, batch, self.made, count, segments))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def commit_late(self, data: st.DataObject) -> None:
        attempt = data.draw(st.integers(0, len(self.in_flight) - 1))
        process, writer, batch, first, count, segments = self.in_flight.pop(attempt)
        if self.sessions[writer]:
            return
        added = self.views[process].log.commit(writer, batch, segments)
        assert added == (batch > self.batches[writer])
        if added:
            self.model += range(first, first + count)
            self.made = max(self.made, first + count)
            self.batches[writer] = batch

    @rule(process=PROCESSES, writer=WRITERS, count=st.integers(1, 5), others=st.integers(1, 12))
    def commit_while_others_do(self, process: int, writer: str, count: int, others: int) -> None:
        """Between knowing the newest entry and creating the next, others add many, and delete old ones."""
        if self.sessions[writer]:
            return
        batch = self.batches[writer] + 1
        segments = self._written(process, writer, batch, count)
        view, other = self.views[process], PStream(self.place, cleanup=OFTEN)
        files = view.log._files

        def interrupt() -> None:
            for _ in range(others):
                other.log.begin("c", "any")
            if self.done:
                other.trim(now=True)
            other.log.shorten()

        view.log._files = InterruptedFiles(files, interrupt)
        try:
            assert view.log.commit(writer, batch, segments)
        finally:
            view.log._files = files
        self._committed(writer, batch, count)

    @rule(process=PROCESSES)
    def restart(self, process: int) -> None:
        self.views[process] = PStream(self.place, SCHEMA, cleanup=OFTEN)

    @rule(process=PROCESSES, reader=READERS, start=st.sampled_from(["earliest", "latest"]))
    def subscribe(self, process: int, reader: str, start: str) -> None:
        offset = self.views[process].subscribe(reader, start)
        known = self.done.setdefault(reader, offset)
        assert offset == known
        if start == "latest" and offset > known:
            assert offset == len(self.model)

    @precondition(lambda self: self.done)
    @rule(process=PROCESSES, reader=READERS, count=st.integers(0, 20), now=st.booleans())
    def release(self, process: int, reader: str, count: int, *, now: bool) -> None:
        if reader not in self.done:
            return
        view = self.views[process]
        offset = min(self.done[reader] + count, len(self.model))
        self._read(view, self.done[reader], offset)
        view.trim_from(reader, offset)
        self.done[reader] = offset
        if now:
            view.trim(now=True)

    @rule(process=PROCESSES, reader=READERS)
    def unsubscribe(self, process: int, reader: str) -> None:
        assert self.views[process].unsubscribe(reader) == (reader in self.done)
        self.done.pop(reader, None)

    @rule(process=PROCESSES, writer=WRITERS, count=st.integers(1, 9))
    def begin_and_cut_back(self, process: int, writer: str, count: int) -> None:
        """When a session begins, the uncommitted segments of other sessions are deleted."""
        if self.sessions[writer]:
            self._written(process, writer, self.batches[writer] + 1, count)
        self.begin(process, writer)
        view = self.views[process]
        view.cut_back(writer, self.sessions[writer])
        kept = {segment.name for commit in view.log.commits for segment in commit.segments}
        left = {fact.name for fact in view.segments.list()} - kept
        assert not [name for name in left if (writer_of(name) or ("", 0))[0] == writer]

    @rule(process=PROCESSES, offset=st.integers(0, 60), count=st.integers(0, 30))
    def read(self, process: int, offset: int, count: int) -> None:
        view = self.views[process]
        view.refresh()
        stop = min(offset + count, len(self.model))
        if offset < view.start:
            try:
                view.pieces(offset, max(stop, offset))
            except InvalidUsageError:
                return
            raise AssertionError("released rows were read")
        if offset < stop:
            self._read(view, offset, stop)

    def _read(self, view: PStream, start: int, stop: int) -> None:
        found = [n for batch in view.read(start, stop, ["n"]) for n in batch["n"].to_pylist()]
        assert found == self.model[start:stop]

    @invariant()
    def a_new_view_has_it_all(self) -> None:
        view = PStream(self.place, cleanup=OFTEN)
        assert view.end == len(self.model)
        assert view.start <= min(self.done.values(), default=view.end)
        assert view.readers() == self.done
        assert {name: state.batch for name, state in view.log.writers.items()} == {
            name: batch for name, batch in self.batches.items() if batch >= 0 or self.sessions[name]
        } | ({"c": -1} if "c" in view.log.writers else {})
        self._read(view, view.start, view.end)


class ObjectMachine(PStreamMachine):
    """The same stream in an object store."""

    def choose_place(self) -> str:
        memory = MemoryStore()
        self._patch.setattr(stores, "_connect", lambda _: (memory, "stream"))
        return f"s3://{self.directory.name}/stream"


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
PStreamMachine.TestCase.settings = ObjectMachine.TestCase.settings = SETTINGS
TestPStream = PStreamMachine.TestCase
TestPStreamInAnObjectStore = ObjectMachine.TestCase


def test_a_writer_counts_blocks_with_a_value_that_did_not_fit_their_codec(tmp_path: Path) -> None:
    with PStreamWriter(tmp_path / "s", pa.schema({"n": pa.int64()}), threads=1) as writer:
        found = []
        for values in ([7] * 3000, [7] * 3000, [7] * 2999 + [8], list(range(3000))):
            writer.append(pa.table({"n": values}))
            writer.flush()
            counted = writer.metrics()
            found.append((counted["blocks"], counted["deoptimised"]))
    assert found == [(1, 0), (2, 0), (3, 1), (4, 1)]
