"""The fragment function of a window: partial aggregates of panes and groups (Scabbard §2.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.moments import deviation_columns, deviation_sources
from penstock.operators.aggregates.wide import concat_unified
from penstock.operators.scan.fragments import fragment_kernels
from penstock.operators.scan.fragments.accumulators import Accumulator, Nulls, Row, SlotRuns, new_accumulator
from penstock.operators.scan.fragments.keys import Codes, bare_values, integer_type
from penstock.operators.scan.spec import PANE, Fragments

__all__ = ["Fragmenter", "merge_fragments", "merge_stretches"]


class Fragmenter:
    """Fold rows into fragments, some tens of thousands of rows at a time.

    One thread uses it, for one call of a reader.

    Parameters
    ----------
    fragments : Fragments
        The fragments to compute.
    types : mapping of str to pyarrow.DataType
        Types of the time column, of the group columns, and of each partial's values by the partial's name.
    initial_slots, initial_places : int
        Initial number of slots, and of places in the hash table. Both grow.

    Raises
    ------
    InvalidUsageError
        If a partial does not support its values' type, or the time is neither integer nor timestamp.
    """

    def __init__(
        self,
        fragments: Fragments,
        types: Mapping[str, pa.DataType],
        *,
        initial_slots: int = 1024,
        initial_places: int = 2048,
    ) -> None:
        self._fragments, self._types = fragments, types
        self._initial_slots, self._initial_places = initial_slots, initial_places
        if integer_type(types[fragments.time]) is None:
            raise InvalidUsageError(
                "the time of a pane is neither a timestamp nor a signed integer",
                column=fragments.time,
                type=str(types[fragments.time]),
            )
        self.null_times = 0
        """The number of rows that are in no fragment because their time is null."""
        self._finished: list[pa.RecordBatch] = []
        self._start()
        names = [PANE, *fragments.group_by, *(partial.name for partial in fragments.partials)]
        self.schema = self._collect().select(names).schema
        """The schema of the fragments."""

    def _start(self) -> None:
        group_by = self._fragments.group_by
        self._codes = [Codes(self._types[name]) for name in group_by]
        self._accumulators: list[Accumulator] = [
            Nulls() if partial.kind == "count" else new_accumulator(partial, self._types[partial.name])
            for partial in self._fragments.partials
        ]
        self._state = np.array([1, 0, 1, 0], np.int64)
        self._by_runs = self._hashed = False
        self._table = np.zeros(self._initial_places, np.int32)
        self._counts = np.zeros(self._initial_slots, np.int64)
        self._panes = np.zeros(self._initial_slots, np.int64)
        self._groups = np.zeros((max(len(group_by), 1), self._initial_slots), np.int64)

    # ---------------------------------------------------------------------------------------- rows

    def add(
        self,
        time: pa.Array[Any],
        groups: Iterable[pa.Array[Any]],
        values: Iterable[pa.Array[Any] | None],
        mask: npt.NDArray[np.bool_] | None = None,
        row_times: Mapping[str, pa.Array[Any]] | None = None,
    ) -> None:
        """Fold rows.

        Parameters
        ----------
        time, groups, values : pyarrow.Array
            The time, the group columns, and the values of each partial; None for ``count(*)``.
        mask : array of bool, optional
            The rows to fold; by default all.
        row_times : mapping of str to pyarrow.Array, optional
            The times that order the values of a ``first`` or ``last`` partial, by name; by default `time`.
        """
        if time.null_count:
            there = time.is_valid().to_numpy(zero_copy_only=False)
            self.null_times += int((~there).sum() if mask is None else (mask & ~there).sum())
            mask = there if mask is None else mask & there
        times = bare_values(time)
        columns = list(values)
        if self._by_runs and self._state[0] > 1 and mask is not None:
            # The slots of runs are not in the table, so `_slots` may give their pane a second slot.
            self._state[3] = 1
        self._by_runs = mask is None and not self._codes
        if self._by_runs:
            runs = self._runs(times)
            fragment_kernels.add_count_of_runs(runs.starts, runs.slots, runs.rows, self._counts)
            count = int(self._state[0])
            left = [
                not accumulator.add_runs(runs, column, count)
                for accumulator, column in zip(self._accumulators, columns, strict=True)
            ]
            slots = runs.spread() if any(left) else runs.slots
        else:
            slots = self._slots(times, self._keys(list(groups), len(times)), mask)
            count = int(self._state[0])
            left = [True] * len(columns)
        inputs = zip(self._fragments.partials, self._accumulators, columns, left, strict=True)
        for partial, accumulator, column, is_left in inputs:
            if not is_left:
                continue
            by = bare_values(row_times[partial.name]) if row_times and partial.name in row_times else times
            accumulator.add(slots, by, column, count)

    def _keys(self, groups: list[pa.Array[Any]], rows: int) -> npt.NDArray[np.int64]:
        """Return the groups of rows as integers, (columns, rows)."""
        if any(codes.direct and group.null_count for codes, group in zip(self._codes, groups, strict=True)):
            # From now on, values of this column are numbered, so finish the earlier fragments first.
            self._finish()
            for codes, group in zip(self._codes, groups, strict=True):
                codes.direct = codes.direct and not group.null_count
        columns = [codes.encode(group) for codes, group in zip(self._codes, groups, strict=True)]
        if self._numbered and len(self._codes[0]) >= len(self._table):
            # There are more numbers than places in the table, so numbers are hashed from now on.
            self._hashed = True
            self._enter(len(self._table))
        if not columns:
            return np.zeros((1, rows), np.int8)
        return columns[0].reshape(1, rows) if len(columns) == 1 else np.stack(columns, dtype=np.int64)

    def _runs(self, times: npt.NDArray[Any]) -> SlotRuns:
        """Return the slots of rows without group columns, as runs."""
        found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]] = []
        begin = 0
        while begin < len(times):
            room = min(len(times) - begin, len(self._panes) + 1)
            starts, slots = np.empty(room, np.int64), np.empty(room, np.int32)
            runs, begin = fragment_kernels.find_runs(
                times, self._fragments.pane_steps, self._state, self._panes, begin, starts, slots
            )
            found.append((starts[:runs], slots[:runs]))
            if begin < len(times):
                self._grow()
        if not found:
            return SlotRuns(np.empty(0, np.int64), np.empty(0, np.int32), 0)
        starts, slots = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return SlotRuns(starts, slots, len(times))

    def _slots(
        self, times: npt.NDArray[Any], keys: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.int32]:
        slots = np.empty(len(times), np.int32)
        masked = mask is not None
        if mask is None:
            mask = np.empty(0, np.bool_)
        steps, begin = self._fragments.pane_steps, 0
        while True:
            arguments = steps, self._state, self._table, self._panes, self._groups, self._counts, begin, slots
            if keys.shape[0] == 1:
                begin = fragment_kernels.find_slots_of_one(
                    times, mask, masked, keys[0], self._numbered, *arguments
                )
            else:
                begin = fragment_kernels.find_slots(times, mask, masked, keys, *arguments)
            if begin == len(times):
                return slots
            self._grow()

    @property
    def _numbered(self) -> bool:
        """Return whether the number of a group is its place in the table; changes only with a new table."""
        return len(self._codes) == 1 and not self._codes[0].direct and not self._hashed

    def _enter(self, size: int) -> None:
        """Create a new table with the slots of the current pane."""
        self._table = np.zeros(size, np.int32)
        fragment_kernels.enter(
            self._table, self._groups, int(self._state[2]), int(self._state[0]), self._numbered
        )

    def _grow(self) -> None:
        count, first = int(self._state[0]), int(self._state[2])
        if count >= len(self._panes):
            size = len(self._panes)
            panes, groups = self._panes, self._groups
            self._counts = np.concatenate([self._counts, np.zeros(size, np.int64)])
            self._panes = np.empty(2 * size, np.int64)
            self._groups = np.empty((len(groups), 2 * size), np.int64)
            self._panes[:size], self._groups[:, :size] = panes, groups
        if count - first >= len(self._table) // 2:
            self._enter(4 * len(self._table))

    # ------------------------------------------------------------------------------------- results

    def _collect(self) -> pa.RecordBatch:
        """Return the fragments so far, with the time of each first or last value."""
        count = int(self._state[0])
        kind = self._types[self._fragments.time]
        panes = pa.array(self._panes[1:count]).cast(integer_type(kind)).view(kind)
        groups = [codes.values(self._groups[i, 1:count]) for i, codes in enumerate(self._codes)]
        rows = pa.array(self._counts[1:count])
        partials = [
            pc.subtract(rows, accumulator.result(count))
            if isinstance(accumulator, Nulls)
            else accumulator.result(count)
            for accumulator in self._accumulators
        ]
        names = [PANE, *self._fragments.group_by, *(partial.name for partial in self._fragments.partials)]
        for partial, accumulator in zip(self._fragments.partials, self._accumulators, strict=True):
            if isinstance(accumulator, Row):
                partials.append(pa.array(accumulator.times[1:count]))
                names.append(_time_of(partial.name))
        return pa.RecordBatch.from_arrays([panes, *groups, *partials], names)

    def _finish(self) -> None:
        if self._state[0] > 1:
            self._finished.append(self._collect())
        disordered = bool(self._state[3])
        self._start()
        self._state[3] = disordered

    @property
    def count(self) -> int:
        """Approximate number of fragments so far."""
        return int(self._state[0]) - 1 + sum(batch.num_rows for batch in self._finished)

    def finish(self) -> pa.RecordBatch:
        """Return the fragments of all rows, one per pane and group, and reset."""
        self._finish()
        batches, self._finished = self._finished, []
        disordered, self._state[3] = bool(self._state[3]), 0
        if not batches:
            return pa.RecordBatch.from_pylist([], self.schema)
        if len(batches) > 1 or disordered:
            times = {
                partial.name: _time_of(partial.name)
                for partial, accumulator in zip(self._fragments.partials, self._accumulators, strict=True)
                if isinstance(accumulator, Row)
            }
            return merge_fragments(self._fragments, batches, times).select(self.schema.names)
        return batches[0].select(self.schema.names)


def _time_of(name: str) -> str:
    return f"time of {name}\0"


def merge_stretches(fragments: Fragments, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Merge the fragments of consecutive stretches of a stream into one per pane and group.

    The stream is nearly ordered by time, so few panes are in several stretches. Only the fragments of these
    panes are combined.

    Parameters
    ----------
    fragments : Fragments
        The definition of the fragments.
    batches : sequence of RecordBatch
        The fragments of each stretch, one per pane and group.
    """
    batches = [batch for batch in batches if batch.num_rows]
    panes = [bare_values(batch[PANE]) for batch in batches]
    lows, highs = [pane.min() for pane in panes], [pane.max() for pane in panes]
    alone: list[pa.RecordBatch] = []
    shared: list[pa.RecordBatch] = []
    for number, (batch, starts) in enumerate(zip(batches, panes, strict=True)):
        others = np.zeros(len(starts), np.bool_)
        for other in range(len(batches)):
            if other != number:
                others |= (lows[other] <= starts) & (starts <= highs[other])
        if not others.any():
            alone.append(batch)
            continue
        shared.append(batch.filter(pa.array(others)))
        alone.append(batch.filter(pa.array(~others)))
    return [*alone, merge_fragments(fragments, shared)] if shared else alone


