"""A trace as the cost model reads it: compressed records, and a mask for each option of a table.

Transactions of one procedure and interval that need the same partitions in every design are one record with a
weight (H-Store §4.5.2). No accuracy is lost: transactions that need different partitions in some design are
in different records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from penstock.designing.cost_kernels import Floats, Masks, add_accesses
from penstock.designing.traces.trace import ANY_TABLE, Mode, Trace, linked_columns
from penstock.errors import InvalidUsageError
from penstock.procedures.partitions.design import PartitionColumns
from penstock.procedures.partitions.partitioned_tables import MAX_PARTITIONS
from penstock.procedures.partitions.placement import hash_numbers, mix_hashes
from penstock.procedures.schema import Kind, TableSpec
from penstock.procedures.texts import Numbers
from penstock.state_store.keys.key_words import buckets_of

__all__ = ["PAIRS_FROM_OVERLOAD", "RANGES_FROM_OVERLOAD", "TableOption", "Workload"]

RANGES_FROM_OVERLOAD = 1.1
"""Ranges are an option if the hash gives some partition more than this many times the mean accesses."""
PAIRS_FROM_OVERLOAD = 2.0
"""A pair of columns is an option if the hash of each column alone overloads partitions.

Chance explains a load of the mean plus three standard deviations. A hash overloads partitions if the busiest
partitions of intervals have, on average, more than this many times the load that chance explains.
"""
UNROUTED = ""
"""An entry of `Workload.attributes` which means that no attribute routes the transactions."""
_KINDS_WITH_RANGES = (Kind.INTEGER,)


@dataclass(frozen=True, slots=True)
class TableOption:
    """A way to place the rows of a table.

    Attributes
    ----------
    column : str, tuple of str, or None
        The column or the two columns by which the table is partitioned; None if the table is replicated.
    ranges : tuple of int, optional
        The least value of each partition except the first. Without ranges, the hash decides the partition.
    index : tuple of str, optional
        The columns of a secondary index that every partition holds for the whole table.
    """

    column: PartitionColumns
    ranges: tuple[int, ...] | None = None
    index: tuple[str, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns by which the table is partitioned; none if the table is replicated."""
        return (self.column,) if isinstance(self.column, str) else self.column or ()


