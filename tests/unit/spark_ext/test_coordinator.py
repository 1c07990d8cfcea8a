"""Both stages of transactions over several buckets, without Spark: parcels in, parcels out."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import _durable
from penstock.checkpointing.files import open_files
from penstock.errors import CorruptDataError, UnavailableError
from penstock.procedures.analysis.columns import ResultRows
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.bucket_forwarding import Forwarding
from penstock.procedures.programs.oltp import OLTP, OltpBenchmark
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.connection import Shared
from penstock.spark_ext.border.initial_rows import InitialRows, _partition
from penstock.spark_ext.border.parcels import COORDINATOR, from_parcel, to_parcels
from penstock.spark_ext.border.transaction_packing import TransactionPacker
from penstock.spark_ext.forwarding.coordinator import Coordinator
from penstock.spark_ext.forwarding.exports import take_exports
from penstock.spark_ext.worker.bucket_task import _RELEASES, BucketTask, Parcel, _background
from penstock.spark_ext.worker.transaction_operator import TransactionOperator
from penstock.state_store.bucket_store import BucketStore, Pointer
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.long_tests import long_but
from tests.property.procedures.partitions.test_forwarding import BANK, PROGRAM, PROGRAMS, RATES, batch_of
from tests.transactions.procedures import contents, interpreted, results_of

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

    def __init__(
        self,
        directory: Path,
        order: str,
        program: Program,
        events: pa.RecordBatch,
        database: Database = BANK,
        initial: Mapping[str, pa.Table | pa.RecordBatch] = MappingProxyType({"rates": RATES}),
    ) -> None:
        forwarding = Forwarding.plan(program, BUCKETS, order)
        self.events, self.database = events, database
        names = tuple(forwarding.event.names)
        schema = pa.schema([*forwarding.event, ("place", pa.int64())])
        needed, tables = (*names, "place"), tuple(database.tables.values())
        self.packer = TransactionPacker(schema, needed, None, None, BUCKETS, forwarding=forwarding)
        first: list[dict[str, list[bytes]]] = [{} for _ in range(BUCKETS)]
        for name, rows in initial.items():
            table, column = pa.table(rows), database.tables[name].partition_by
            every = ((bucket, table) for bucket in range(BUCKETS))
            split = every if column is None else _partition(table, name, column, BUCKETS, None)
            for bucket, part in split:
                first[bucket][name] = list(to_parcels(part.to_batches()))
        operator = TransactionOperator(
            program, tables, needed, ("place",), None, program.digest, order=order, forwarding=forwarding,
            initial=InitialRows(Shared(first)),
        )  # fmt: skip
        self.task = BucketTask(
            "bank", str(directory), operator, BUCKETS, 2, retain_versions=4, origin=operator.origin
        )
        results = ResultRows(("place",), order)
        self.coordinator = Coordinator("bank", str(directory), forwarding, tables, len(needed), results)
        self.pointers: dict[int, Pointer] = {}

    def stage_one(self, batch: int, begin: int, end: int) -> tuple[pa.RecordBatch, dict[int, Pointer]]:
        """Run the buckets; return their output, and their new pointers."""
        events = self.events.slice(begin, end - begin).append_column("place", pa.array(range(begin, end)))
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

    def states(self) -> list[TableSet]:
        """Return the tables of all buckets."""
        found = []
        for bucket, pointer in self.pointers.items():
            found.append(TableSet(self.database.tables.values()))
            place = open_files(self.task.state_location).child("query").child("bank")
            BucketStore(place.child(f"{bucket:05d}")).load(pointer, found[-1])
        return found


@pytest.fixture(params=long_but(["small_bank", "tpcc"], "small_bank"))
def benchmark_program(request: pytest.FixtureRequest) -> Iterator[OltpBenchmark]:
    """Let Python run the kernel of a benchmark, since machine code takes long to make."""
    benchmark = OLTP[request.param]
    program = benchmark.procedure.program()
    program.__dict__["kernel"] = interpreted(program)
    yield benchmark
    del program.__dict__["kernel"]


def check_both_stages(query: Query, state: TableSet, program: Program, cuts: Sequence[int]) -> None:
    """Run micro-batches; compare results, their numbers and the tables with the serial run over `state`."""
    made: list[dict[str, Any]] = []
    forwarded, order, events = 0, query.coordinator.rows.order, query.events
    for number, (begin, end) in enumerate(itertools.pairwise((*cuts, events.num_rows))):
        query.stage_two(query.stage_one(number, begin, end)[0])  # a crash before Spark commits
        output, pointers = query.stage_one(number, begin, end)
        results, count = query.stage_two(output)
        query.pointers = pointers
        made, forwarded = made + results, forwarded + count
    by = ("batch", "forwarded", "place") if order == "any" else ("place",)
    made.sort(key=lambda row: [row[name] for name in by])
    expected = results_of([state.run(program, events.take(pa.array([row["place"] for row in made])))])
    names = [result.name for result in program.results]
    assert [tuple(row[one] for one in (*names, "rejected")) for row in made] == expected
    if order == "any":
        assert sum(row["forwarded"] for row in made) == forwarded
    assert 0 < forwarded < events.num_rows
    states = query.states()
    found, wanted = [contents(one, query.database) for one in states], contents(state, query.database)
    for name, spec in query.database.tables.items():
        if spec.partition_by is None:
            assert all(sorted(one[name]) == sorted(wanted[name]) for one in found), name
        else:
            assert sorted(row for one in found for row in one[name]) == sorted(wanted[name]), name
    assert sum(one.forwarded for one in states) == forwarded
    for bucket in query.pointers:
        own = [(row["transaction"], row["place"]) for row in made if row["bucket"] == bucket]
        assert sorted(number for number, _ in own) == list(range(len(own)))
        assert order == "any" or own == sorted(own)


@pytest.mark.parametrize(("name", "order"), [("act", "arrival"), ("act", "any"), ("order", "any")])
def test_parcels_pass_through_both_stages(tmp_path: Path, name: str, order: str) -> None:
    program = PROGRAMS[name]
    query = Query(tmp_path, order, program, batch_of(ROWS if name == "act" else ORDERS, program))
    state = TableSet(BANK.tables.values())
    state.load("rates", RATES)
    check_both_stages(query, state, program, [0, 6])


@pytest.mark.parametrize("order", long_but(["any", "arrival"], "any"))
def test_oltp_benchmarks_equal_the_serial_run(
    tmp_path: Path, benchmark_program: OltpBenchmark, order: str
) -> None:
    benchmark, program = benchmark_program, benchmark_program.procedure.program()
    assert isinstance(program, Program)
    scale = benchmark.small
    if benchmark.name == "tpcc":
        scale = TpccScale(warehouses=5, districts=2, customers=12, items=40)
    first = benchmark.tables(scale)
    state = TableSet(benchmark.database.tables.values())
    for name, rows in first.items():
        state.load(name, rows.combine_chunks().to_batches()[0])
    events = benchmark.requests(scale, 80, 5)
    query = Query(tmp_path, order, program, events, benchmark.database, first)
    check_both_stages(query, state, program, [0, 30, 50])


def test_files_stay_bounded_over_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_durable, "sync_everything", lambda: None)
    draw = random.Random(4)
    rows = [
        {
            "kind": "move",
            "source": draw.randrange(8),
            "target": draw.randrange(8),
            "name": None,
            "amount": 1,
        }
        for _ in range(200)
    ]
    query = Query(tmp_path, "any", PROGRAM, batch_of(rows))
    rule = SnapshotRule(max_deltas=3, min_delta_bytes=1, max_commits=4)
    query.task = replace(query.task, snapshots=rule)
    sizes, files = [], []
    for number in range(50):
        if number % 2:  # this attempt is lost
            query.stage_two(query.stage_one(number, 4 * number, 4 * number + 4)[0])
        output, pointers = query.stage_one(number, 4 * number, 4 * number + 4)
        query.stage_two(output)
        query.pointers = pointers
        _background().submit(_RELEASES.run, now=True).result()
        found = [file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()]
        sizes.append(sum(found))
        files.append(len(found))
    assert max(sizes[25:]) < 1.3 * max(sizes[:25])
    assert max(files[25:]) < 1.3 * max(files[:25])


def test_without_the_sync_of_the_plan_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path, "any", PROGRAM, batch_of(ROWS))
    output = query.stage_one(0, 0, 6)[0]

    def refuse() -> None:
        raise UnavailableError("cannot sync a file system")

    monkeypatch.setattr(_durable, "sync_everything", refuse)
    with pytest.raises(UnavailableError, match="cannot sync"):
        query.stage_two(output)
    assert not list(tmp_path.rglob("*continuation*"))
    monkeypatch.setattr(_durable, "sync_everything", lambda: None)
    query.stage_two(output)
    assert list(tmp_path.rglob("*continuation*"))


def test_other_events_under_the_number_of_a_micro_batch_are_refused(tmp_path: Path) -> None:
    query = Query(tmp_path, "arrival", PROGRAM, batch_of(ROWS))
    query.stage_two(query.stage_one(0, 0, 5)[0])
    with pytest.raises(CorruptDataError, match="ahead of the checkpoint"):
        query.stage_two(query.stage_one(0, 0, 6)[0])