def merge_fragments(
    fragments: Fragments, batches: Iterable[pa.RecordBatch], times: Mapping[str, str] | None = None
) -> pa.RecordBatch:
    """Merge fragments into one per pane and group.

    Parameters
    ----------
    fragments : Fragments
        The definition of the fragments.
    batches : iterable of RecordBatch
        At least one batch; additional columns are dropped.
    times : mapping of str to str, optional
        For each ``first`` or ``last`` partial, the column with the time of its value. By default, earlier
        batches are earlier in time.
    """
    whole = concat_unified(list(batches))
    order = np.argsort(bare_values(whole[PANE]), kind="stable")
    whole = whole.take(pa.array(order))
    again = replace(
        fragments,
        time=PANE,
        group_by=tuple(fragments.group_by),
        partials=tuple(partial.combining for partial in fragments.partials),
    )
    values = {field.name: whole[field.name] for field in whole.schema}
    values |= {
        name: deviation_columns(whole, name, *rest)
        for name, rest in deviation_sources(fragments.partials).items()
    }
    fragmenter = Fragmenter(again, {name: column.type for name, column in values.items()})
    fragmenter.add(
        values[PANE],
        [values[name] for name in fragments.group_by],
        [values[partial.name] for partial in fragments.partials],
        row_times={name: whole[column] for name, column in (times or {}).items()},
    )
    fragment = fragmenter.finish()
    return pa.RecordBatch.from_arrays(fragment.columns, fragment.schema.names)
