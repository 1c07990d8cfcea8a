"""Random appends by several writers, reads, releases, trims, subscriptions and restarts, against a list."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter, writer
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.survey import delete_garbage, survey_p_stream
from penstock.errors import FencedError, InvalidUsageError
from tests.fuzz.case import Case

_STEPS = 30
_NAMES = ("a", "b", "c")
SCHEMA = pa.schema([
    pa.field("writer", pa.string(), nullable=False),
    pa.field("n", pa.int64(), nullable=False),
    pa.field("text", pa.string()),
])  # fmt: skip

Row = tuple[str, int, str | None]


@dataclass
class _Reader:
    """One subscription: where it is by the model, and the object that reads, if there is one."""

    offset: int
    released: int
    open: PStreamReader | None = None


@dataclass
class _Model:
    """The stream as a list, its subscriptions, and what each writer appended and flushed."""

    place: Path
    draw: random.Random
    rows: list[Row] = field(default_factory=list)
    start: int = 0
    cleanup: CleanupRule = field(default_factory=CleanupRule)
    readers: dict[str, _Reader] = field(default_factory=dict)
    writers: dict[str, PStreamWriter] = field(default_factory=dict)
    appended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES, 0))
    pending: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in _NAMES})

    def open_writer(self) -> None:
        """Open a writer, which fences the one that had its name, and goes on by its clock."""
        name = self.draw.choice(_NAMES)
        before = self.writers.pop(name, None)
        if before is not None and self.draw.random() < 0.7:
            before.close()
            self._committed(name)
            before = None
        opened = PStreamWriter(
            self.place, SCHEMA, writer=name, interval="1us",
            unit_rows=self.draw.choice([1, 7, 1000]), threads=self.draw.choice([1, 2]), cleanup=self.cleanup,
        )  # fmt: skip
        self.writers[name] = opened
        if before is not None:
            # What it had not committed by now is never committed.
            done = opened.clock.get(name, 0)
            kept = [row for row in self.pending[name] if row[1] < done]
            self.rows += kept
            self.pending[name].clear()
            self.appended[name] = done
            self._refused(before)
        assert opened.clock == ({name: self.appended[name]} if self.appended[name] else {})

    def _refused(self, fenced: PStreamWriter) -> None:
        with pytest.raises(FencedError):
            fenced.append(self._new(fenced.name, 1))
            fenced.flush()
        fenced.abort()

    def _new(self, name: str, count: int) -> pa.Table:
        first = self.appended[name]
        numbers = range(first, first + count)
        texts = [None if n % 5 == 0 else f"text {n % 11}" for n in numbers]
        return pa.table({"writer": [name] * count, "n": numbers, "text": texts}, SCHEMA)

    def append(self) -> None:
        """Append rows by some writer, and maybe flush."""
        if not self.writers:
            self.open_writer()
        name = self.draw.choice(sorted(self.writers))
        for other, opened in self.writers.items():
            if other != name:  # so that the order of commits is known
                opened.flush()
                self._committed(other)
        for _ in range(self.draw.randint(1, 3)):
            table = self._new(name, self.draw.choice([1, 2, 30, 300]))
            self.appended[name] += table.num_rows
            self.pending[name] += [tuple(row.values()) for row in table.to_pylist()]
            self.writers[name].append(table, clock={name: self.appended[name]})
        if self.draw.random() < 0.6:
            self.flush()

    def _committed(self, name: str) -> None:
        self.rows += self.pending[name]
        self.pending[name].clear()

    def flush(self) -> None:
        """Make all rows visible."""
        for name, opened in self.writers.items():
            opened.flush()
            self._committed(name)

    def subscribe(self) -> None:
        """Subscribe a reader, or open one that is subscribed anew."""
        self.flush()
        name = self.draw.choice(("r", "s", "t"))
        begin = self._start()
        offsets: dict[str | int, int] = {"earliest": begin, "latest": len(self.rows)}
        row = self.draw.randint(begin, len(self.rows))
        wanted = self.draw.choice([*offsets, row])
        opened = PStreamReader(self.place, reader=name, start=wanted, cleanup=self.cleanup)
        if name not in self.readers:
            offset = offsets.get(wanted, row)
            self.readers[name] = _Reader(offset, offset)
        known = self.readers[name]
        known.open, known.offset = opened, known.released
        assert opened.offset == known.released, "a restart goes on from what was released"

    def _start(self) -> int:
        return PStream(self.place, cleanup=self.cleanup).start

    def unsubscribe(self) -> None:
        """Let a reader go."""
        name = self.draw.choice(("r", "s", "t"))
        assert PStream(self.place, cleanup=self.cleanup).unsubscribe(name) == (name in self.readers)
        self.readers.pop(name, None)

    def read(self) -> None:
        """Read on, and release."""
        self.flush()
        opened = [one for one in self.readers.values() if one.open is not None]
        if not opened:
            return
        known = self.draw.choice(opened)
        assert known.open is not None
        most = self.draw.choice([None, 1, 50, 1000])
        got = [tuple(row.values()) for row in known.open.read(most).to_pylist()]
        stop = len(self.rows) if most is None else min(len(self.rows), known.offset + most)
        assert got == self.rows[known.offset : stop]
        known.offset = stop
        if self.draw.random() < 0.6:
            known.open.release()
            known.released = known.offset

    def read_all(self) -> None:
        """Read what is there, all columns or some, without a subscription."""
        self.flush()
        columns = self.draw.choice([None, ["n"], ["text", "writer"]])
        reader = PStreamReader(self.place, columns=columns, cleanup=self.cleanup)
        begin = reader.offset
        self._check_start(begin)
        names = columns or SCHEMA.names
        places = [SCHEMA.names.index(name) for name in names]
        got = [tuple(row.values()) for row in reader.read().to_pylist()]
        assert got == [tuple(row[place] for place in places) for row in self.rows[begin:]]

    def trim(self) -> None:
        """Delete what nobody needs."""
        PStream(self.place, cleanup=self.cleanup).trim(now=True)
        self._check_start(self._start())

    def _check_start(self, begin: int) -> None:
        """Check that all is there that somebody needs, and that the start never goes back."""
        needed = min((one.released for one in self.readers.values()), default=len(self.rows))
        assert self.start <= begin <= max(needed, self.start)
        self.start = begin
        if begin:
            with pytest.raises(InvalidUsageError, match="already released"):
                PStream(self.place, cleanup=self.cleanup).offset_of(begin - 1)

    def look(self) -> None:
        """Survey the stream, and delete its garbage."""
        self.flush()
        found = survey_p_stream(PStream(self.place, cleanup=self.cleanup))
        assert not found.damage
        assert found.end == len(self.rows)
        assert {one.name: one.offset for one in found.readers} == {
            name: one.released for name, one in self.readers.items()
        }
        list(delete_garbage(found))

    def cut_back(self) -> None:
        """Delete what attempts left."""
        PStream(self.place, cleanup=self.cleanup).cut_back(self.draw.choice(_NAMES))


def check(case: Case) -> None:
    """Run random steps, and compare what is read with the model after each."""
    model = _Model(case.directory / "s", case.random)
    steps: list[Callable[[], None]] = [
        model.open_writer, model.append, model.append, model.append, model.subscribe, model.unsubscribe,
        model.read, model.read, model.read_all, model.trim, model.look, model.cut_back,
    ]  # fmt: skip
    # So that starts are written and segments go within few commits.
    few = case.random.choice([2, 5, 50])
    model.cleanup = CleanupRule(min_trim_commits=few, min_log_entries=few)
    with mock.patch.object(writer, "_LOGGER"):  # fenced writers leave something to tell of
        model.open_writer()
        for _ in range(_STEPS):
            case.random.choice(steps)()
        model.flush()
        model.read_all()
        for opened in model.writers.values():
            opened.close()
        model.look()
