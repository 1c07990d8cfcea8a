"""Packing of windows' entries: pack fragments of the map side into parcels for their buckets.

Each map-side task sends every bucket a parcel with the task's newest pane, even if the parcel has no rows. So
all buckets of a micro-batch have the same watermark and close the same windows, even buckets whose groups are
idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.wide import schema_like
from penstock.operators.scan.fragments import Fragmenter, merge_fragments
from penstock.operators.scan.fragments.keys import bare_values
from penstock.operators.scan.lookup import Lookup
from penstock.operators.scan.spec import NEWEST, PANE, Fragments
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.packing import mark_side, parcel_row
from penstock.spark_ext.border.parcels import PARCELS, to_parcels
from penstock.state_store.keys.key_index import KeyIndex
from penstock.windows.append.pane_partials import sort_order
from penstock.windows.groups import GroupCodec, GroupSampling
from penstock.windows.layout import ENTRY_PANE

__all__ = [
    "PLACE",
    "WHOLE_GROUP",
    "WHOLE_ROWS",
    "EntryPacker",
    "RowPacker",
    "WholeRows",
    "add_rows",
    "facts_of",
    "look_up",
    "null_time_error",
    "row_fragmenter",
]

MAX_FRAGMENTS = 1 << 20
"""A task emits its fragments when it has this many."""

_NEWEST, _PART = b"newest", b"part"

WHOLE_ROWS = "whole"
"""The side of a parcel with whole rows; see `WholeRows`."""

PLACE = f"{RESERVED_PREFIX}place"
"""The column with the pane, or the time, of a whole row."""

WHOLE_GROUP = f"{RESERVED_PREFIX}group_"
"""The prefix of the columns with the group of a whole row; a number follows."""


def facts_of(batch: pa.RecordBatch) -> tuple[int, int]:
    """Return the newest pane or time of the task that made a parcel, and the task's partition number."""
    facts = batch.schema.metadata
    return int(facts[_NEWEST]), int(facts[_PART])


