"""Windows of many groups combined by window in the bucket that makes them, so that few leave it.

What follows windows is often of one window at a time: an aggregate of all groups, or those that have the
most. Each bucket has all windows of its groups that close in a micro-batch, so it can do its part before
they cross to Spark, where a row costs a hundred times what it costs here.

A **window group** is a window and a group of the aggregate that follows. Window groups are numbered from 1,
so that a partial aggregate is an array with a place for each; rows that do not count have number 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregates.moments import beside, parts_of
from penstock.operators.aggregates.wide import in_schema
from penstock.operators.scan.fragments import fragment_kernels
from penstock.operators.scan.fragments.accumulators import Accumulator, Nulls, new_accumulator, without_nulls
from penstock.operators.scan.fragments.keys import bare_values
from penstock.operators.scan.spec import PANE, Fragments, Partial
from penstock.operators.update_stream.stream import Integers
from penstock.operators.windows.append import sliding_kernels
from penstock.operators.windows.finish import Finish, WindowRows
from penstock.operators.windows.groups import GroupCodec
from penstock.operators.windows.layout import START, Closed, WindowLayout
from penstock.state_store.keys.key_index import KeyIndex

__all__ = ["FOLDED", "Extremes", "WindowAccumulator"]

FOLDED = frozenset({"count", "sum", "m2", "min", "max"})
"""Kinds of partials that do not depend on the order of groups, and are of fixed size."""

_MAX_EMPTY_GROUPS, _MAX_GROUPS_PER_ROW = 1024, 4
"""Below these limits all possible window groups are numbered; beyond them only those that have rows."""

_NO_GROUPS = np.zeros(0, np.int64)

_WindowGroups: TypeAlias = npt.NDArray[np.int32]
_Column: TypeAlias = "pa.Array[Any]"


@dataclass(frozen=True)
class Extremes:
    """Leaves out windows that do not have the greatest, or the least, value of all groups' in the bucket.

    What has the most of all buckets has the most in its own, so nothing is lost for who looks for that.

    Parameters
    ----------
    layout : WindowLayout
        Of the windows.
    value : str
        The partial: an integer or a float, of which NaN is greater than all others, as in Spark. Windows in
        which it is null are left out.
    greatest : bool
        Whether the greatest is kept, or the least.
    by : tuple of str
        Groups of which each has its own.
    """

    layout: WindowLayout
    value: str
    greatest: bool
    by: tuple[str, ...] = ()

    @property
    def partials(self) -> None:
        """All of them; see `WindowEmitter.partials`."""
        return None

    def __call__(self, closed: Closed) -> pa.RecordBatch:
        """Return those of some windows that have the most of these."""
        places = [self.layout.groups.get_field_index(name) for name in self.by]
        numbers = self._numbers([closed.groups[place] for place in places])
        of = None if numbers is None else numbers[closed.of.to_numpy()]
        windows = closed.batch(self.layout)
        kept = self._kept(of, closed.starts.to_numpy(), windows.column(self.value))
        return windows.take(pa.array(kept))

    def collect(self, parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return those that have the most of all."""
        if len(parts) < 2:
            return parts
        whole = pa.concat_batches(parts)
        numbers = self._numbers([whole.column(name) for name in self.by])
        kept = self._kept(numbers, whole.column(START).to_numpy(), whole.column(self.value))
        return [whole.take(pa.array(kept))]

    def _numbers(self, columns: Sequence[_Column]) -> Integers | None:
        """Return numbers of groups; None where there is only one."""
        if not columns:
            return None
        codec = GroupCodec([self.layout.groups.field(name) for name in self.by])
        return codec.numbers(KeyIndex(), list(columns), len(columns[0]))

    def _kept(self, groups: Integers | None, starts: Integers, values: _Column) -> Integers:
        """Return which windows have the most, in order."""
        (window_groups,), keys = _number_window_groups([groups], [starts])
        if values.null_count:
            window_groups = without_nulls(window_groups, values)
        numbers = bare_values(values)
        best, seen = np.zeros(keys.count + 1, numbers.dtype), np.zeros(keys.count + 1, np.bool_)
        keep = fragment_kernels.keep_greater if self.greatest else fragment_kernels.keep_less
        keep(window_groups, numbers, seen, best)
        out = np.empty(len(window_groups), np.int64)
        return out[: sliding_kernels.find_equal(window_groups, numbers, best, out)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some windows as rows: groups, of each row its place in them, and the values of partials."""

    groups: list[_Column]
    of: Integers
    starts: Integers
    values: list[_Column | None]

    @property
    def rows(self) -> int:
        """The number of groups' rows."""
        return len(self.groups[0]) if self.groups else int(self.of.max()) + 1


@dataclass(frozen=True)
class WindowAccumulator:
    """Aggregates windows by window, in the bucket.

    Parameters
    ----------
    finish : Finish
        What the columns of windows are; its last step is a projection of groups and values.
    fragments : Fragments
        The aggregate: `group_by` are the windows' length and the groups, `partials` are of `FOLDED`, their
        expressions columns or ``*``.
    made : pyarrow.Schema
        What comes of it: where windows start, in microseconds, `group_by`, partials.
    """

    finish: Finish
    fragments: Fragments
    made: pa.Schema

    @property
    def partials(self) -> frozenset[str]:
        """See `WindowEmitter.partials`."""
        return self.finish.partials

    @property
    def _groups(self) -> tuple[str, ...]:
        return self.fragments.group_by[1:]

    def __call__(self, closed: Closed) -> _Rows:
        """Return the rows of some windows."""
        rows = self.finish.rows(closed)
        groups, of = rows.groups(self._groups)
        values = [self._values(one, rows) for one in self.fragments.partials]
        return _Rows(groups, of, rows.starts, values)

    def _values(self, partial: Partial, rows: WindowRows) -> _Column | None:
        """Return what is aggregated; None where rows are counted."""
        if partial.expression == "*":
            return None
        if partial.kind != "count":
            return rows.array(partial.expression)
        # Mostly there is nothing that does not count.
        (column,), _ = rows.groups([partial.expression])
        return rows.array(partial.expression) if column.null_count else None

    def collect(self, parts: list[_Rows]) -> list[pa.RecordBatch]:
        """Return a row for each window and group."""
        return self._folded(parts, self.fragments.partials)

    def added(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return what several buckets have made, with a row for each window and group."""
        pane_us, deviations = 1000 * self.finish.pane_ms, beside(self.fragments.partials)
        parts = [
            _Rows(
                [batch.column(name) for name in self._groups],
                np.arange(batch.num_rows),
                batch.column(PANE).to_numpy() // pane_us,
                [
                    parts_of(batch, one.name, *deviations[one.name])
                    if one.name in deviations
                    else batch.column(one.name)
                    for one in self.fragments.partials
                ],
            )
            for batch in batches
        ]
        return self._folded(parts, [one.again for one in self.fragments.partials])

    def _folded(self, parts: list[_Rows], partials: Sequence[Partial]) -> list[pa.RecordBatch]:
        parts = [part for part in parts if len(part.of)]
        if not parts:
            return []
        index = KeyIndex()
        codec = GroupCodec([self.made.field(name) for name in self._groups])
        numbers = [codec.numbers(index, part.groups, part.rows)[part.of] for part in parts]
        window_groups, keys = _number_window_groups(numbers, [part.starts for part in parts])
        count = keys.count + 1
        rows = np.zeros(count, np.int64)
        made: list[Accumulator] = [
            Nulls() if one.kind == "count" or values is None else new_accumulator(one, values.type)
            for one, values in zip(partials, parts[0].values, strict=True)
        ]
        for some, part in zip(window_groups, parts, strict=True):
            fragment_kernels.add_count(some, rows)
            for accumulator, values in zip(made, part.values, strict=True):
                accumulator.add(some, part.starts, values, count)
        there = np.flatnonzero(rows[1:] > 0)
        found = [
            pc.subtract(pa.array(rows[1:]), accumulator.result(count))
            if isinstance(accumulator, Nulls)
            else accumulator.result(count)
            for accumulator in made
        ]
        starts, groups = keys.of(there)
        columns = [
            pa.array(starts * (1000 * self.finish.pane_ms)),
            pa.array(np.full(len(there), 1000 * self.finish.size_ms)),
            *codec.decode(index.words, index.starts(groups)),
            *(column.take(pa.array(there)) for column in found),
        ]
        return [in_schema(pa.RecordBatch.from_arrays(columns, self.made.names), self.made)]


@dataclass(frozen=True, slots=True)
class _Keys:
    """What window groups are of.

    Attributes
    ----------
    count : int
        How many window groups there are.
    starts : int64 array
        First panes of windows: of each group's window groups, one after the other.
    known : int64 array, optional
        The places that window groups have, were there one for each group and start; all unless given.
    """

    count: int
    starts: Integers
    known: Integers | None = None

    def of(self, places: Integers) -> tuple[Integers, Integers]:
        """Return the first panes and the groups' numbers of window groups; place 0 is window group 1."""
        groups, starts = np.divmod(places if self.known is None else self.known[places], len(self.starts))
        return self.starts[starts], groups


def _number_window_groups(
    groups: Sequence[Integers | None], starts: Sequence[Integers]
) -> tuple[list[_WindowGroups], _Keys]:
    """Return the window groups of rows that come in parts: numbers of groups, and first panes."""
    rows = sum(map(len, starts))
    if not rows:
        return [np.zeros(0, np.int32) for _ in starts], _Keys(0, np.zeros(1, np.int64))
    least = min(int(one.min()) for one in starts if len(one))
    span = max(int(one.max()) for one in starts if len(one)) - least + 1
    count = span * (max((int(one.max()) for one in groups if one is not None and len(one)), default=0) + 1)
    if count <= _MAX_GROUPS_PER_ROW * rows + _MAX_EMPTY_GROUPS:
        window_groups = [np.empty(len(one), np.int32) for one in starts]
        for group, one, out in zip(groups, starts, window_groups, strict=True):
            sliding_kernels.number_window_groups(
                _NO_GROUPS if group is None else group, one, least, span, out
            )
        return window_groups, _Keys(count, np.arange(least, least + span))
    # There are no more starts than rows, however far apart, so that places stay below their square.
    there, at = np.unique(np.concatenate(starts), return_inverse=True)
    several = [group for group in groups if group is not None]
    places = np.concatenate(several) * len(there) + at if several else at
    known, numbers = np.unique(places, return_inverse=True)
    ends = np.cumsum([len(one) for one in starts])[:-1]
    return np.split((numbers + 1).astype(np.int32), ends), _Keys(len(known), there, known)
