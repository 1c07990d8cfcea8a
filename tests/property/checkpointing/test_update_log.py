"""An update log against a dictionary: writers, compactions, old and new readers, claims, in any order."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.checkpointing.p_stream import Coder, PStream, SegmentWriter, read_blocks
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.update_log import UpdateLog
from penstock.checkpointing.p_stream.update_log.compaction import compact
from penstock.checkpointing.p_stream.update_log.newest import newest_rows
from tests.checkpoints.interrupted_files import InterruptedFiles
from tests.long_tests import examples

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.string(), "t": pa.int64(), "gone": pa.bool_()})
EXAMPLES = int(os.environ.get("PENSTOCK_STATE_EXAMPLES") or examples(50))
OFTEN = CleanupRule(min_trim_commits=2, min_log_entries=4)

PROCESSES = st.integers(0, 2)
READERS = st.sampled_from(["x", "y"])
UPDATES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), min_size=1, max_size=9)


class _Reader:
    """A subscriber that keeps the newest row of each key, and the rows of the micro-batch under way."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.planned: tuple[int, list[int]] | None = None
        self.newest: dict[str, dict[str, Any]] = {}


class UpdateLogMachine(RuleBasedStateMachine):
    """Three processes use one update log, each with its own, often old, view of it."""

    keep_deletes = "1 day"

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(os, "fsync", lambda descriptor: None)
        self.directory = Path(tempfile.mkdtemp(prefix="update-log-"))
        self.place = self.directory / "log"
        log = UpdateLog.of("k", "t", "gone", self.keep_deletes)
        self.coder = Coder("fast", threads=1, codecs=dict.fromkeys(SCHEMA.names, "plain"))
        self.views = [PStream(self.place, SCHEMA, update_log=log, cleanup=OFTEN) for _ in range(3)]
        self.rows: list[dict[str, Any]] = []
        self.batch = -1
        self.compacted = 0
        self.readers: dict[str, _Reader] = {}

    def teardown(self) -> None:
        try:
            self._all_readers_come_to_the_same_state()
        finally:
            self._patch.undo()
            shutil.rmtree(self.directory)

    def _time_of(self, drawn: int) -> int:
        return drawn

    @rule(process=PROCESSES, updates=UPDATES)
    def commit(self, process: int, updates: list[tuple[int, int, bool]]) -> None:
        made = [
            {"n": len(self.rows) + place, "k": f"k{key}", "t": self._time_of(time), "gone": gone}
            for place, (key, time, gone) in enumerate(updates)
        ]
        view = self.views[process]
        self.batch += 1
        segments = SegmentWriter(view.segments, self.coder, "w", self.batch, unit_rows=4)
        segments.add(pa.Table.from_pylist(made, SCHEMA))
        assert view.log.commit("w", self.batch, segments.finish())
        view.log.shorten()
        self.rows += made

    @rule(process=PROCESSES)
    def compact(self, process: int) -> None:
        end = len(self.rows)
        found = compact(self.views[process], goal="fast", threads=1, unit_rows=4)
        assert (found is None) == (end == self.compacted)
        self.compacted = end
        if found is not None:
            assert found.end == end
            assert found.rows <= len({row["k"] for row in self.rows})

    @rule(
        process=PROCESSES,
        other=PROCESSES,
        updates=UPDATES,
        first=st.sampled_from(["compact", "commit", "plan"]),
    )
    def compact_while_others_do(
        self, process: int, other: int, updates: list[tuple[int, int, bool]], first: str
    ) -> None:
        """Between reading rows and replacing them, others commit, claim, or compact."""
        view = self.views[process]
        view.refresh()
        end = view.end
        if other == process or end == self.compacted:
            return
        files = view.log._files

        def interrupt() -> None:
            if first == "compact":
                self.compact(other)
            elif first == "commit":
                self.commit(other, updates)
            else:
                for name in self.readers:
                    self.plan(other, name, 3)

        view.log._files = InterruptedFiles(files, interrupt)
        try:
            found = compact(view, goal="fast", threads=1, unit_rows=4)
        finally:
            view.log._files = files
        assert (found is None) == (first == "compact")
        self.compacted = max(self.compacted, end)

    @rule(process=PROCESSES, name=READERS, start=st.sampled_from(["earliest", "latest"]))
    def subscribe(self, process: int, name: str, start: str) -> None:
        offset = self.views[process].subscribe(name, start)
        if name in self.readers:
            assert offset == self.readers[name].offset
            return
        self.readers[name] = reader = _Reader(offset)
        for row in self.rows[:offset]:
            reader.newest[row["k"]] = _newer(reader.newest.get(row["k"]), row)

    @precondition(lambda self: self.readers)
    @rule(process=PROCESSES, name=READERS, count=st.integers(1, 8))
    def plan(self, process: int, name: str, count: int) -> None:
        reader = self.readers.get(name)
        if reader is None or reader.planned is not None:
            return
        view = self.views[process]
        view.refresh()
        if reader.offset < view.end:
            stop = view.stop_within(reader.offset, view.end, count)
            view.claim(name, stop)
            reader.planned = (stop, self._read(view, reader.offset, stop, name))
            assert len(reader.planned[1]) <= count

    @precondition(lambda self: any(reader.planned for reader in self.readers.values()))
    @rule(process=PROCESSES, name=READERS, done=st.booleans())
    def run_again(self, process: int, name: str, *, done: bool) -> None:
        """A planned micro-batch has the same rows, whenever it runs and whoever has compacted."""
        reader = self.readers.get(name)
        if reader is None or reader.planned is None:
            return
        stop, planned = reader.planned
        view = self.views[process]
        assert self._read(view, reader.offset, stop, name) == planned
        if done:
            for number in planned:
                row = self.rows[number]
                reader.newest[row["k"]] = _newer(reader.newest.get(row["k"]), row)
            view.trim_from(name, stop)
            reader.offset, reader.planned = stop, None

    @rule(process=PROCESSES)
    def restart(self, process: int) -> None:
        self.views[process] = PStream(self.place, SCHEMA, cleanup=OFTEN)

    @rule(process=PROCESSES, name=READERS)
    def unsubscribe(self, process: int, name: str) -> None:
        assert self.views[process].unsubscribe(name) == (name in self.readers)
        self.readers.pop(name, None)

    @rule(process=PROCESSES)
    def sweep(self, process: int) -> None:
        self.views[process].trim(now=True)

    @rule(process=PROCESSES, offset=st.integers(0, 80))
    def read(self, process: int, offset: int) -> None:
        """A read from any offset gives the newest rows, and no superseded row of the compacted part."""
        view = self.views[process]
        view.refresh()
        if offset >= view.end:
            return
        found = self._read(view, offset, view.end)
        assert found == sorted(found)
        assert all(number >= offset for number in found)
        kept = {number for number in found if number < self.compacted}
        newest = _newest(self.rows[: self.compacted])
        assert kept <= {row["n"] for row in newest.values()}
        live = {row["n"] for row in newest.values() if not row["gone"]}
        assert {number for number in live if number >= offset} <= kept
        assert found[len(kept) :] == list(range(max(offset, self.compacted), view.end))

    def _read(self, view: PStream, start: int, stop: int, reader: str | None = None) -> list[int]:
        found: list[int] = []
        view.refresh()
        for piece, block in read_blocks(view.segments, view.pieces(start, stop, reader), view.schema):
            rows = block.read(SCHEMA.names, piece.first, piece.stop).to_pylist()
            assert rows == [self.rows[row["n"]] for row in rows]
            found += [row["n"] for row in rows]
        return found

    @invariant()
    def a_new_reader_has_the_newest_of_each_key(self) -> None:
        view = PStream(self.place, cleanup=OFTEN)
        assert view.end == len(self.rows)
        found = [self.rows[number] for number in self._read(view, 0, view.end)]
        assert _live(_newest(found)) == _live(_newest(self.rows))

    def _all_readers_come_to_the_same_state(self) -> None:
        for name, reader in list(self.readers.items()):
            while reader.offset < len(self.rows):
                if reader.planned is None:
                    self.compact(0)
                    self.plan(0, name, 3)
                self.run_again(1, name, done=True)
            assert _live(reader.newest) == _live(_newest(self.rows))
        self.commit(1, [(0, 9, False)])
        self.compact(2)
        view = PStream(self.place, cleanup=OFTEN)
        view.sweep()
        assert {fact.name for fact in view.segments.list()} == view.log.segments()
        newest = list(_newest(self.rows).values())
        assert view.log.compaction is not None
        if self.keep_deletes == "0s":
            assert view.log.compaction.deletes == 0
            newest = [row for row in newest if not row["gone"]]
        assert sum(one.rows for one in view.log.commits) == len(newest)


