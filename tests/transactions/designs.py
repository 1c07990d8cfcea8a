"""Random traces of transactions, and the cost of a design by sets: the oracle of the cost model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.designing.traces.trace import Mode, Trace, TraceBuilder, column_numbers
from penstock.designing.workload import TableOption
from penstock.procedures.databases import Database
from penstock.procedures.partitions.placement import Placement, hash_numbers

KINDS = {"a": "bigint", "b": "bigint", "s": "string"}


@dataclass
class Access:
    """An access of a transaction; a value is None if it is not known."""

    table: str
    writes: bool
    key: dict[str, Any]


Transaction = list[Access]


def random_database(draw: np.random.Generator, tables: int) -> Database:
    """Return a database whose tables have one to three columns in their keys."""
    database = penstock.database("random")
    for number in range(tables):
        key = [name for name in KINDS if draw.random() < 0.6] or ["a"]
        columns = ", ".join(f"{name} {KINDS[name]}" for name in key)
        declared = str(draw.choice(key)) if draw.random() < 0.5 else None
        database.table(f"t{number}", f"{columns}, x bigint", key=key, partition_by=declared)
    return database


def random_transactions(draw: np.random.Generator, database: Database, count: int) -> list[Transaction]:
    """Return transactions of a few kinds: a kind accesses the same tables, mostly with common values."""
    kinds = []
    names = list(database.tables)
    for _ in range(3):
        chosen = [str(name) for name in draw.choice(names, draw.integers(1, len(names) + 1))]
        kinds.append([(name, draw.random() < 0.4, draw.random() < 0.1) for name in chosen])
    spread = int(draw.integers(2, 40))
    transactions = []
    for _ in range(count):
        common: dict[str, Any] = {
            "a": int(draw.integers(spread)),
            "b": int(draw.integers(5)),
            "s": f"s{draw.integers(30)}",
        }
        transaction = []
        for name, writes, is_hidden in kinds[draw.choice(3, p=[0.6, 0.3, 0.1])]:
            key: dict[str, Any] = {}
            for column in database.tables[name].key:
                other = common[column] if draw.random() < 0.9 else common[column] * 2
                key[column] = None if is_hidden and column != "b" else other
            transaction.append(Access(name, bool(writes), key))
        transactions.append(transaction)
    return transactions


def trace_of(
    database: Database, transactions: Sequence[Transaction], routes: Sequence[dict[str, int]] = ()
) -> Trace:
    """Return the trace of transactions, a recorded one with attributes by which they may be routed."""
    builder = TraceBuilder(database, dict.fromkeys(database.tables, 100), recorded=bool(routes))
    for number, transaction in enumerate(transactions):
        procedure = f"p{len(transaction)}"
        at = builder.begin([procedure])
        assert at.tolist() == [number]
        for name, value in routes[number].items() if routes else ():
            hashes = hash_numbers(np.array([value], np.int64))
            builder.add_routes(procedure, at, {name: (hashes, np.ones(1, np.bool_))})
        for access in transaction:
            spec = database.tables[access.table]
            values = [
                None if access.key[name] is None
                else column_numbers(spec.column(name), pa.array([access.key[name]], spec.column(name).type))
                for name in spec.key
            ]  # fmt: skip
            mode = Mode.WRITE if access.writes else Mode.READ
            builder.add(at, builder.places[access.table], mode, values)
    return builder.build()


def partitions_of(
    database: Database, transaction: Transaction, design: Mapping[str, TableOption], partitions: int
) -> set[int]:
    """Return the partitions that a transaction needs."""
    needed: set[int] = set()
    for access in transaction:
        option = design[access.table]
        if option.column is None:
            needed |= set(range(partitions)) if access.writes else set()
        elif any(access.key[name] is None for name in option.columns):
            needed |= set(range(partitions))
        else:
            spec = database.tables[access.table]
            place = Placement(spec, partitions, option.ranges, option.columns)
            values = [pa.array([access.key[one.name]], one.type) for one in place.columns]
            needed.add(int(place.partitions_of(place.columns, values)[0]))
    return needed


def naive_cost(needed: Sequence[set[int]], partitions: int, intervals: int) -> tuple[float, float, float]:
    """Return coordination cost, skew factor, and the share of single-partition transactions."""
    distributed = [one for one in needed if len(one) > 1]
    coordination = sum(map(len, distributed)) / (len(needed) * partitions)
    coordination *= 1 + len(distributed) / len(needed)
    skews = []
    for number in range(intervals):
        chosen = [one for place, one in enumerate(needed) if place * intervals // len(needed) == number]
        counts = [0.0] * partitions
        for one in chosen:
            for place in one or range(partitions):
                counts[place] += 1.0 if one else 1 / partitions
        skews.append((_naive_skew(counts), len(chosen)))
    skew = sum(one * count for one, count in skews) / len(needed)
    return coordination, skew, 1 - len(distributed) / len(needed)


def _naive_skew(counts: Sequence[float]) -> float:
    best = 1 / len(counts)
    skew = 0.0
    for count in counts:
        ratio = count / sum(counts)
        if ratio < best:
            ratio = best + (1 - ratio / best) * (1 - best)
        skew += math.log(ratio / best)
    return skew / (math.log(1 / best) * len(counts))
