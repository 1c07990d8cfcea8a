"""A checkpoint's recording of its results query: plans, rows, state, and readings of the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.checkpointing.files import Files, LocalFiles, open_files
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import PStream
from penstock.checkpointing.spark_checkpoint import list_numbers, local_path
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.local_engine.inputs import FilesInput, Input
from penstock.local_engine.operators import LocalOperator
from penstock.local_engine.query_log import Offset, read_plan
from penstock.local_engine.start import RESULTS
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.spark_state import read_pointer_files
from penstock.state_store.bucket_store import BucketStore, Pointer
from penstock.state_store.clock_record import Readings, read_clock
from penstock.state_store.descriptions import read_description

__all__ = ["Checkpoint", "RecordedBatch", "Recording"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A pipeline's checkpoint, which is only read.

    Attributes
    ----------
    directory : GraphDirectory
        The directory.
    query : str
        The id of the results' query.
    path : pathlib.Path
        The checkpoint of that query.
    committed : tuple of int
        The committed micro-batches whose plans exist, ascending.
    """

    directory: GraphDirectory
    query: str
    path: Path
    committed: tuple[int, ...]

    @staticmethod
    def open(location: str) -> Checkpoint:
        """Open a checkpoint for reading.

        Raises
        ------
        InvalidUsageError
            If `location` is not on a local disk, or is not a checkpoint with a committed micro-batch.
        CorruptDataError, UnavailableError
            If the checkpoint is damaged, or the file system refuses.
        """
        place = local_path(location)
        if place is None:
            raise InvalidUsageError(
                "only checkpoints on a local disk can be replayed",
                checkpoint=location,
                hint="copy the checkpoint to a local directory",
            )
        directory = GraphDirectory(place)
        query = directory.progress(RESULTS).id if directory.newest("graph") is not None else None
        path = Path(directory.query(RESULTS))
        committed = sorted(list_numbers(path / "commits") & list_numbers(path / "offsets"))
        if query is None or not committed:
            raise InvalidUsageError(
                "there is no checkpoint of a pipeline with a committed micro-batch",
                checkpoint=location,
                hint="give the directory that the pipeline names in query.checkpoint",
            )
        return Checkpoint(directory, query, path, tuple(committed))

    @property
    def state(self) -> Files:
        """The default location of the operators' state; a pipeline may choose a different location."""
        return open_files(self.directory.place("state"))


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A recorded micro-batch, from its plan to its commit.

    Attributes
    ----------
    number : int
        The micro-batch.
    planned_us : int
        The time of the micro-batch's plan.
    starts, ends : list of Offset
        For each source, the range of rows that the micro-batch read.
    before, after : mapping of int to Pointer
        The version of each bucket before and after the micro-batch, by label.
    """

    number: int
    planned_us: int
    starts: list[Offset | None]
    ends: list[Offset | None]
    before: Mapping[int, Pointer] = field(default_factory=dict)
    after: Mapping[int, Pointer] = field(default_factory=dict)

    @property
    def served(self) -> set[int]:
        """The labels of the buckets that ran."""
        return {label for label, pointer in self.after.items() if self.before.get(label) != pointer}


@dataclass(frozen=True, eq=False)
class Recording:
    """The recorded micro-batches of a query, and whether everything that a replay needs still exists.

    Parameters
    ----------
    checkpoint : Checkpoint
        The checkpoint.
    inputs : sequence of Input
        The query's sources.
    streams : sequence of str
        The locations of the sources that are p-streams.
    operator : LocalOperator, optional
        The query's operator with state.
    state : Files, optional
        The directory of that operator's state.
    """

    checkpoint: Checkpoint
    inputs: Sequence[Input]
    streams: Sequence[str]
    operator: LocalOperator | None = None
    state: Files | None = None

    def description(self) -> Mapping[str, Any]:
        """Return the stored description of the operator; empty if there is none."""
        return {} if self.state is None else read_description(self.state) or {}

    def store(self, label: int) -> BucketStore:
        """Return the versions of a bucket."""
        if self.operator is None or self.state is None:
            raise InvalidUsageError("the query has no state")
        bucket = bucket_labels(self.operator.buckets).index(label)
        return BucketStore(self.state.child(f"{bucket:05d}"))

    @lru_cache(maxsize=256)  # noqa: B019  # a recording lives as long as the command
    def batch(self, number: int) -> RecordedBatch:
        """Return a committed micro-batch.

        Raises
        ------
        CorruptDataError
            If the micro-batch's plan is missing or damaged, or the local engine cannot read its pointers.
        InvalidUsageError
            If the micro-batch had a different number of sources.
        """
        path = self.checkpoint.path
        planned_ms, ends = read_plan(path, number)
        sources = len(self.inputs) + (self.operator is not None and self.operator.waits)
        starts: list[Offset | None] = [None] * len(ends)
        if number:
            starts = read_plan(path, number - 1)[1]
        for offsets in (starts, ends):
            if len(offsets) != sources:
                raise InvalidUsageError(
                    "the checkpoint has another number of sources", was=len(offsets), now=sources,
                    hint="give the pipeline that the checkpoint belongs to",
                )  # fmt: skip
        before, after = ({}, {}) if self.operator is None else map(self._pointers, (number - 1, number))
        return RecordedBatch(number, 1000 * planned_ms, starts, ends, before, after)

    def _pointers(self, batch: int) -> dict[int, Pointer]:
        if batch < 0 or self.operator is None:
            return {}
        files = LocalFiles(self.checkpoint.path / "state")
        held = read_pointer_files(files, batch, bucket_labels(self.operator.buckets))
        if held is None:
            raise CorruptDataError(
                "the pointers of a micro-batch cannot be read",
                file=files.location,
                batch=batch,
                hint="Spark deletes old pointers, and only Spark reads pointers in its RocksDB state store",
            )
        return held.get(0, {})

    def clock(self, batch: RecordedBatch, label: int) -> Readings | None:
        """Return the record of the clock for a bucket that ran; None if there is none."""
        return read_clock(self.store(label).files, batch.before.get(label))

    def ended_us(self, batch: RecordedBatch, label: int) -> int | None:
        """Return the end of a micro-batch according to a bucket's state; None if the state is gone."""
        meta = self.facts(label, batch.after.get(label))
        return None if meta is None else meta.get("settled_at_us")

    def facts(self, label: int, pointer: Pointer | None) -> Mapping[str, Any] | None:
        """Return the facts in a version's own file; None if the file is gone."""
        if pointer is None:
            return None
        try:
            return self.store(label).read_version(pointer)[1].meta
        except CorruptDataError:
            return None

    def is_loadable(self, label: int, pointer: Pointer) -> bool:
        """Return whether all files of a version exist."""
        store = self.store(label)
        try:
            handle, _ = store.read_version(pointer)
        except CorruptDataError:
            return False
        there = {facts.name for facts in store.files.list()}
        return all(link.pointer.file_name in there for link in handle.links)

    # ---------------------------------------------------------------------------- what can be replayed

    def lack(self, number: int) -> str | None:
        """Return what is missing, besides the state, to run a micro-batch again; None if it can run."""
        try:
            batch = self.batch(number)
        except CorruptDataError as error:
            return f"{error.fact[0].lower()}{error.fact[1:]}"
        return self._lack_of_rows(batch) or self._lack_of_clock(batch)

    def _lack_of_rows(self, batch: RecordedBatch) -> str | None:
        known = {stream.identity: stream for stream in map(PStream, self.streams)}
        for source, start, end in zip(self.inputs, batch.starts, batch.ends, strict=False):
            if end is None or not source.is_new(start, end):
                continue
            if isinstance(source, FilesInput):
                for file in source.files(start, end):
                    if not file.exists():
                        return "a file of its source is gone"
            elif (stream := known.get(end.get("identity", ""))) is not None:
                # The first micro-batch does not record where it began.
                first = 0 if start is None else int(start["offset"])
                if first < stream.start:
                    return "rows of its p-stream are released"
        return None

    def _lack_of_clock(self, batch: RecordedBatch) -> str | None:
        if self.operator is None or not self.operator.task.operator.follows_clock:
            return None
        if any(self.clock(batch, label) is None for label in batch.served):
            return "the record of its clock is collected"
        return None

    def lack_of_state(self, number: int) -> str | None:
        """Return what is missing of the state before a micro-batch; None if a replay can begin there."""
        try:
            before = self.batch(number).before
        except CorruptDataError:
            return "its plan or its pointers are gone"
        if all(self.is_loadable(label, pointer) for label, pointer in before.items()):
            return None
        return "the versions of the state before it are collected"

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last micro-batch of each range that can be replayed, ascending."""
        whole = [number for number in self.checkpoint.committed if self.lack(number) is None]
        groups: list[list[int]] = [whole[:1]]
        for before, number in pairwise(whole):
            if number != before + 1:
                groups.append([])
            groups[-1].append(number)
        for group in filter(None, groups):
            first = next((number for number in group if self.lack_of_state(number) is None), None)
            if first is not None:
                yield first, group[-1]

    def choose(self, first: int | None, last: int | None) -> range:
        """Return the micro-batches to replay, by default the newest range that can be replayed.

        Raises
        ------
        InvalidUsageError
            If a micro-batch cannot run again.
        """
        newest = self.checkpoint.committed[-1]
        if last is not None and last > newest:
            raise InvalidUsageError("there is no such micro-batch", batch=last, newest=newest)
        if first is None:
            ranges = [one for one in self.ranges() if last is None or one[0] <= last <= one[1]]
            if not ranges:
                raise self._error(newest if last is None else last, "files that it needs are deleted")
            first = ranges[-1][0]
        last = newest if last is None else last
        if first > last:
            raise InvalidUsageError("the range of micro-batches is empty", first=first, last=last)
        for number in range(first, last + 1):
            if number not in self.checkpoint.committed:
                raise self._error(number, "it is not in the checkpoint")
            lack = self.lack(number) or (self.lack_of_state(number) if number == first else None)
            if lack is not None:
                raise self._error(number, lack)
        return range(first, last + 1)

    def _error(self, number: int, lack: str) -> InvalidUsageError:
        ranges = [f"{one} to {other}" if one < other else str(one) for one, other in self.ranges()]
        return InvalidUsageError(
            f"a micro-batch cannot be run again: {lack}",
            batch=number,
            replayable=", ".join(ranges) or "none",
            hint="query.retain_versions keeps more versions and clock records, and a further reader of a "
            "p-stream keeps its rows",
        )