@dataclass(frozen=True)
class EntryPacker:
    """Makes parcels of fragments. A worker uses it once per partition.

    Parameters
    ----------
    pane_steps : int
        The length of a pane in units of the time column.
    schema : pyarrow.Schema
        The schema of pane partials; see `WindowLayout.pane_schema`.
    buckets : int
        Number of buckets.
    delayed : Fragments, optional
        The definition of the fragments, if each fragment has the newest time of its rows.
    newest : str, optional
        The column with the newest time of an entry, if the watermark is a time, not a pane.
    sampling : GroupSampling
        The rule that decides whether groups have many entries.
    """

    pane_steps: int
    schema: pa.Schema
    buckets: int
    delayed: Fragments | None = None
    newest: str | None = None
    sampling: GroupSampling = field(default_factory=GroupSampling)

    @classmethod
    def build(
        cls, fragments: Fragments, schema: pa.Schema, buckets: int, *, newest: str | None = None
    ) -> EntryPacker:
        """Return the packer of fragments with a schema."""
        fields = [
            *(schema.field(name) for name in fragments.group_by),
            pa.field(ENTRY_PANE, pa.int64()),
            *(schema.field(partial.name) for partial in fragments.without_watermark.partials),
        ]
        with_time = fragments if fragments.delay_ms else None
        return cls(fragments.pane_steps, pa.schema(fields), buckets, with_time, newest)

    def pack(
        self, fragments: Iterable[pa.RecordBatch], dropped: Callable[[], int] = lambda: 0
    ) -> Iterator[pa.RecordBatch]:
        """Return the parcels of a task's fragments; `dropped` is called last and counts dropped rows.

        Parcels among the fragments are returned unchanged.
        """
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        newest: int | None = None
        last: pa.RecordBatch | None = None
        for batch in fragments:
            if not batch.num_rows:
                continue
            if batch.schema.names == PARCELS.names:
                yield batch
                continue
            if last is not None:
                yield from self._parcels(last, {_PART: str(part).encode(), _NEWEST: str(newest).encode()})
            last = self._to_pane_partials(batch)
            batch_newest = self._newest(batch, last)
            newest = batch_newest if newest is None else max(newest, batch_newest)
        if last is not None:
            facts = {_PART: str(part).encode(), _NEWEST: str(newest).encode()}
            yield from self._parcels(last, facts, everywhere=True)
        left_out = dropped()
        if left_out:
            yield parcel_row(bucket_labels(self.buckets)[0], left_out, None)

    def _newest(self, batch: pa.RecordBatch, entries: pa.RecordBatch) -> int:
        """Return the newest time or the newest pane.

        The newest pane is the watermark's pane plus the delay, rounded up.
        """
        if self.newest is not None:
            return int(np.max(entries.column(self.newest).to_numpy()))
        if self.delayed is None:
            return int(np.max(entries.column(ENTRY_PANE).to_numpy()))
        newest = int(np.max(bare_values(batch.column(NEWEST))))
        return self.delayed.watermark(newest) - -self.delayed.delay_ms // self.delayed.pane_ms

    def _to_pane_partials(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        panes = bare_values(batch.column(PANE)).astype(np.int64, copy=False) // self.pane_steps
        columns = [
            pa.array(panes) if name == ENTRY_PANE else batch.column(name) for name in self.schema.names
        ]
        return cast_to_schema(
            pa.RecordBatch.from_arrays(columns, self.schema.names), schema_like(self.schema, batch.schema)
        )

    def _parcels(
        self, entries: pa.RecordBatch, facts: dict[bytes, bytes], *, everywhere: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Split entries into parcels by bucket; with `everywhere`, idle buckets get empty parcels."""
        order, bounds = self._sort_by_bucket(entries)
        # The indices are a permutation; bounds checks would take a third of the time.
        sorted_entries = pc.take(entries, pa.array(order), boundscheck=False).replace_schema_metadata(facts)
        for bucket, label in enumerate(bucket_labels(self.buckets)):
            begin, end = int(bounds[bucket]), int(bounds[bucket + 1])
            if begin == end and not everywhere:
                continue
            for payload in to_parcels([sorted_entries.slice(begin, end - begin)]):
                yield parcel_row(label, 0, payload)

    def _sort_by_bucket(self, entries: pa.RecordBatch) -> tuple[Integers, Integers]:
        """Return the indices of entries sorted by bucket, and the buckets' offsets.

        If groups have many entries, the entries of a bucket are also sorted by group. This saves work in the
        operator.
        """
        names = self.schema.names[: self.schema.names.index(ENTRY_PANE)]
        groups = [entries.column(name) for name in names]
        codec = GroupCodec([self.schema.field(name) for name in names], self.sampling)
        if codec.repeats(groups, entries.num_rows):
            index = KeyIndex()
            ids = codec.numbers(index, groups, entries.num_rows)
            buckets = index.keys.bucket(self.buckets)
            places = np.empty(len(index), np.int64)
            places[np.argsort(buckets, kind="stable")] = np.arange(len(index))
            numbers, ranks = buckets[ids], places[ids]
        else:
            ranks = numbers = codec.encode(groups, entries.num_rows).bucket(self.buckets)
        sizes = np.bincount(numbers, minlength=self.buckets)
        return sort_order(ranks, np.arange(len(ranks))), np.append(0, np.cumsum(sizes))


def look_up(
    fragments: Fragments, lookup: Lookup, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Look up fragments in a table; if possible, merge those whose pane and group are then equal.

    Parameters
    ----------
    fragments : Fragments
        The definition of the fragments after the lookup.
    lookup : Lookup
        The lookup.
    batches : iterable of RecordBatch
        The fragments before the lookup.
    """
    # Fragments with a first or last value cannot be merged, because they do not hold the time of the value.
    has_times = any(partial.kind in ("first", "last") for partial in fragments.partials)
    keeps_fragments = has_times or set(lookup.on) <= set(fragments.group_by)
    for batch in batches:
        joined = lookup.join(batch)
        yield joined if keeps_fragments or not joined.num_rows else merge_fragments(fragments, [joined])


def row_fragmenter(rows: pa.Schema, fragments: Fragments) -> Fragmenter:
    """Return the fragmenter of rows. The expressions of its partials are column names, or ``*``.

    Raises
    ------
    InvalidUsageError
        If the types do not support a partial.
    """
    types = {name: rows.field(name).type for name in (fragments.time, *fragments.group_by)}
    types |= {
        partial.name: pa.int64() if partial.expression == "*" else rows.field(partial.expression).type
        for partial in fragments.partials
    }
    return Fragmenter(fragments, types)


def add_rows(fragmenter: Fragmenter, fragments: Fragments, rows: pa.RecordBatch) -> None:
    """Fold rows into a `row_fragmenter`."""
    fragmenter.add(
        rows.column(fragments.time),
        [rows.column(name) for name in fragments.group_by],
        [
            None if partial.expression == "*" else rows.column(partial.expression)
            for partial in fragments.partials
        ],
    )


def null_time_error(rows: int) -> InvalidUsageError:
    """Return the error for rows without a time."""
    return InvalidUsageError(
        "rows without a time",
        rows=rows,
        hint="filter them out first, or set nulls to drop, which counts them",
    )


@dataclass(frozen=True)
class WholeRows:
    """Sends whole rows in addition to their fragments, so that a bucket can find the late rows.

    A row goes to the bucket of its group, however Spark divides a micro-batch.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns of the whole rows. In the input of a packer, they follow the packer's own columns.
    steps : int
        The length of a pane in units of the time column.
    buckets : int
        The number of buckets.
    group_by : tuple of str
        The group's columns. The packer's own columns include them.
    """

    schema: pa.Schema
    steps: int
    buckets: int
    group_by: tuple[str, ...]

    def parcels(
        self, batch: pa.RecordBatch, input_rows: pa.RecordBatch, time: str
    ) -> Iterator[pa.RecordBatch]:
        """Return the parcels of a packer's input.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            The packer's input; the last columns are the columns of the whole rows.
        input_rows : pyarrow.RecordBatch
            The packer's own columns.
        time : str
            The packer's column of the time.
        """
        rows = cast_to_schema(
            batch.select(range(batch.num_columns - len(self.schema), batch.num_columns)), self.schema
        )
        times, groups = input_rows.column(time), input_rows.select(list(self.group_by))
        panes = times.cast(pa.int64()).fill_null(0).to_numpy() // self.steps
        missing = times.is_null().to_numpy(zero_copy_only=False)
        placed = mark_side(rows.append_column(PLACE, pa.array(panes, mask=missing)), WHOLE_ROWS)
        for number, column in enumerate(groups.columns):
            placed = placed.append_column(f"{WHOLE_GROUP}{number}", column)
        numbers = GroupCodec(list(groups.schema)).encode(groups.columns, rows.num_rows).bucket(self.buckets)
        for bucket, label in enumerate(bucket_labels(self.buckets)):
            mine = numbers == bucket
            if mine.any():
                for payload in to_parcels([placed.filter(pa.array(mine))]):
                    yield parcel_row(label, 0, payload)


@dataclass(frozen=True)
class RowPacker:
    """Makes parcels of rows, for ``mapInArrow``. A worker calls it once per partition.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the rows: the time column, the group columns, and one column for each aggregated
        expression, named after the expression.
    fragments : Fragments
        The fragments to make; expressions are column names, or ``*``.
    packer : EntryPacker
        Makes parcels of the fragments.
    nulls : str
        ``"error"`` or ``"drop"``: the treatment of rows without a time.
    whole : WholeRows, optional
        Sends whole rows in addition to fragments.
    """

    schema: pa.Schema
    fragments: Fragments
    packer: EntryPacker
    nulls: str
    whole: WholeRows | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the parcels of one partition's rows."""
        fragmenter = row_fragmenter(self.schema, self.fragments)
        fragments = self._fragments(fragmenter, batches)
        yield from self.packer.pack(fragments, lambda: fragmenter.null_times)

    def _fragments(
        self, fragmenter: Fragmenter, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = cast_to_schema(batch.select(range(len(self.schema))), self.schema)
            add_rows(fragmenter, self.fragments, rows)
            if fragmenter.null_times and self.nulls == "error":
                raise null_time_error(fragmenter.null_times)
            if self.whole is not None:
                yield from self.whole.parcels(batch, rows, self.fragments.time)
            if fragmenter.count >= MAX_FRAGMENTS:
                yield fragmenter.finish()
        yield fragmenter.finish()