@dataclass(frozen=True)
class Workload:
    """The records of a trace, with the partitions that each record needs under each option.

    If the trace has `Trace.actual`, the records of procedures with routing attributes have a second mask: the
    partitions that the record needs if no attribute routes it.

    Attributes
    ----------
    trace : Trace
        The trace.
    partitions : int
        The number of partitions.
    tables : tuple of int
        The positions in `Trace.tables` of the tables that the trace accesses.
    options : tuple of tuple of TableOption
        The options of each of these tables.
    first_row : tuple of int
        For each table, the row in `masks` of its first option.
    declared : ndarray of int64
        The position of each table's declared option in `options`.
    masks : ndarray of uint64, two-dimensional
        A row for each option. A row has the masks of all records, then the second masks. A mask has a bit for
        each partition that the record needs because it accesses the option's table.
    fixed : ndarray of uint64
        Masks of the partitions that are needed in every design, for all records and then for second masks.
    declared_place : ndarray of int64
        The position of each record's second mask in a row of `masks`; -1 if the record has no second mask.
    attributes : tuple of tuple of str
        For each procedure, the attributes that may route its transactions.
    bases : ndarray of int8, two-dimensional
        A row for each position in `attributes`. A row has, for each record, the partition to which the
        attribute routes the record; -1 if the attribute has no value.
    procedure, interval : ndarray of int32
        The procedure and interval of each record.
    record : ndarray of int64
        The record of each transaction.
    weights : ndarray of int64
        The number of transactions in each record.
    interval_weights : ndarray of int64
        The number of transactions in each interval.
    heat : ndarray of int64
        The number of accesses to each table.
    writes : ndarray of bool
        Whether transactions write each table.
    heat_of_column : list of dict
        For each table and column, the number of accesses in which the column's value is known.
    """

    trace: Trace
    partitions: int
    tables: tuple[int, ...]
    options: tuple[tuple[TableOption, ...], ...]
    first_row: tuple[int, ...]
    declared: Numbers
    masks: Masks
    fixed: Masks
    declared_place: Numbers
    attributes: tuple[tuple[str, ...], ...]
    bases: npt.NDArray[np.int8]
    procedure: npt.NDArray[np.int32]
    interval: npt.NDArray[np.int32]
    record: Numbers
    weights: Numbers
    interval_weights: Numbers
    heat: Numbers
    writes: npt.NDArray[np.bool_]
    heat_of_column: tuple[dict[str, int], ...]

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.weights)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(self.trace.tables[place].name for place in self.tables)

    @staticmethod
    def encode(
        trace: Trace,
        partitions: int,
        intervals: int = 10,
        *,
        compress: bool = True,
        options: Mapping[str, Sequence[TableOption]] | None = None,
    ) -> Workload:
        """Return the workload of a trace.

        Parameters
        ----------
        trace : Trace
            The trace.
        partitions : int
            The number of partitions, at most 64.
        intervals : int
            The number of intervals. All intervals have equally many transactions, and skew is measured in
            each interval.
        compress : bool
            Whether equal transactions become one record.
        options : mapping, optional
            The options of another workload with the same number of partitions. With these options, designs
            of the other workload fit this workload. By default the options are derived from the trace.

        Raises
        ------
        InvalidUsageError
            If `partitions` is not from 2 to 64, or `intervals` is not positive.
        """
        if type(partitions) is not int or not 2 <= partitions <= MAX_PARTITIONS:
            raise InvalidUsageError(
                "a design cannot have this number of partitions",
                partitions=repr(partitions),
                hint=f"use 2 to {MAX_PARTITIONS}",
            )
        if type(intervals) is not int or intervals < 1:
            raise InvalidUsageError("intervals is not a positive integer", intervals=repr(intervals))
        count = trace.transactions
        interval = (np.arange(count) * intervals // count).astype(np.int32)
        encoder = _Encoder(trace, partitions, interval)
        # Encode the accesses of the run. Declared accesses count only if no attribute routes a transaction.
        actual = None if trace.actual is None else _Encoder(trace.actual, partitions, interval)
        tables = tuple(int(place) for place in np.unique(trace.table) if place != ANY_TABLE)
        if options is not None:
            tables = tuple(place for place, spec in enumerate(trace.tables) if spec.name in options)
        chosen, rows, declared = [], [], []
        for place in tables:
            spec = trace.tables[place]
            found = encoder.options(place, None if options is None else options[spec.name], actual)
            chosen.append(tuple(found))
            rows.append(np.stack(list(found.values())))
            declared.append(list(found).index(TableOption(spec.partition_by)))
        masks = np.concatenate([np.zeros((0, count), np.uint64), *rows])
        fixed = encoder.fixed()
        actual_masks, actual_fixed = masks, fixed
        if actual is not None:
            parts = [
                np.stack(list(actual.options(place, wanted).values()))
                for place, wanted in zip(tables, chosen, strict=True)
            ]
            actual_masks = np.concatenate([np.zeros((0, count), np.uint64), *parts])
            actual_fixed = actual.fixed()
        bases, attributes = encoder.bases()
        heats = [int((trace.table == place).sum()) for place in tables]
        firsts = np.cumsum([0, *map(len, chosen)])
        first = record = np.arange(count)
        if compress:
            # bases[0] is left out: without a route, the partition in which a transaction begins is arbitrary.
            parts = [*actual_masks, actual_fixed] + ([] if actual is None else [*masks, fixed])
            first, record = _compress(parts, bases[1:], trace.procedure, interval)
        is_routed = np.array([bool(names) for names in attributes])[trace.procedure[first]]
        is_routed &= actual is not None
        second = first[is_routed]
        declared_place = np.full(len(first), -1)
        declared_place[is_routed] = len(first) + np.arange(len(second))
        return Workload(
            trace, partitions, tables, tuple(chosen), tuple(firsts[:-1].tolist()),
            np.array(declared, np.int64),
            np.concatenate([actual_masks[:, first], masks[:, second]], axis=1),
            np.concatenate([actual_fixed[first], fixed[second]]), declared_place, attributes,
            np.ascontiguousarray(bases[:, first]), trace.procedure[first], interval[first], record,
            np.bincount(record),
            np.bincount(interval, minlength=intervals), np.array(heats, np.int64),
            np.array([bool(((trace.table == place) & (trace.mode == Mode.WRITE)).any()) for place in tables],
                     np.bool_),
            tuple(encoder.heat_of_columns(place) for place in tables),
        )  # fmt: skip

    def row(self, table: int, option: int) -> Masks:
        """Return the masks of an option of a table."""
        masks: Masks = self.masks[self.first_row[table] + option]
        return masks

    def empty_loads(self) -> Floats:
        """Return an array of zeros for loads: a row for each interval, a column for each partition."""
        return np.zeros((len(self.interval_weights), self.partitions))


def _compress(
    masks: Sequence[Masks],
    bases: npt.NDArray[np.int8],
    procedure: npt.NDArray[np.int32],
    interval: npt.NDArray[np.int32],
) -> tuple[Numbers, Numbers]:
    """Return the first transaction of each record, and the record of each transaction."""
    parts = [*masks, *bases.astype(np.int64).view(np.uint64)]
    parts.append((procedure.astype(np.int64) << 32 | interval).view(np.uint64))
    rows = np.ascontiguousarray(np.stack(parts, axis=1))
    order = np.lexsort(rows.T)
    ordered = rows[order]
    begins = np.flatnonzero(np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1)))
    first = np.minimum.reduceat(order, begins)
    back = np.argsort(first, kind="stable")
    place = np.empty(len(first), np.int64)
    place[back] = np.arange(len(first))
    record = np.empty(len(order), np.int64)
    record[order] = np.repeat(place, np.diff(np.append(begins, len(order))))
    return first[back], record


