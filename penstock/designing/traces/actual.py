"""Run transactions in Python to find their accesses, if their events do not determine their partitions.

Even then, a routing attribute of the event can lead to the right partition for most of these transactions
(H-Store §4.2). Only a run shows which rows these transactions access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.designing.traces.recording import ProcedureTrace, record
from penstock.designing.traces.trace import Mode, Request, Trace, column_numbers
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.arrow_rows import as_arrow
from penstock.procedures.partitions.placement import hash_values
from penstock.procedures.partitions.predicted.routing import routing_attributes
from penstock.procedures.texts import Numbers

__all__ = ["add_actual_accesses"]

MAX_RECORDED = 50_000
"""At most this many transactions run. Later transactions with unknown keys need all partitions."""


def add_actual_accesses(trace: Trace, calls: Sequence[Request], rows: TableSet) -> Trace:
    """Return the trace; add `Trace.actual` if an attribute may route transactions with unknown keys.

    Parameters
    ----------
    trace : Trace
        The trace that `declare` made of the calls.
    calls : sequence of tuple
        Pairs of a procedure's name and its events, in the order of calls.
    rows : TableSet
        The rows that the tables have before the calls.
    """
    database = trace.database
    routed = {
        name: attributes
        for name in trace.procedures
        if name in database.procedures and (attributes := _attributes_of(database, name))
    }
    if not routed:
        return trace
    recorded = {one.procedure: one for one in record(database, _recordable(database, calls), rows)}
    routes = np.zeros((max(map(len, routed.values())), trace.transactions), np.int64)
    has_route = np.zeros(routes.shape, np.bool_)
    chosen: list[tuple[Numbers, ProcedureTrace]] = []
    for place, name in enumerate(trace.procedures):
        if name in routed and name in recorded:
            one = recorded[name]
            numbers = np.flatnonzero(trace.procedure == place)[: one.transactions]
            chosen.append((numbers, one))
            columns = {column.name: column for column in one.program.event}
            for at, attribute in enumerate(routed[name]):
                values = one.events.column(attribute)
                routes[at, numbers] = hash_values(columns[attribute], values)
                has_route[at, numbers] = values.is_valid().to_numpy(zero_copy_only=False)
    used = tuple(routed.get(name, ()) if name in recorded else () for name in trace.procedures)
    declared = replace(trace, attributes=used, routes=routes, has_route=has_route)
    return replace(declared, actual=_replace_accesses(declared, chosen))


def _attributes_of(database: Database, name: str) -> tuple[str, ...]:
    """Return the attributes that may route a procedure; none if events determine all keys of its accesses."""
    compiled = database.procedures[name].programs
    programs = [program for program in compiled if isinstance(program, Program) and not program.stages]
    if not programs or len(programs) < len(compiled):
        return ()
    if all(None not in access.origins for program in programs for access in program.accesses):
        return ()
    names = [set(routing_attributes(program)) for program in programs]
    return tuple(one for one in routing_attributes(programs[0]) if all(one in other for other in names))


def _recordable(database: Database, calls: Sequence[Request]) -> list[Request]:
    """Return the first calls that Python can run, with at most `MAX_RECORDED` events.

    Calls that are left out do not run, so they change no rows.
    """
    found: list[Request] = []
    left = MAX_RECORDED
    for name, events in calls:
        if left <= 0:
            break
        definition = database.procedures.get(name)
        if definition is None:
            continue
        part = as_arrow(events, owner=name).slice(0, left)
        program = definition.program(part.schema)
        if isinstance(program, Program) and all(spec.name in database.tables for spec in program.tables):
            found.append((name, part))
            left -= part.num_rows
    return found


def _replace_accesses(trace: Trace, chosen: Sequence[tuple[Numbers, ProcedureTrace]]) -> Trace:
    """Return the trace in which the chosen transactions have the accesses that they made in a run."""
    places = {spec.name: place for place, spec in enumerate(trace.tables)}
    replaced = np.zeros(trace.transactions, np.bool_)
    for numbers, _ in chosen:
        replaced[numbers] = True
    kept = ~replaced[trace.transaction]
    transactions, tables, modes = [trace.transaction[kept]], [trace.table[kept]], [trace.mode[kept]]
    values, known = [trace.values[:, kept]], [trace.known[:, kept]]
    for numbers, one in chosen:
        owner = numbers[np.repeat(np.arange(one.transactions), np.diff(one.starts))]
        for place, name in enumerate(one.names):
            owners = owner[one.query == place]
            transactions.append(owners)
            tables.append(np.full(len(owners), places[name.table], np.int16))
            modes.append(np.full(len(owners), Mode.WRITE if name.writes else Mode.READ, np.int8))
            numbers_of_keys = np.zeros((len(trace.values), len(owners)), np.int64)
            exists = np.zeros(numbers_of_keys.shape, np.bool_)
            columns = trace.tables[places[name.table]].key_columns
            for at, (column, array) in enumerate(zip(columns, one.keys[place], strict=True)):
                numbers_of_keys[at] = column_numbers(column, array)
                exists[at] = array.is_valid().to_numpy(zero_copy_only=False)
            values.append(numbers_of_keys)
            known.append(exists)
    order = np.argsort(np.concatenate(transactions), kind="stable")
    return replace(
        trace,
        transaction=np.concatenate(transactions)[order],
        table=np.concatenate(tables)[order],
        mode=np.concatenate(modes)[order],
        index=np.zeros(len(order), np.int64),
        values=np.concatenate(values, axis=1)[:, order],
        known=np.concatenate(known, axis=1)[:, order],
    )
