"""Run transactions over several buckets of a stream, in two stages.

1. Each bucket runs the transactions that need no other bucket (`Forwarding.split`). It exports the rows that
   forwarded transactions need (`Forwarding.rows`).
2. The coordinator runs the forwarded transactions over these rows, in their order, and returns the changes of
   each bucket (`Forwarding.run`). A bucket gets its changes before it runs its next transactions.

If an event determines only the buckets of a transaction, not the rows (`Forwarding.copies_buckets`), the
coordinator has copies of the buckets' tables instead (`Forwarding.run_over`).

The results of both stages depend only on their input. `docs/design/0019-forwarding.md` has the invariants.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError, InvalidUsageError
from penstock.operators.update_stream.stream import concat
from penstock.procedures.compiler.layout import TableCode
from penstock.procedures.compiler.program import PlainProgram, Program, event_schema
from penstock.procedures.compiler.values import Found
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.event_keys import EventKeys
from penstock.procedures.partitions.forwarding import FORWARDED
from penstock.procedures.partitions.placement import Placement, place_tables
from penstock.procedures.partitions.routes import Route, find_route
from penstock.procedures.texts import Numbers

__all__ = ["ARRIVAL", "Changes", "Forwarding", "Split", "bucket_route", "forwarding_obstacle"]

ARRIVAL = "arrival"
"""With this order, results are the same as if one thread ran all transactions in the order of arrival."""


@dataclass(frozen=True, slots=True)
class Split:
    """The transactions of a bucket in a micro-batch.

    Attributes
    ----------
    own : ndarray
        The positions of the events that the bucket runs.
    needed : ndarray
        The positions of the forwarded events that need rows of the bucket.
    forwarded : ndarray
        The positions of the forwarded events that this bucket passes to the coordinator. Exactly one bucket
        passes each event.
    own_numbers, forwarded_numbers : ndarray
        The number of each event in `own` and in `forwarded`. The bucket numbers its transactions of the
        micro-batch from 0.
    """

    own: Numbers
    needed: Numbers
    forwarded: Numbers
    own_numbers: Numbers
    forwarded_numbers: Numbers


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that forwarded transactions make to a bucket.

    Attributes
    ----------
    blocks : dict
        The blocks of a delta of the bucket's tables, with rows in the order of their keys.
    more_rows : int
        The number of inserted rows minus the number of deleted rows.
    """

    blocks: dict[str, pa.RecordBatch]
    more_rows: int