class _Encoder:
    """Computes the masks of a trace's transactions for each option of each table."""

    def __init__(self, trace: Trace, partitions: int, interval: npt.NDArray[np.int32]) -> None:
        self._trace, self._partitions, self._interval = trace, partitions, interval
        self.every = np.uint64((1 << partitions) - 1)
        self._ranges: dict[tuple[str, str], tuple[int, ...] | None] = {}
        if trace.recorded:
            return  # attributes route by their hash, so their rows must be placed by hash, too
        for columns in linked_columns(trace.database, trace.procedures):
            ranges = self._find_ranges(columns)
            self._ranges |= dict.fromkeys(columns, ranges)

    def masks(self, chosen: npt.NDArray[np.bool_], access_masks: Masks) -> Masks:
        """Merge the masks of the chosen accesses; return a mask for each transaction."""
        out = np.zeros(self._trace.transactions, np.uint64)
        add_accesses(self._trace.transaction[chosen], access_masks[chosen], out)
        return out

    def fixed(self) -> Masks:
        """Return the partitions that each transaction needs in every design."""
        trace = self._trace
        return self.masks(trace.table == ANY_TABLE, np.full(len(trace.table), self.every, np.uint64))

    def options(
        self, place: int, wanted: Sequence[TableOption] | None, actual: _Encoder | None = None
    ) -> dict[TableOption, Masks]:
        """Return the masks of a table's wanted options; by default of its declared and all useful options.

        An option is useful if some transaction that accesses the table does not need all partitions, by its
        declared accesses or by its `actual` accesses.
        """
        trace, spec = self._trace, self._trace.tables[place]
        chosen = trace.table == place
        mode = trace.mode
        found = {}
        partitionings = self._partitionings(place)
        if wanted is not None:
            partitionings = iter(dict.fromkeys(
                TableOption(option.column, option.ranges) for option in wanted if option.columns
            ))  # fmt: skip
        for option in partitionings:
            masks = self._access_masks(spec, option)
            found[option] = self.masks(chosen & (mode != Mode.FOUND), masks)
            for number, index in enumerate(spec.indexes if trace.recorded else ()):
                local = chosen & ~((mode == Mode.SELECT) & (trace.index == number))
                local &= (mode != Mode.FOUND) | (trace.index == number)
                changes = (mode == Mode.WRITE) & ((trace.index >> number & 1) == 1)
                found[TableOption(option.column, option.ranges, index.columns)] = self.masks(
                    local, np.where(changes, self.every, masks)
                )
        writes = np.full(len(mode), self.every, np.uint64)
        found[TableOption(None)] = self.masks(chosen & (mode == Mode.WRITE), writes)
        if wanted is not None:
            return {option: found[option] for option in wanted}
        useless = self.masks(chosen & (mode != Mode.FOUND), np.full(len(mode), self.every, np.uint64))
        kept = {TableOption(None), TableOption(spec.partition_by)}
        if actual is not None:
            run = actual.options(place, list(found))
            kept |= {option for option, masks in run.items() if (masks != useless).any()}
        return {
            option: masks for option, masks in found.items() if option in kept or (masks != useless).any()
        }

    def _partitionings(self, place: int) -> Iterator[TableOption]:
        """Yield the options that partition a table, without options for its indexes."""
        spec = self._trace.tables[place]
        uneven = set()
        for name in spec.key:
            yield TableOption(name)
            if (ranges := self._ranges.get((spec.name, name))) is not None:
                yield TableOption(name, ranges)
            if self._is_uneven(place, name):
                uneven.add(name)
        for pair in combinations(spec.key, 2):
            if uneven >= set(pair):
                yield TableOption(pair)

    def _access_masks(self, spec: TableSpec, option: TableOption) -> Masks:
        """Return the partitions of each access, computed as if all accesses were to this table."""
        trace = self._trace
        columns = [spec.key.index(name) for name in option.columns]
        places = self._partitions_of(spec, option)
        known = np.logical_and.reduce([trace.known[column] for column in columns])
        return np.where(known, np.uint64(1) << places.view(np.uint64), self.every)

    def _partitions_of(self, spec: TableSpec, option: TableOption) -> Numbers:
        values = [self._trace.values[spec.key.index(name)] for name in option.columns]
        if option.ranges is not None:
            return np.searchsorted(np.array(option.ranges, np.int64), values[0], side="right").astype(
                np.int64
            )
        hashes = [
            one if spec.column(name).kind.is_interned else hash_numbers(one)
            for name, one in zip(option.columns, values, strict=True)
        ]
        return buckets_of(mix_hashes(hashes).view(np.uint64), self._partitions)

    def _is_uneven(self, place: int, name: str) -> bool:
        """Return whether the hash of a column overloads partitions; see `PAIRS_FROM_OVERLOAD`."""
        trace, spec = self._trace, self._trace.tables[place]
        chosen = (trace.table == place) & trace.known[spec.key.index(name)]
        places = self._partitions_of(spec, TableOption(name))[chosen]
        # A transaction counts only once in each partition.
        visits = np.unique(trace.transaction[chosen] * self._partitions + places)
        interval, partition = self._interval[visits // self._partitions], visits % self._partitions
        loads = np.zeros((int(self._interval[-1]) + 1, self._partitions))
        np.add.at(loads, (interval, partition), 1.0)
        share = float(loads.mean())
        return float(loads.max(axis=1).mean()) > PAIRS_FROM_OVERLOAD * (share + 3.0 * share**0.5)

    def _accesses(self, columns: set[tuple[str, str]]) -> Iterator[Numbers]:
        """Yield the known values of each of these columns."""
        trace = self._trace
        for place, spec in enumerate(trace.tables):
            for number, name in enumerate(spec.key):
                if (spec.name, name) in columns:
                    yield trace.values[number][(trace.table == place) & trace.known[number]]

    def _find_ranges(self, columns: set[tuple[str, str]]) -> tuple[int, ...] | None:
        """Return ranges with about equally many accesses; None if the hash spreads the accesses well."""
        specs = {spec.name: spec for spec in self._trace.tables}
        kinds = {specs[table].column(name).kind for table, name in columns}
        if not kinds <= set(_KINDS_WITH_RANGES):
            return None
        values, counts = np.unique(np.concatenate(list(self._accesses(columns))), return_counts=True)
        if len(values) < self._partitions:
            return None
        places = buckets_of(hash_numbers(values).view(np.uint64), self._partitions)
        loads = np.bincount(places, counts, self._partitions)
        if loads.max() <= RANGES_FROM_OVERLOAD * loads.mean():
            return None
        before = np.cumsum(counts) - counts / 2  # accesses to smaller values, and half of the value's own
        bounds, begin = [], 0
        for number in range(1, self._partitions):
            at = int(np.searchsorted(before, counts.sum() * number / self._partitions))
            # Each partition has at least one value between its bounds, and enough values remain for later
            # partitions.
            begin = min(max(at, begin + 1), len(values) - self._partitions + number)
            bounds.append(int(values[begin]))
        return tuple(bounds)

    def heat_of_columns(self, place: int) -> dict[str, int]:
        """Return, for each key column of a table, the number of accesses in which its value is known."""
        trace = self._trace
        chosen = trace.table == place
        return {
            name: int((chosen & trace.known[number]).sum())
            for number, name in enumerate(trace.tables[place].key)
        }

    def bases(self) -> tuple[npt.NDArray[np.int8], tuple[tuple[str, ...], ...]]:
        """Return the partitions to which attributes route transactions, and the attributes by procedure.

        The first attribute of each procedure is `UNROUTED`. In a recorded trace, an unrouted transaction
        begins in any partition. In other traces, its declared accesses decide where it begins.
        """
        trace = self._trace
        if not trace.recorded and trace.actual is None:
            return np.zeros((0, trace.transactions), np.int8), trace.attributes
        anywhere = hash_numbers(np.arange(trace.transactions))
        rows = [buckets_of(anywhere.view(np.uint64), self._partitions)]
        if trace.actual is not None:
            rows = [np.full(trace.transactions, -1)]
        for values, there in zip(trace.routes, trace.has_route, strict=True):
            places = buckets_of(values.view(np.uint64), self._partitions)
            rows.append(np.where(there, places, -1))
        return np.stack(rows).astype(np.int8), tuple(
            (UNROUTED, *names) if trace.recorded or names else () for names in trace.attributes
        )
