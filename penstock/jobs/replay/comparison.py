"""Compare replayed micro-batches with the records in the checkpoint, the sink and the metrics file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.checkpointing import PUnit
from penstock.checkpointing.files import absolute_location
from penstock.checkpointing.p_stream import PStream
from penstock.checkpointing.spark_checkpoint import local_path
from penstock.conf.pipeline import ParquetSink, Pipeline, PStreamSink
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.replay.run import Replay, ReplayedBatch
from penstock.local_engine.query_log import EntryLog
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.procedures.requests.client import ANSWERS_PLACE
from penstock.spark_ext.worker.requests import answer_writer
from penstock.state_store.bucket_store import BucketStore, Pointer
from penstock.units import NEVER

__all__ = ["Comparison", "Difference", "read_answers", "read_metrics", "read_results"]

_COUNTS = ("rows_in", "conflated", "late", "duplicates", "dropped", "emitted", "waiting_keys", "keys")
_STALENESS = ("avg", "p50", "p95", "max")
_BY_CLOCK = {
    f"{RESERVED_PREFIX}{name}"
    for name in ("arrived", "seen_us", "interval_us", "interval", "dequeued_us", "delivered_us", "rank",
                 "start", "share")
}  # fmt: skip
"""The columns of a queue's state that depend on the clock, or hold positions."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a micro-batch that differs.

    Attributes
    ----------
    what : str
        ``rows``, ``answers``, ``state``, or the name of a count or a staleness figure.
    recorded, replayed : float
        The recorded and the replayed number. For rows, answers and state: the number of rows that only the
        recording has, and the number that only the replay has.
    examples : tuple of str
        For rows, answers and state, some of these rows, with - for recorded rows and + for replayed rows.
    """

    what: str
    recorded: float
    replayed: float
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the difference as text."""
        if self.what in ("rows", "answers", "state"):
            return f"{self.what}: {self.recorded:g} missing, {self.replayed:g} new"
        return f"{self.what}: {self.replayed:g}, was {self.recorded:g}"


@dataclass(frozen=True)
class Comparison:
    """Compares micro-batches of a replay.

    Parameters
    ----------
    replay : Replay
        A replay with the recorded policy.
    pipeline : Pipeline
        The pipeline, which names its sink and its metrics file.
    shown : int
        The number of rows to give as examples.
    """

    replay: Replay
    pipeline: Pipeline
    shown: int = 3
    _metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the metrics file."""
        self._metrics.update(read_metrics(self.pipeline, self.replay.recorded.recording.checkpoint.query))

    def list_records(self, batch: ReplayedBatch) -> list[str]:
        """Return the names of the records with which a micro-batch can be compared."""
        number = batch.recorded.number
        results = read_results(
            self.pipeline, self.replay.recorded.recording.checkpoint.query, number, batch.results.schema
        )
        found = [] if results is None else ["rows"]
        if self._read_answers(batch) is not None:
            found.append("answers")
        if self.replay.query.operator is not None:
            found.append("state")
        if number in self._metrics:
            found += ["counts", "staleness"] if batch.has_clock else ["counts"]
        return found

    def differences(self, batch: ReplayedBatch) -> list[Difference]:
        """Return the differences between a micro-batch and the recorded micro-batch."""
        return [
            *self._differ_in_rows(batch),
            *self._differ_in_answers(batch),
            *self._differ_in_state(batch),
            *self._differ_in_metrics(batch),
        ]

    def _differ_in_rows(self, batch: ReplayedBatch) -> Iterator[Difference]:
        query = self.replay.recorded.recording.checkpoint.query
        theirs = read_results(self.pipeline, query, batch.recorded.number, batch.results.schema)
        if theirs is not None:
            yield from self._differ("rows", theirs, batch.results)

    def _differ_in_answers(self, batch: ReplayedBatch) -> Iterator[Difference]:
        theirs = self._read_answers(batch)
        if theirs is not None and batch.answers is not None:
            yield from self._differ("answers", theirs, batch.answers)

    def _read_answers(self, batch: ReplayedBatch) -> pa.Table | None:
        """Return the published answers to a micro-batch's requests; None if they are unknown."""
        database, recording = self.pipeline.database, self.replay.recorded.recording
        if batch.answers is None or database is None or database.requests is None:
            return None
        if recording.operator is None:
            return None
        try:
            stream = PStream(f"{absolute_location(database.requests).rstrip('/')}/{ANSWERS_PLACE}")
        except InvalidUsageError:
            return None
        return read_answers(
            stream, recording.checkpoint.query, batch.recorded.number, recording.operator.buckets
        )

    def _differ_in_state(self, batch: ReplayedBatch) -> Iterator[Difference]:
        recording = self.replay.recorded.recording
        theirs, ours = [], []
        for label in sorted(batch.recorded.after.keys() | batch.pointers.keys()):
            pointer = batch.recorded.after.get(label)
            if pointer is None or not recording.is_loadable(label, pointer):
                continue
            theirs += self._rows_of(recording.store(label), pointer, self.replay.recorded)
            own = batch.pointers.get(label)
            ours += [] if own is None else self._rows_of(self.replay.store(label), own, self.replay.query)
        if theirs or ours:
            yield from self._differ_in_lines("state", theirs, ours)

    def _rows_of(self, store: BucketStore, pointer: Pointer, query: Any) -> list[str]:
        state = query.operator.task.operator.new_state()
        try:
            store.load(pointer, state)
            units = list(state.snapshot())
            if isinstance(state, KeyedQueue):
                return [line for unit in units for line in _lines_of_unit(unit)]
            meta = units[-1].meta
            return [f"{name}: {meta[name]}" for name in ("rows", "waiting", "expired") if name in meta]
        finally:
            state.close()

    def _differ_in_metrics(self, batch: ReplayedBatch) -> Iterator[Difference]:
        theirs = self._metrics.get(batch.recorded.number)
        if theirs is None:
            return
        ours = batch.metrics.summary()
        for name in _COUNTS:
            if theirs.get(name, 0) != ours[name]:
                yield Difference(name, theirs.get(name, 0), ours[name])
        if batch.has_clock:
            for name in _STALENESS:
                was, now = (one["application_staleness_ms"].get(name, 0.0) for one in (theirs, ours))
                if abs(was - now) > 1e-3 * max(1.0, was):  # a histogram may be summed in a different order
                    yield Difference(f"staleness {name}", was, now)

    def _differ(self, what: str, theirs: pa.Table, ours: pa.Table) -> Iterator[Difference]:
        yield from self._differ_in_lines(what, _lines(theirs), _lines(ours))

    def _differ_in_lines(self, what: str, theirs: list[str], ours: list[str]) -> Iterator[Difference]:
        was, now = Counter(theirs), Counter(ours)
        lost, new = was - now, now - was
        if lost or new:
            examples = [f"- {line}" for line in sorted(lost)[: self.shown]]
            examples += [f"+ {line}" for line in sorted(new)[: self.shown]]
            yield Difference(what, lost.total(), new.total(), tuple(examples))