@dataclass(frozen=True)
class Forwarding:
    """Runs a program over several buckets. The driver makes it, and workers use it.

    Parameters
    ----------
    program : Program
        The program that runs the transactions.
    buckets : int
        The number of buckets.
    order : str
        ``"arrival"`` or ``"any"``. With ``"any"``, the forwarded transactions of a micro-batch run after all
        other transactions.
    """

    program: Program
    buckets: int
    order: str

    @classmethod
    def plan(cls, program: Program | PlainProgram, buckets: int, order: str) -> Forwarding:
        """Return the `Forwarding` of a program.

        Raises
        ------
        InvalidUsageError
            If transactions cannot be forwarded; `forwarding_obstacle` gives the reason.
        """
        obstacle = forwarding_obstacle(program)
        if obstacle is not None or isinstance(program, PlainProgram):
            raise InvalidUsageError(
                "a transaction may access rows of buckets that its event does not name",
                procedure=program.name,
                because=obstacle,
                hint="let the partition_by column of each key be an attribute of the event or a value of "
                "route=, or use buckets=1",
            )
        return cls(program, buckets, order)

    @cached_property
    def _placements(self) -> dict[str, Placement]:
        return place_tables({spec.name: spec for spec in self.program.tables}, self.buckets, {})

    @cached_property
    def copies_buckets(self) -> bool:
        """Return whether the coordinator needs whole tables: rows are unknown, or a table is replicated."""
        route = find_route(self.program, self._placements, with_writes=True)
        known = all(isinstance(one, str) for keys in route.keys for one in keys.origins)
        is_exported = route.is_single or (known and len(self._placements) == len(self.program.tables))
        return bool(route.writes) or not is_exported

    @cached_property
    def _route(self) -> Route:
        route = find_route(self.program, self._placements, with_writes=True)
        if not self.copies_buckets:
            return route
        keys = [
            replace(one, origins=tuple(
                origin if place in one.places else None for place, origin in enumerate(one.origins)
            ))
            for one in route.keys
        ]  # fmt: skip
        return replace(route, keys=tuple(dict.fromkeys(keys)))

    def _keys(self, events: pa.RecordBatch) -> EventKeys:
        return EventKeys(self.program, self._route, events, self._placements, _find_nothing)

    def places(self, events: pa.RecordBatch) -> list[Numbers]:
        """Return, for each bucket, the positions of the events that need it, in ascending order.

        An event that determines no row goes to the first bucket.
        """
        starts, buckets = self._keys(events).by_event()
        counts = np.diff(starts)
        owners = np.repeat(np.arange(events.num_rows), counts)
        places = []
        for bucket in range(self.buckets):
            needs_it = (counts == 0) & (bucket == 0)
            needs_it[owners[buckets == bucket]] = True  # a mask is several times as fast as `unique`
            places.append(np.flatnonzero(needs_it))
        return places

    def split(self, events: pa.RecordBatch, bucket: int) -> Split:
        """Divide the transactions that need a bucket: the bucket runs or forwards each of them.

        Parameters
        ----------
        events : pyarrow.RecordBatch
            All events of a micro-batch that need the bucket, in their order, with exactly the columns of the
            program's event.
        bucket : int
            The number of the bucket.
        """
        keys = self._keys(events)
        homes = keys.homes(self.buckets) if self.order == ARRIVAL else keys.alone()
        is_forwarded = homes == FORWARDED
        starts, buckets = keys.by_event()
        first = np.append(buckets, 0)[starts[:-1]]
        is_counted = np.where(np.diff(starts) > 0, first, 0) == bucket
        own, forwarded = np.flatnonzero(~is_forwarded), np.flatnonzero(is_forwarded & is_counted)
        if self.order == ARRIVAL:
            numbers = np.cumsum(is_counted) - 1
            own_numbers, forwarded_numbers = numbers[own], numbers[forwarded]
        else:
            own_numbers = np.arange(len(own))
            forwarded_numbers = np.arange(len(forwarded)) + len(own)
        return Split(own, np.flatnonzero(is_forwarded), forwarded, own_numbers, forwarded_numbers)

    def rows(self, state: TableSet, events: pa.RecordBatch, bucket: int) -> dict[str, pa.RecordBatch]:
        """Return, for each table, the bucket's rows that forwarded events need.

        If `copies_buckets` is true, the result is empty.
        """
        if self.copies_buckets:
            return {}
        event_keys, found = self._keys(events), dict[str, list[pa.RecordBatch]]()
        for keys in self._route.keys:
            schema = state[keys.table].spec.key_schema
            columns = [
                column.cast(field.type, safe=False)
                for column, field in zip(event_keys.keys(keys), schema, strict=True)
            ]
            found.setdefault(keys.table, []).append(pa.RecordBatch.from_arrays(columns, schema=schema))
        own = {name: self._placements[name].split(concat(parts))[bucket] for name, parts in found.items()}
        return {name: state[name].rows_of(keys, self.exported[name]) for name, keys in own.items()}

    @cached_property
    def exported(self) -> dict[str, pa.Schema]:
        """For each table, the columns of the rows that buckets export.

        For a table that the program changes, these are all columns. For any other table, they are the key and
        the columns that the program's kernel uses.
        """
        named = {node.id for node in ast.walk(ast.parse(self.program.source)) if isinstance(node, ast.Name)}
        changed = {change[1] for change in self.program.changes}
        schemas = {}
        for number, spec in enumerate(self.program.tables):
            code = TableCode(spec, number)
            needed = (
                spec.name in changed
                or name in spec.key
                or not named.isdisjoint({code.column(name), code.null(name)})
                for name in spec.names
            )
            schemas[spec.name] = pa.schema(
                [field for field, one in zip(spec.schema, needed, strict=True) if one]
            )
        return schemas

    def run(
        self, events: pa.RecordBatch, rows: Mapping[str, Sequence[pa.RecordBatch]]
    ) -> tuple[pa.RecordBatch, list[Changes]]:
        """Run forwarded transactions; return a row of results for each event, and the changes to each bucket.

        Parameters
        ----------
        events : pyarrow.RecordBatch
            The forwarded events of all buckets, in their order.
        rows : mapping
            The exported rows of all buckets, by table, with the columns of `exported`.
        """
        state = TableSet(self.program.tables)
        for name, parts in rows.items():
            if some := [part for part in parts if part.num_rows]:
                state[name].upsert(_complete(concat(some), state[name].spec.schema), dirty=False)
        return self.run_over(state, events)

    def run_over(self, state: TableSet, events: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Changes]]:
        """Run forwarded transactions over `state`, which has the rows of all their buckets; see `run`."""
        counts = -self._count(state)
        results = state.run(self.program, events)
        counts += self._count(state)
        blocks: list[dict[str, pa.RecordBatch]] = [{} for _ in range(self.buckets)]
        for spec in self.program.tables:
            for block_name, block in state[spec.name].delta().items():
                if not block.num_rows:
                    continue
                # The stored bytes must not depend on the order in which buckets' rows arrive.
                rows_by_key = block.sort_by([(name, "ascending") for name in spec.key])
                placement = self._placements.get(spec.name)
                parts = [rows_by_key] * self.buckets if placement is None else placement.split(rows_by_key)
                for own, part in zip(blocks, parts, strict=True):
                    if part.num_rows:
                        own[block_name] = part
        return results, [Changes(own, int(more)) for own, more in zip(blocks, counts, strict=True)]

    def _count(self, state: TableSet) -> Numbers:
        """Count the rows of each bucket in the tables in which the program inserts or deletes rows."""
        counts = np.zeros(self.buckets, np.int64)
        for name in {change[1] for change in self.program.changes if change[0] != "column"}:
            placement = self._placements.get(name)
            if placement is None:
                counts += len(state[name])
                continue
            values = [state[name].key_column(one) for one in placement.names]
            counts += np.bincount(placement.partitions_of(placement.columns, values), minlength=self.buckets)
        return counts

    @property
    def event(self) -> pa.Schema:
        """The schema of the program's events."""
        return event_schema(self.program.event)