class ExpiringDeletesMachine(UpdateLogMachine):
    """Deletes are dropped as soon as no reader needs them; later no older update of their key may come."""

    keep_deletes = "0s"

    def _time_of(self, drawn: int) -> int:
        return len(self.rows)


def _newer(known: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    if known is None:
        return row
    return max(known, row, key=lambda one: (one["t"], one["n"]))


def _newest(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    newest: dict[str, dict[str, Any]] = {}
    for row in rows:
        newest[row["k"]] = _newer(newest.get(row["k"]), row)
    return newest


def _live(newest: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {key: row["n"] for key, row in newest.items() if not row["gone"]}


_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
UpdateLogMachine.TestCase.settings = _SETTINGS
ExpiringDeletesMachine.TestCase.settings = _SETTINGS
TestUpdateLog = UpdateLogMachine.TestCase
TestExpiringDeletes = ExpiringDeletesMachine.TestCase


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2), st.integers(-3, 3)), max_size=30
    ),
    cuts=st.lists(st.integers(0, 30), max_size=3),
    kind=st.sampled_from([pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us"), pa.int16()]),
)
def test_the_newest_rows_are_those_of_a_dictionary(
    rows: list[tuple[str, int, int]], cuts: list[int], kind: pa.DataType
) -> None:
    newest: dict[tuple[str, int], int] = {}
    for number, (text, code, time) in enumerate(rows):
        before = newest.get((text, code))
        if before is None or time >= rows[before][2]:
            newest[text, code] = number
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    times = pa.array([row[2] for row in rows], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    schema = pa.schema({"a": pa.string(), "b": pa.int64(), "t": kind})
    table = pa.table({"a": [row[0] for row in rows], "b": [row[1] for row in rows], "t": times}, schema)
    parts = [table.slice(one, other - one) for one, other in itertools.pairwise(bounds)] or [table]
    found = newest_rows(pa.concat_tables(parts), ["a", "b"], "t")
    assert found.tolist() == sorted(newest.values())
