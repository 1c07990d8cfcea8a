"""Combine windows of many groups by window inside their bucket, so that few rows leave the bucket.

The next operator often works on one window at a time: an aggregate of all groups, or the groups with the
maximum. Each bucket has all closing windows of its groups. So it can aggregate or prune them before rows
cross to Spark, where a row costs a hundred times as much.

A **window group** is a window and a group of the next aggregate. Window groups are numbered from 1, so a
partial aggregate is an array indexed by these numbers. Masked rows have number 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregates.moments import deviation_columns, deviation_sources
from penstock.operators.aggregates.wide import cast_sums
from penstock.operators.scan.fragments import fragment_kernels
from penstock.operators.scan.fragments.accumulators import Accumulator, Nulls, new_accumulator, skip_nulls
from penstock.operators.scan.fragments.keys import bare_values
from penstock.operators.scan.spec import PANE, Fragments, Partial
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import KeyIndex
from penstock.windows.append import sliding_kernels
from penstock.windows.finish import Finish, WindowRows
from penstock.windows.groups import GroupCodec
from penstock.windows.layout import START, ClosedWindows, WindowLayout

__all__ = ["ACCUMULATED_KINDS", "Extremes", "NumberingLimits", "WindowAccumulator"]

ACCUMULATED_KINDS = frozenset({"count", "sum", "m2", "min", "max"})
"""Kinds of partials of fixed size that do not depend on the order of groups."""


@dataclass(frozen=True, slots=True)
class NumberingLimits:
    """The limits up to which all possible window groups are numbered.

    All possible window groups get numbers if there are at most ``max_empty + max_per_row * rows`` of them.
    Otherwise only window groups with rows get numbers.
    """

    max_empty: int = 1024
    max_per_row: int = 4


_NO_GROUPS = np.zeros(0, np.int64)

_WindowGroups: TypeAlias = npt.NDArray[np.int32]
_Column: TypeAlias = "pa.Array[Any]"


@dataclass(frozen=True)
class Extremes:
    """Prune windows that do not have the maximum or minimum value of their bucket.

    A global maximum is also its bucket's maximum, so pruning is safe.

    Parameters
    ----------
    layout : WindowLayout
        Layout of the windows.
    value : str
        The compared partial: an integer or a float. As in Spark, NaN is greater than all other values.
        Windows whose compared value is null are pruned.
    greatest : bool
        Whether windows with the maximum are kept. Otherwise windows with the minimum are kept.
    by : tuple of str
        Only windows with equal values in these group columns are compared.
    """

    layout: WindowLayout
    value: str
    greatest: bool
    by: tuple[str, ...] = ()

    @property
    def partials(self) -> None:
        """All partials; see `WindowEmitter.partials`."""
        return None

    def __call__(self, closed: ClosedWindows) -> pa.RecordBatch:
        """Return the windows that have the extreme value."""
        places = [self.layout.groups.get_field_index(name) for name in self.by]
        numbers = self._numbers([closed.groups[place] for place in places])
        of = None if numbers is None else numbers[closed.of.to_numpy()]
        windows = closed.batch(self.layout)
        indices = self._find_extremes(of, closed.starts.to_numpy(), windows.column(self.value))
        return windows.take(pa.array(indices))

    def collect(self, parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the windows that have the overall extreme value."""
        if len(parts) < 2:
            return parts
        whole = pa.concat_batches(parts)
        numbers = self._numbers([whole.column(name) for name in self.by])
        indices = self._find_extremes(numbers, whole.column(START).to_numpy(), whole.column(self.value))
        return [whole.take(pa.array(indices))]

    def _numbers(self, columns: Sequence[_Column]) -> Integers | None:
        """Return group numbers; None if all rows are one group."""
        if not columns:
            return None
        codec = GroupCodec([self.layout.groups.field(name) for name in self.by])
        return codec.numbers(KeyIndex(), list(columns), len(columns[0]))

    def _find_extremes(self, groups: Integers | None, starts: Integers, values: _Column) -> Integers:
        """Return the indices of windows with the extreme value, in order."""
        (window_groups,), keys = _number_window_groups([groups], [starts], NumberingLimits())
        if values.null_count:
            window_groups = skip_nulls(window_groups, values)
        numbers = bare_values(values)
        best, seen = np.zeros(keys.count + 1, numbers.dtype), np.zeros(keys.count + 1, np.bool_)
        keep = fragment_kernels.keep_greater if self.greatest else fragment_kernels.keep_less
        keep(window_groups, numbers, seen, best)
        out = np.empty(len(window_groups), np.int64)
        return out[: sliding_kernels.find_equal(window_groups, numbers, best, out)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Windows as rows: distinct groups, the index of each row's group, window starts, and values."""

    groups: list[_Column]
    of: Integers
    starts: Integers
    values: list[_Column | None]

    @property
    def rows(self) -> int:
        """The number of distinct groups."""
        return len(self.groups[0]) if self.groups else int(self.of.max()) + 1


@dataclass(frozen=True)
class WindowAccumulator:
    """Aggregates the windows of all groups, inside the bucket: one result row per window and group.

    Parameters
    ----------
    finish : Finish
        Computes the columns of windows. Its last step is a projection to the groups and values of
        `fragments`.
    fragments : Fragments
        The aggregate. Its `group_by` is the window and the group columns. Its `partials` are of kinds in
        `ACCUMULATED_KINDS`, and their expressions are columns or ``*``.
    made : pyarrow.Schema
        The output: window starts in microseconds, `group_by`, partials.
    numbering : NumberingLimits
        The limits up to which all possible window groups are numbered.
    """

    finish: Finish
    fragments: Fragments
    made: pa.Schema
    numbering: NumberingLimits = NumberingLimits()

    @property
    def partials(self) -> frozenset[str]:
        """See `WindowEmitter.partials`."""
        return self.finish.partials

    @property
    def _groups(self) -> tuple[str, ...]:
        return self.fragments.group_by[1:]

    def __call__(self, closed: ClosedWindows) -> _Rows:
        """Return the rows of some windows."""
        rows = self.finish.rows(closed)
        groups, of = rows.groups(self._groups)
        values = [self._values(partial, rows) for partial in self.fragments.partials]
        return _Rows(groups, of, rows.starts, values)

    def _values(self, partial: Partial, rows: WindowRows) -> _Column | None:
        """Return the values that a partial takes; None for a count of rows."""
        if partial.expression == "*":
            return None
        if partial.kind != "count":
            return rows.array(partial.expression)
        # If no group has a null, all rows have values, and their number is the count.
        (column,), _ = rows.groups([partial.expression])
        return rows.array(partial.expression) if column.null_count else None

    def collect(self, parts: list[_Rows]) -> list[pa.RecordBatch]:
        """Return one row per window and group."""
        return self._aggregate(parts, self.fragments.partials)

    def combine(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Combine the results of several buckets into one row per window and group."""
        pane_us, deviations = 1000 * self.finish.pane_ms, deviation_sources(self.fragments.partials)
        parts = [
            _Rows(
                [batch.column(name) for name in self._groups],
                np.arange(batch.num_rows),
                batch.column(PANE).to_numpy() // pane_us,
                [
                    deviation_columns(batch, partial.name, *deviations[partial.name])
                    if partial.name in deviations
                    else batch.column(partial.name)
                    for partial in self.fragments.partials
                ],
            )
            for batch in batches
        ]
        return self._aggregate(parts, [partial.combining for partial in self.fragments.partials])

    def _aggregate(self, parts: list[_Rows], partials: Sequence[Partial]) -> list[pa.RecordBatch]:
        parts = [part for part in parts if len(part.of)]
        if not parts:
            return []
        index = KeyIndex()
        codec = GroupCodec([self.made.field(name) for name in self._groups])
        numbers = [codec.numbers(index, part.groups, part.rows)[part.of] for part in parts]
        window_groups, keys = _number_window_groups(numbers, [part.starts for part in parts], self.numbering)
        count = keys.count + 1
        rows = np.zeros(count, np.int64)
        accumulators: list[Accumulator] = [
            Nulls() if partial.kind == "count" or values is None else new_accumulator(partial, values.type)
            for partial, values in zip(partials, parts[0].values, strict=True)
        ]
        for some, part in zip(window_groups, parts, strict=True):
            fragment_kernels.add_count(some, rows)
            for accumulator, values in zip(accumulators, part.values, strict=True):
                accumulator.add(some, part.starts, values, count)
        there = np.flatnonzero(rows[1:] > 0)
        arrays = [
            pc.subtract(pa.array(rows[1:]), accumulator.result(count))
            if isinstance(accumulator, Nulls)
            else accumulator.result(count)
            for accumulator in accumulators
        ]
        starts, groups = keys.decode(there)
        columns = [
            pa.array(starts * (1000 * self.finish.pane_ms)),
            pa.array(np.full(len(there), 1000 * self.finish.size_ms)),
            *codec.decode(index.words, index.starts(groups)),
            *(column.take(pa.array(there)) for column in arrays),
        ]
        return [cast_sums(pa.RecordBatch.from_arrays(columns, self.made.names), self.made)]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The mapping from the numbers of window groups to windows and groups.

    Attributes
    ----------
    count : int
        Number of window groups.
    starts : int64 array
        The first panes of windows. The table of all groups by all starts has a place for each group and each
        of these panes.
    known : int64 array, optional
        The place of each window group in this table; None if all places have numbers.
    """

    count: int
    starts: Integers
    known: Integers | None = None

    def decode(self, places: Integers) -> tuple[Integers, Integers]:
        """Return first panes and group numbers of window groups. Index 0 is window group 1."""
        groups, starts = np.divmod(places if self.known is None else self.known[places], len(self.starts))
        return self.starts[starts], groups


def _number_window_groups(
    groups: Sequence[Integers | None], starts: Sequence[Integers], limits: NumberingLimits
) -> tuple[list[_WindowGroups], _Keys]:
    """Assign window-group numbers to rows.

    The rows come in parts. Each part has an array of group numbers (or None) in `groups`, and an array of
    first panes in `starts`.
    """
    rows = sum(map(len, starts))
    if not rows:
        return [np.zeros(0, np.int32) for _ in starts], _Keys(0, np.zeros(1, np.int64))
    least = min(int(start.min()) for start in starts if len(start))
    span = max(int(start.max()) for start in starts if len(start)) - least + 1
    count = span * (
        max((int(group.max()) for group in groups if group is not None and len(group)), default=0) + 1
    )
    if count <= limits.max_per_row * rows + limits.max_empty:
        window_groups = [np.empty(len(start), np.int32) for start in starts]
        for group, start, out in zip(groups, starts, window_groups, strict=True):
            sliding_kernels.number_window_groups(
                _NO_GROUPS if group is None else group, start, least, span, out
            )
        return window_groups, _Keys(count, np.arange(least, least + span))
    # There are no more starts than rows, so indices stay below the square of the number of rows.
    there, at = np.unique(np.concatenate(starts), return_inverse=True)
    several = [group for group in groups if group is not None]
    places = np.concatenate(several) * len(there) + at if several else at
    places_in_use, numbers = np.unique(places, return_inverse=True)
    ends = np.cumsum([len(start) for start in starts])[:-1]
    return np.split((numbers + 1).astype(np.int32), ends), _Keys(len(places_in_use), there, places_in_use)
