"""GS: sum the values of ten records, or write ten (TStream §VI-A)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.programs.packaged import (
    PackagedProgram,
    events_of,
    fractions,
    integers,
    lists,
    zipf,
)

__all__ = ["GREP_AND_SUM"]

OPEN, READ, WRITE = range(3)
_LENGTH = 10
_SKEW = 0.6

_gs = database("GS")
_gs.table(
    "records",
    # A record has 128 bytes.
    "id bigint, value bigint NOT NULL, " + ", ".join(f"f{place} bigint NOT NULL" for place in range(14)),
    key="id",
)


@_gs.procedure(
    event="kind bigint NOT NULL, keys array<bigint> NOT NULL, value bigint NOT NULL", returns="total bigint"
)
def grep(e: Any, records: Any) -> Any:
    """Sum the values of records, or set them."""
    if e.kind == OPEN:
        records.insert(
            id=e.keys[0], value=e.value, f0=0, f1=0, f2=0, f3=0, f4=0, f5=0, f6=0, f7=0, f8=0, f9=0, f10=0,
            f11=0, f12=0, f13=0,
        )  # fmt: skip
        return None
    total = 0
    if e.kind == READ:
        for key in e.keys:
            total += records[key].value
    else:
        for key in e.keys:
            records[key].value = e.value
    return total


def _opening(keys: int) -> pa.RecordBatch:
    ids = np.arange(keys)
    return events_of(grep, [OPEN, lists(ids, 1), ids])


def _workload(count: int, keys: int, seed: int) -> pa.RecordBatch:
    kinds = np.where(fractions(seed, count) < 0.5, READ, WRITE)
    records = lists(zipf(seed + 1, _LENGTH * count, keys, _SKEW), _LENGTH)
    return events_of(grep, [kinds, records, integers(seed + 2, count, 1000)])


GREP_AND_SUM = PackagedProgram("GS", "sum ten records, or write ten", _gs, grep, _opening, _workload)
"""Half of the transactions read ten records, half write ten. Keys have a Zipf distribution (exponent 0.6)."""
