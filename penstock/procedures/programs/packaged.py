"""Packaged programs, and random draws for their events.

Draws are hashes of a seed and an event's number, so every process draws the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.procedures.databases import Database
from penstock.procedures.engine import event_schema
from penstock.procedures.procedure import Procedure

__all__ = ["PackagedProgram", "events_of", "fractions", "integers", "lists", "scatter", "zipf", "zipf_ranks"]

Integers = NDArray[np.int64]

_SEED = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class PackagedProgram:
    """A program of transactions with its events.

    Attributes
    ----------
    name : str
        The short name of the program.
    summary : str
        The purpose of a transaction.
    database : Database
        The tables and procedures.
    procedure : Procedure
        The procedure to run for each event.
    opening : callable
        Maps a number of keys to the events that fill the empty tables.
    workload : callable
        Maps a number of events, a number of keys and a seed to events for tables with these keys.
    """

    name: str
    summary: str
    database: Database
    procedure: Procedure
    opening: Callable[[int], pa.RecordBatch]
    workload: Callable[[int, int, int], pa.RecordBatch]


def events_of(procedure: Procedure, columns: Sequence[Any]) -> pa.RecordBatch:
    """Return events of a procedure; each column is an array, or one value for all events."""
    schema = event_schema(procedure.program().event)
    rows = max(len(column) for column in columns if not isinstance(column, int | float | str))
    arrays = [
        pa.array([value] * rows, field.type)
        if isinstance(value, int | float | str)
        else value
        if isinstance(value, pa.Array)
        else pa.array(value, field.type)
        for value, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _hashes(seed: int, count: int) -> NDArray[np.uint64]:
    """Return the SplitMix64 hashes of `count` numbers."""
    hashes = np.arange(1, count + 1, dtype=np.uint64)
    hashes *= np.uint64(_SEED)
    hashes += np.uint64(seed * 0xD1342543DE82EF95 & _WORD)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes ^= hashes >> np.uint64(shift)
        hashes *= np.uint64(factor)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def fractions(seed: int, count: int) -> NDArray[np.float64]:
    """Draw numbers from 0 to less than 1."""
    return (_hashes(seed, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(seed: int, count: int, stop: int) -> Integers:
    """Draw integers from 0 to less than `stop`."""
    return (fractions(seed, count) * stop).astype(np.int64)


def zipf(seed: int, count: int, keys: int, skew: float) -> Integers:
    """Draw keys of a Zipf distribution; frequent keys are scattered over the whole range."""
    return scatter(zipf_ranks(seed, count, keys, skew), keys)


def zipf_ranks(seed: int, count: int, keys: int, skew: float) -> Integers:
    """Draw ranks of a Zipf distribution; 0 is the most frequent rank."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    bounds = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(bounds, fractions(seed, count)), keys - 1)


def scatter(ranks: Integers, keys: int) -> Integers:
    """Return a key for each rank, so that the keys of neighbouring ranks are far apart."""
    # The factor is a prime, so no two ranks have one key.
    return (ranks * 2_654_435_761 % keys).astype(np.int64)


def lists(values: Integers, sizes: Integers | int) -> pa.Array[Any]:
    """Return consecutive values as lists of given sizes."""
    if isinstance(sizes, int):
        sizes = np.full(len(values) // max(sizes, 1), sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
