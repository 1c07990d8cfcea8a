"""YCSB, workloads A to F: reads, updates, inserts and scans of one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.programs.oltp.benchmark import Draws, OltpBenchmark, table_of
from penstock.procedures.programs.packaged import events_of, scatter, zipf_ranks

__all__ = ["WORKLOADS", "YCSB", "YcsbScale"]

KINDS = READ, UPDATE, INSERT, SCAN, READ_MODIFY = range(5)
FIELDS = 10
FIELD_SIZE = 100
LONGEST_SCAN = 100
SKEW = 0.99
WORKLOADS = {
    "a": (50, 50, 0, 0, 0),
    "b": (95, 5, 0, 0, 0),
    "c": (100, 0, 0, 0, 0),
    "d": (95, 0, 5, 0, 0),
    "e": (0, 0, 5, 95, 0),
    "f": (50, 0, 0, 0, 50),
}
"""The percentages of reads, updates, inserts, scans, and reads with modification. D reads new records."""

_store = database("ycsb")
_store.table(
    "records",
    ", ".join(["id bigint", *(f"field{number} string NOT NULL" for number in range(FIELDS))]),
    key="id",
    partition_by="id",
    indexes=["id"],
)


@_store.procedure(
    event="kind bigint NOT NULL, id bigint NOT NULL, count bigint NOT NULL, value string NOT NULL",
    returns="field string, found bigint",
)
def transact(e: Any, records: Any) -> Any:
    """Run an operation of the kind ``e.kind``; return a field, and the number of records that it found."""
    if e.kind == INSERT:
        records.insert(
            id=e.id, field0=e.value, field1=e.value, field2=e.value, field3=e.value, field4=e.value,
            field5=e.value, field6=e.value, field7=e.value, field8=e.value, field9=e.value,
        )  # fmt: skip
        return e.value, 1
    if e.kind == SCAN:
        found = 0
        last = None
        for record in records.by("id")[e.id :].first(e.count):
            last = record.field9
            found += 1
        return last, found
    record = records[e.id]
    before = record.field0
    if e.kind != READ:
        record.field0 = e.value
    if e.kind == UPDATE:
        return None, 1
    return before, 1


@dataclass(frozen=True)
class YcsbScale:
    """The size of YCSB's table.

    Parameters
    ----------
    records : int
        The number of records at first.
    workload : str
        The letter of a workload in `WORKLOADS`.
    """

    records: int = 1_000_000
    workload: str = "a"


def _first_rows(scale: YcsbScale) -> dict[str, pa.Table]:
    draws = Draws(1)
    fields = {f"field{n}": draws.texts(scale.records, FIELD_SIZE, FIELD_SIZE) for n in range(FIELDS)}
    return {"records": table_of(_store, "records", {"id": np.arange(scale.records), **fields})}


def _requests(scale: YcsbScale, count: int, seed: int) -> pa.RecordBatch:
    draws = Draws(seed + 1)
    kinds = np.repeat(KINDS, WORKLOADS[scale.workload])[draws.integers(count, 0, 99)]
    is_insert = kinds == INSERT
    # This is the number of records when a request runs, if one call of this function made all requests.
    records = scale.records + np.cumsum(is_insert) - is_insert
    ranks = zipf_ranks(seed, count, scale.records, SKEW)
    keys = records - 1 - ranks if scale.workload == "d" else scatter(ranks, scale.records)
    values = draws.texts(count, FIELD_SIZE, FIELD_SIZE)
    columns = [kinds, np.where(is_insert, records, keys), draws.integers(count, 1, LONGEST_SCAN), values]
    return events_of(transact, columns)


YCSB = OltpBenchmark(
    "ycsb",
    "read, update, insert or scan records",
    _store,
    transact,
    YcsbScale(),
    YcsbScale(records=200),
    _first_rows,
    _requests,
    {
        "ids have no gaps": "SELECT max(id), count(*) FROM records HAVING max(id) + 1 <> count(*)",
        "fields have their size": "SELECT * FROM records WHERE length(field0 || field9) <> 200",
    },
)
"""YCSB: 1 kB records; keys of requests are Zipf-distributed with exponent 0.99."""
