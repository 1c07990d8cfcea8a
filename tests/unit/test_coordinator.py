"""Both stages of transactions over several buckets, without Spark: parcels in, parcels out."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.checkpointing.files import open_files
from penstock.errors import CorruptDataError
from penstock.procedures.analysis.columns import ResultRows
from penstock.procedures.compiler.program import Program
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.bucket_forwarding import Forwarding
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.connection import Shared
from penstock.spark_ext.border.initial_rows import InitialRows
from penstock.spark_ext.border.parcels import COORDINATOR, from_parcel, to_parcels
from penstock.spark_ext.border.transaction_packing import TransactionPacker
from penstock.spark_ext.forwarding.coordinator import Coordinator
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel
from penstock.spark_ext.worker.stateful import take_exports
from penstock.spark_ext.worker.transaction_operator import TransactionOperator
from penstock.state_store.bucket_store import BucketStore, Pointer
from tests.procedures import results_of
from tests.property.test_forwarding import BANK, PROGRAM, PROGRAMS, RATES, batch_of, tables

BUCKETS = 3
ROWS = [
    {"kind": kind, "source": source, "target": target, "name": name, "amount": amount}
    for kind, source, target, name, amount in [
        ("visit", None, None, "Ada", 1), ("spend", 1, None, None, 5), ("spend", 2, None, None, 5),
        ("spend", 7, None, None, 5), ("move", 1, 2, "Ada", 20), ("spend", 1, None, None, 30),
        ("close", 2, 7, None, 0), ("spend", 7, 7, None, 60), ("move", 9, 10, None, 1),
        ("visit", 3, None, "Bo", 2), ("spend", 2, None, None, 1),
    ]
]  # fmt: skip


ORDERS = [
    {"source": source, "target": target, "name": name, "amount": amount}
    for source, target, name, amount in [
        (1, 1, "Ada", 9), (1, 1, "Ada", 7), (2, 2, "Bo", 3), (1, 2, "Ada", 5), (7, 1, "Bo", -2),
        (1, 1, "Ada", 8), (2, 9, "Bo", 4), (9, 1, "Ada", -1), (7, 2, "Ada", 1),
        (1, 7, "Bo", 6), (3, 3, "Žofie", 2),
    ]
]  # fmt: skip
"""Orders and prices are of several buckets; their rows are not known, and rates are in each bucket."""


class Query:
    """Micro-batches of a query that keeps its events in memory."""

    def __init__(self, directory: Path, order: str, program: Program, events: list[dict[str, Any]]) -> None:
        forwarding = Forwarding(program, BUCKETS, order)
        self.program, self.events = program, events
        names = tuple(forwarding.event.names)
        schema = pa.schema([*forwarding.event, ("id", pa.int64())])
        needed, tables = (*names, "id"), tuple(BANK.tables.values())
        self.packer = TransactionPacker(schema, needed, None, None, BUCKETS, forwarding=forwarding)
        rates = [{"rates": list(to_parcels([RATES]))} for _ in range(BUCKETS)]
        operator = TransactionOperator(
            program, tables, needed, ("id",), None, program.digest, order=order, forwarding=forwarding,
            initial=InitialRows(Shared(rates)),
        )  # fmt: skip
        self.task = BucketTask(
            "bank", str(directory), operator, BUCKETS, 2, retain_versions=4, origin=operator.origin
        )
        rows = ResultRows(("id",), order)
        self.coordinator = Coordinator("bank", str(directory), forwarding, tables, len(needed), rows)
        self.pointers: dict[int, Pointer] = {}

    def stage_one(self, batch: int, begin: int, end: int) -> tuple[pa.RecordBatch, dict[int, Pointer]]:
        """Run the buckets; return their output, and their new pointers."""
        events = batch_of(self.events[begin:end], self.program).append_column(
            "id", pa.array(range(begin, end))
        )
        parcels = defaultdict(list)
        for row in self.packer([events]):
            parcels[row.column("bucket")[0].as_py()].append(row.column("payload")[0].as_py())
        pointers, lines = dict(self.pointers), list[tuple[bytes | None, str | None, int]]()
        for bucket, label in enumerate(bucket_labels(BUCKETS)):
            if label not in parcels:
                continue
            own = [Parcel(0, from_parcel(payload)) for payload in parcels[label]]
            pointer, made, metrics = self.task.run(
                "query", batch, bucket, self.pointers.get(bucket), own, lambda: 0
            )
            assert pointer is not None
            pointers[bucket], exports, results = take_exports("query", batch, bucket, pointer, made)
            assert (pointers[bucket] == pointer) == (not exports)
            lines += [(payload, None, label) for payload in to_parcels(results)]
            lines.append((None, json.dumps(metrics.to_json()), label))
            lines += [(payload, None, COORDINATOR) for payload in to_parcels(exports)]
        columns: list[Any] = [list(column) for column in zip(*lines, strict=True)]
        kinds = (pa.binary(), pa.string(), pa.int32())
        arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, ["payload", "metrics", "target"]), pointers

    def stage_two(self, output: pa.RecordBatch) -> tuple[list[dict[str, Any]], int]:
        """Run the coordinator; return all results, and the number of forwarded transactions."""
        results, forwarded = list[dict[str, Any]](), 0
        shuffled = output.take(pa.array(np.random.default_rng(3).permutation(output.num_rows)))
        for batch in self.coordinator([shuffled.slice(0, 2), shuffled.slice(2)]):
            for payload, metrics in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
                if metrics is not None:
                    forwarded += json.loads(metrics)["forwarded"]
                if payload is not None:
                    results += from_parcel(payload).to_pylist()
        return results, forwarded

    def tables(self) -> list[TableSet]:
        """Return the tables of all buckets."""
        found = []
        for bucket, pointer in self.pointers.items():
            found.append(TableSet(BANK.tables.values()))
            place = open_files(self.task.state_location).child("query").child("bank")
            BucketStore(place.child(f"{bucket:05d}")).load(pointer, found[-1])
        return found


@pytest.mark.parametrize(("name", "order"), [("act", "arrival"), ("act", "any"), ("order", "any")])
def test_parcels_pass_through_both_stages(tmp_path: Path, name: str, order: str) -> None:
    program, given = PROGRAMS[name], ROWS if name == "act" else ORDERS
    query = Query(tmp_path, order, program, given)
    made: list[dict[str, Any]] = []
    forwarded = 0
    for number, (begin, end) in enumerate([(0, 6), (6, 11)]):
        query.stage_two(query.stage_one(number, begin, end)[0])  # a crash before Spark commits
        output, pointers = query.stage_one(number, begin, end)
        results, count = query.stage_two(output)
        query.pointers = pointers
        made, forwarded = made + results, forwarded + count
    place = ("batch", "forwarded", "id") if order == "any" else ("id",)
    made.sort(key=lambda row: [row[name] for name in place])
    state = TableSet(BANK.tables.values())
    state.load("rates", RATES)
    expected = results_of([state.run(program, batch_of([given[row["id"]] for row in made], program))])
    names = [result.name for result in program.results]
    assert [tuple(row[one] for one in (*names, "rejected")) for row in made] == expected
    if order == "any":
        assert sum(row["forwarded"] for row in made) == forwarded
    assert 0 < forwarded < len(ROWS)
    assert tables(query.tables()) == tables([state])
    assert sum(one.forwarded for one in query.tables()) == forwarded
    for bucket in query.pointers:
        own = [(row["transaction"], row["id"]) for row in made if row["bucket"] == bucket]
        assert sorted(number for number, _ in own) == list(range(len(own)))
        assert order == "any" or own == sorted(own)


def test_other_events_under_the_number_of_a_micro_batch_are_refused(tmp_path: Path) -> None:
    query = Query(tmp_path, "arrival", PROGRAM, ROWS)
    query.stage_two(query.stage_one(0, 0, 5)[0])
    with pytest.raises(CorruptDataError, match="ahead of the checkpoint"):
        query.stage_two(query.stage_one(0, 0, 6)[0])