def _lines(table: pa.Table) -> list[str]:
    """Return each row as a text; equal rows have equal texts."""
    return [
        ", ".join(f"{name.removeprefix(RESERVED_PREFIX)}={_shown(value)}" for name, value in row.items())
        for row in table.to_pylist()
    ]


def _shown(value: Any) -> str:
    """Return a value as text; `NEVER` stands for a time that a state lacks."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return "none" if isinstance(value, int) and value == NEVER else repr(value)


def _lines_of_unit(unit: PUnit) -> list[str]:
    """Return the rows of a queue's state: its keys, and the waiting tuples with their keys."""
    lines: list[str] = []
    key_rows = pa.table(unit.blocks[KEY_BLOCK])
    for block in unit.blocks.values():
        table = pa.table(block)
        if OWNER in table.column_names:
            keys = key_rows.take(table.column(OWNER))
            for name in keys.column_names:
                if name not in table.column_names:
                    table = table.append_column(name, keys.column(name))
            table = table.drop_columns([OWNER])
        lines += _lines(table.select([name for name in table.column_names if name not in _BY_CLOCK]))
    return lines


def read_metrics(pipeline: Pipeline, query: str) -> dict[int, Mapping[str, Any]]:
    """Return the metrics of each micro-batch in the pipeline's metrics file, if the file exists."""
    if pipeline.query.metrics is None or not (file := Path(pipeline.query.metrics)).exists():
        return {}
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the last line of a killed process
        if entry.get("query_id") == query and "application_staleness_ms" in entry:
            found[int(entry["batch_id"])] = entry
    return found


def read_results(pipeline: Pipeline, query: str, batch: int, schema: pa.Schema) -> pa.Table | None:
    """Return the rows that the sink took from a micro-batch; None if the rows are unknown or no longer exist.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    sink = pipeline.sink
    if isinstance(sink, PStreamSink):
        return _rows_of_commit(sink.path, query, batch)
    if isinstance(sink, ParquetSink) and (place := local_path(sink.path)) is not None:
        return _rows_of_files(place, query, batch, schema)
    return None


def _rows_of_commit(path: str, query: str, batch: int) -> pa.Table | None:
    try:
        stream = PStream(path)
    except InvalidUsageError:
        return None
    own = {commit.batch: commit for commit in stream.log.commits if commit.writer == query}
    if batch in own:
        commit = own[batch]
        return pa.Table.from_batches(list(stream.read(commit.offset, commit.end)), stream.schema)
    # A micro-batch without rows makes no commit.
    between = min(own, default=batch) < batch < max(own, default=batch)
    return stream.schema.empty_table() if between else None


def read_answers(stream: PStream, query: str, batch: int, buckets: int) -> pa.Table | None:
    """Return the answers that the buckets of a query published for a micro-batch; None if some are gone."""
    writers = {answer_writer(query, bucket) for bucket in range(buckets)}
    commits = [commit for commit in stream.log.commits if commit.writer in writers]
    # The buckets of a micro-batch commit after all buckets of the previous micro-batch.
    is_cut = (stream.log.commits[0].offset if stream.log.commits else stream.end) > 0
    if is_cut and (not commits or batch <= commits[0].batch):
        return None
    found = [stream.schema.empty_table()]
    for commit in commits:
        if commit.batch == batch:
            if commit.offset < stream.start:
                return None
            found.append(pa.Table.from_batches(stream.read(commit.offset, commit.end), stream.schema))
    return pa.concat_tables(found)


def _rows_of_files(place: Path, query: str, batch: int, schema: pa.Schema) -> pa.Table | None:
    # The local engine names a file by its micro-batch; Spark's log lists a micro-batch's files until it is
    # compacted.
    own = place / f"part-{batch:05}-{query}.parquet"
    if own.exists():
        return pq.read_table(own)
    log = place / "_spark_metadata"
    if not (log / str(batch)).exists():
        return None
    paths = [local_path(entry["path"]) for entry in EntryLog(log).entries(batch - 1, batch)]
    files = [path for path in paths if path is not None and path.exists()]
    if len(files) < len(paths):
        raise CorruptDataError("a file of the sink is missing", location=place, batch=batch)
    return pa.concat_tables([pq.read_table(file) for file in files]) if files else schema.empty_table()
