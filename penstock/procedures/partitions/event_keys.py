"""Find the rows and the partitions that each transaction needs, from the keys in its event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import GOLDEN
from penstock.procedures.compiler.program import Program
from penstock.procedures.compiler.values import Found, Origin
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.forwarding import find_first, find_homes, forward, merge_homes
from penstock.procedures.partitions.placement import Placement, hash_values
from penstock.procedures.partitions.routes import Keys, Route
from penstock.procedures.rows import null_mask
from penstock.procedures.schema import Column, TableSpec
from penstock.procedures.texts import Numbers

__all__ = ["EventKeys", "Lookup"]

_RESOURCES_PER_KEY = 16
"""The number of resource numbers for each key.

More numbers mean fewer collisions, so fewer transactions are forwarded.
"""

Lookup = Callable[[Found, Sequence[Any]], tuple[Numbers, pa.RecordBatch]]
"""Returns the rows that an index finds; see `penstock.procedures.partitions.partitioned_rows.find_rows`."""


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of one origin: one value for each event, or any number of values for each event."""

    column: Column
    values: pa.Array[Any]
    events: Numbers | None
    """For each value, the position of its event, ascending; None if each event has exactly one value."""


class EventKeys:
    """The keys of the rows that a program's events access.

    Parameters
    ----------
    program : Program
        The program that runs the events.
    route : Route
        The route of the program, which has no obstacle.
    events : pyarrow.RecordBatch
        The events of a call.
    placements : mapping
        The placements of partitioned tables.
    lookup : callable
        Finds rows by an index in all partitions.
    """

    def __init__(
        self,
        program: Program,
        route: Route,
        events: pa.RecordBatch,
        placements: Mapping[str, Placement],
        lookup: Lookup,
    ) -> None:
        self.route, self._placements, self._lookup = route, placements, lookup
        self._columns = {column.name: column for column in program.event}
        events = _drop_hidden_elements(events)
        if program.route is not None:
            self._columns |= {column.name: column for column in program.route.results}
            named = TableSet([]).run(program.route, events)
            for column in program.route.results:
                events = events.append_column(pa.field(column.name, column.type), named.column(column.name))
        self.events = events
        """The events, with the values of the named route."""
        self._tables: dict[str, TableSpec] = {spec.name: spec for spec in program.tables}
        self._found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], tuple[Numbers, pa.RecordBatch]] = {}

    def homes(self, partitions: int) -> Numbers:
        """Return the partition in which each transaction runs, or `FORWARDED`."""
        count = self.events.num_rows
        if not self.route.keys:  # the program only reads replicated tables
            return np.arange(count) * partitions // max(count, 1)
        distinct = self._distinct_partitions
        homes, several = self._homes_alone(distinct)
        if not several:
            return homes
        starts, resources, needed, size = self._resources(partitions, distinct)
        return forward(starts, resources, needed, np.zeros(size, np.bool_))

    def first(self, homes: Numbers, partitions: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the transactions that must end before the forwarded transactions begin.

        `find_first` explains when this is so.

        Parameters
        ----------
        homes : ndarray
            The result of `homes`, with at least one forwarded transaction.
        partitions : int
            The number of partitions.
        """
        starts, resources, _, size = self._resources(partitions, self._distinct_partitions)
        return find_first(starts, resources, homes, np.zeros(size, np.bool_))

    def _resources(
        self, partitions: int, distinct: Sequence[tuple[Numbers, Numbers | None]]
    ) -> tuple[Numbers, Numbers, Numbers, int]:
        """Return `starts`, `resources` and `partitions` for `forward`, and the length of `tainted`."""
        if not self.route.knows_rows:
            starts, order, needed = self._sort_by_event(distinct)
            return starts, needed[order], needed[order], partitions
        rows = [_without_nulls(self._combine(keys, keys.origins)) for keys in self.route.keys]
        size = 1 << int(_RESOURCES_PER_KEY * sum(len(one[0].values) for one in rows)).bit_length()
        resources = np.concatenate([
            _row_numbers(keys.table, values, size)
            for keys, values in zip(self.route.keys, rows, strict=True)
        ])  # fmt: skip
        starts, order, needed = self._sort_by_event([
            (self._partitions(keys, values), values[0].events)
            for keys, values in zip(self.route.keys, rows, strict=True)
        ])  # fmt: skip
        return starts, resources[order], needed[order], size

    def _homes_alone(self, distinct: Sequence[tuple[Numbers, Numbers | None]]) -> tuple[Numbers, int]:
        """Return the partition of each transaction as if it ran alone, and how many are `FORWARDED`."""
        if all(events is None for _, events in distinct):
            homes = distinct[0][0].copy() if len(distinct) > 1 else distinct[0][0]
            return homes, sum([merge_homes(homes, one) for one, _ in distinct[1:]])
        homes = np.empty(self.events.num_rows, np.int64)
        starts, order, needed = self._sort_by_event(distinct)
        return homes, find_homes(starts, needed[order], homes)

    def alone(self) -> Numbers:
        """Return the partition of each transaction, or `FORWARDED`, as if it ran alone."""
        return self._homes_alone(self._distinct_partitions)[0]

    def needed(self) -> list[int]:
        """Return the partitions that the transactions need."""
        distinct = self._distinct_partitions
        return sorted({int(number) for numbers, _ in distinct for number in np.unique(numbers)})

    def keys(self, keys: Keys) -> list[pa.Array[Any]]:
        """Return the key columns of the rows that `keys` names.

        Leave out keys with a null, because no row of a table has such a key.
        """
        return [one.values for one in _without_nulls(self._combine(keys, keys.origins))]

    def values(self, keys: Keys) -> tuple[Numbers, list[tuple[Column, pa.Array[Any]] | None]]:
        """Return, for each row that `keys` names, the position of its event, and its key columns.

        An unknown key column is None. Leave out keys with a null, because no row of a table has such a key.
        """
        found = _without_nulls(self._combine(keys, keys.origins))
        events = found[0].events if found else None
        known = iter([(one.column, one.values) for one in found])
        columns = [None if origin is None else next(known) for origin in keys.origins]
        return np.arange(self.events.num_rows) if events is None else events, columns

    def by_event(self) -> tuple[Numbers, Numbers]:
        """Return the partitions that events need, as `starts` and `partitions` for `find_homes`."""
        starts, order, needed = self._sort_by_event(self._distinct_partitions)
        return starts, needed[order]

    @cached_property
    def _distinct_partitions(self) -> list[tuple[Numbers, Numbers | None]]:
        """Return the partitions that keys need, and the events that need them.

        Keys with the same origins and the same method have the same partitions, so they appear once.
        """
        distinct = {(self._placements[keys.table].method, keys.partition): keys for keys in self.route.keys}
        found = []
        for keys in distinct.values():
            values = _without_nulls(self._combine(keys, keys.partition))
            found.append((self._place_values(keys, values), values[0].events))
        return found + self._all_partitions(found) if self.route.writes else found

    def _all_partitions(
        self, found: Sequence[tuple[Numbers, Numbers | None]]
    ) -> list[tuple[Numbers, Numbers | None]]:
        """Return the partitions that events need because of replicated tables.

        An event that writes replicated tables needs all partitions. An event that would need no partition at
        all gets partition 0. So each event runs after earlier writes to the replicated tables that it may
        read.
        """
        count, every = self.events.num_rows, np.arange(next(iter(self._placements.values())).partitions)
        writers = np.unique(np.concatenate([self.values(keys)[0] for keys in self.route.writes]))
        is_placed = np.zeros(count, np.bool_)
        is_placed[writers] = True
        for _, events in found:
            is_placed[slice(None) if events is None else events] = True
        others = np.flatnonzero(~is_placed)
        return [
            (np.tile(every, len(writers)), np.repeat(writers, len(every))),
            (np.zeros(len(others), np.int64), others),
        ]

    def _partitions(self, keys: Keys, values: Sequence[_Values]) -> Numbers:
        return self._place_values(keys, [values[place] for place in keys.places])

    def _place_values(self, keys: Keys, values: Sequence[_Values]) -> Numbers:
        columns = [one.column for one in values]
        return self._placements[keys.table].partitions_of(columns, [one.values for one in values])

    def _sort_by_event(
        self, found: Sequence[tuple[Numbers, Numbers | None]]
    ) -> tuple[Numbers, Numbers | slice, Numbers]:
        """Return the numbers in `found`, and how to sort them by event.

        Returns
        -------
        starts : ndarray
            The position of each event's first number in the sorted numbers; the last element is their count.
        order : ndarray or slice
            The indices that sort `numbers`.
        numbers : ndarray
            The unsorted numbers.
        """
        count = self.events.num_rows
        numbers = np.concatenate([one for one, _ in found])
        if len(found) == 1 and found[0][1] is None:
            return np.arange(count + 1), slice(None), numbers
        if all(events is None for _, events in found):
            order = np.arange(len(numbers)).reshape(len(found), count).T.reshape(-1)
            return np.arange(count + 1) * len(found), order, numbers
        events = np.concatenate([np.arange(count) if of is None else of for _, of in found])
        starts = np.concatenate([[0], np.cumsum(np.bincount(events, minlength=count))])
        return starts, np.argsort(events, kind="stable"), numbers

    def _combine(self, keys: Keys, origins: Sequence[Origin | None]) -> list[_Values]:
        """Return all combinations of the values that each event has for `origins`."""
        at: Numbers | None = None
        places: dict[object, Numbers] = {}
        for number, origin in enumerate(origins):
            dimension = _dimension(number, origin)
            starts = self._starts(origin)
            if starts is None or dimension in places:
                continue
            before = np.arange(self.events.num_rows) if at is None else at
            counts = np.diff(starts)[before]
            again = np.repeat(np.arange(len(before)), counts)
            inside = np.arange(len(again)) - np.repeat(np.cumsum(counts) - counts, counts)
            at = before[again]
            places = {key: one[again] for key, one in places.items()} | {dimension: starts[at] + inside}
        values = []
        for number, origin in enumerate(origins):
            if origin is None:
                continue
            column, flat = self._flat(origin)
            place = places.get(_dimension(number, origin), at)
            values.append(_Values(column, flat if place is None else flat.take(pa.array(place)), at))
        return values

    def _starts(self, origin: Origin | None) -> Numbers | None:
        """Return the position of each event's first value, followed by the number of values.

        The result is None if each event has one value.
        """
        if isinstance(origin, Found):
            return self._rows(origin)[0]
        if origin is None or not self._columns[origin].is_list:
            return None
        return np.asarray(self.events.column(origin).offsets.to_numpy(), np.int64)

    def _flat(self, origin: Origin) -> tuple[Column, pa.Array[Any]]:
        if isinstance(origin, Found):
            column = self._tables[origin.table].column(origin.column)
            return column, self._rows(origin)[1].column(column.name)
        values, column = self.events.column(origin), self._columns[origin]
        return column, values.values if column.is_list else values

    def _rows(self, found: Found) -> tuple[Numbers, pa.RecordBatch]:
        key = found.table, found.index, found.attributes
        if key not in self._found:
            self._found[key] = self._lookup(found, [self.events.column(name) for name in found.attributes])
        return self._found[key]


def _drop_hidden_elements(events: pa.RecordBatch) -> pa.RecordBatch:
    """Remove the elements that Arrow allows in null lists."""
    for place, column in enumerate(events.columns):
        if pa.types.is_list(column.type) and column.null_count:
            compact = column.take(pa.array(np.arange(len(column))))
            events = events.set_column(place, events.schema.field(place), compact)
    return events


def _without_nulls(values: list[_Values]) -> list[_Values]:
    """Return the key columns without the keys that have a null."""
    if not any(one.values.null_count for one in values):
        return values
    exists = ~np.logical_or.reduce([null_mask(one.values) for one in values])
    events = np.arange(len(exists)) if values[0].events is None else values[0].events
    return [_Values(one.column, one.values.filter(pa.array(exists)), events[exists]) for one in values]


def _dimension(number: int, origin: Origin | None) -> object:
    """Return the dimension of an origin in the combinations of values.

    Columns of the same row that an index finds share a dimension. Every other origin has its own.
    """
    if isinstance(origin, Found):
        return origin.table, origin.index, origin.attributes
    return number


def _row_numbers(table: str, values: Sequence[_Values], size: int) -> Numbers:
    """Return a number below `size`, a power of two, for each key."""
    seed = sum(table.encode())  # rows of different tables mostly get different numbers
    numbers = np.full(len(values[0].values), seed, np.uint64)
    for one in values:
        numbers = (numbers ^ hash_values(one.column, one.values).view(np.uint64)) * GOLDEN
    return (numbers >> np.uint64(64 - size.bit_length() + 1)).astype(np.int64)
