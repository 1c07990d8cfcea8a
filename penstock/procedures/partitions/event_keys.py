"""The keys that events have: which rows and partitions each transaction needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.compiler.program import Program
from penstock.procedures.partitions.forwarding import forward
from penstock.procedures.partitions.placement import Placement, hash_values
from penstock.procedures.partitions.routes import Keys, Route
from penstock.procedures.schema import Column
from penstock.procedures.texts import Numbers

__all__ = ["homes_of", "keys_of"]

_RESOURCES_PER_KEY = 16
"""So many numbers of resources for each key that few transactions are forwarded for a number they share."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class _Attribute:
    column: Column
    values: pa.Array[Any]


def _attributes_of(program: Program, events: pa.RecordBatch, names: Sequence[str]) -> list[_Attribute]:
    columns = {column.name: column for column in program.event}
    return [_Attribute(columns[name], events.column(name)) for name in names]


def homes_of(
    program: Program,
    route: Route,
    events: pa.RecordBatch,
    placements: Mapping[str, Placement],
    partitions: int,
) -> Numbers:
    """Return the partition in which each transaction runs, or `FORWARDED`.

    The attributes of the route say the partitions.
    """
    if not route.keys:  # it only reads what every partition has
        return np.arange(events.num_rows) * partitions // max(events.num_rows, 1)
    places = [
        placements[keys.table].partitions_of(attribute.column, attribute.values)
        for keys in route.keys
        for attribute in _attributes_of(program, events, [keys.partition])
    ]
    if all((one == places[0]).all() for one in places[1:]):
        return places[0]
    needed = np.stack(places, axis=1)
    if route.knows_rows:
        size = 1 << int(_RESOURCES_PER_KEY * needed.size).bit_length()
        resources = np.stack([_row_numbers(program, keys, events, size) for keys in route.keys], axis=1)
    else:
        size, resources = partitions, needed
    starts = np.arange(events.num_rows + 1) * len(route.keys)
    return forward(starts, resources.reshape(-1), needed.reshape(-1), np.zeros(size, np.bool_))


def _row_numbers(program: Program, keys: Keys, events: pa.RecordBatch, size: int) -> Numbers:
    """Return a number below `size`, a power of two, for the row that each event names."""
    seed = sum(keys.table.encode())  # rows of two tables differ mostly
    numbers = np.full(events.num_rows, seed, np.uint64)
    for one in _attributes_of(program, events, [name for name in keys.attributes if name is not None]):
        numbers = (numbers ^ hash_values(one.column, one.values).view(np.uint64)) * _MIX
    return (numbers >> np.uint64(64 - size.bit_length() + 1)).astype(np.int64)


def keys_of(program: Program, keys: Keys, events: pa.RecordBatch) -> list[pa.Array[Any]]:
    """Return the columns of the keys that events name, without those that have a null: no row has one."""
    columns = [
        one.values
        for one in _attributes_of(program, events, [name for name in keys.attributes if name is not None])
    ]
    if not any(column.null_count for column in columns):
        return columns
    exists = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
    return [column.filter(pa.array(exists)) for column in columns]