def _complete(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add the missing columns to rows, filled with nulls; the program does not read these columns."""
    arrays = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _find_nothing(found: Found, values: Sequence[Any]) -> tuple[Numbers, pa.RecordBatch]:
    raise InternalError("a route without indexes reads an index", table=found.table)


def bucket_route(program: Program) -> Route:
    """Return the route by which the transactions of a program find their buckets."""
    placements = place_tables({spec.name: spec for spec in program.tables}, 1, {})
    return find_route(program, placements, with_writes=True)


def forwarding_obstacle(program: Program | PlainProgram) -> str | None:
    """Return the reason why transactions of several buckets cannot be forwarded; None if they can."""
    if isinstance(program, PlainProgram):
        return "Python runs it"
    for spec in program.tables:
        if spec.window is not None:
            return spec.why_one_bucket
        if spec.partition_by is not None and pa.types.is_decimal(spec.column(spec.partition_by).type):
            return f"the table {spec.name} is partitioned by a decimal"
    route = bucket_route(program)
    if route.obstacle is not None:
        return route.obstacle
    for keys in () if route.is_single else route.keys:  # single-bucket transactions are checked elsewhere
        if any(isinstance(origin, Found) for origin in keys.partition):
            return f"an index finds the bucket of rows of {keys.table}"
    return None if route.keys else "it accesses no table with partition_by"
