"""Transactions over several buckets equal a serial run, whatever the cuts, attempts and crashes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.checkpointing.files import open_files
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.language import abort
from penstock.procedures.partitions.bucket_forwarding import Changes, Forwarding
from penstock.procedures.partitions.continuations import continuation_of, publish_continuation
from penstock.procedures.partitions.placement import Placement
from penstock.spark_ext.forwarding.bucket_copies import BucketCopies
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer, number_of
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.transactions.procedures import contents, define, interpreted, results_of

RETAINED = 4
NAMES = ["", "Ada", "Bo", "Žofie", "a longer name than a word"]


def make_bank() -> Database:
    """Return a bank with tables by number and by text, whose rows come, go and change."""
    bank = penstock.database("bank")
    bank.table(
        "accounts", "id bigint, balance bigint NOT NULL, owner string", key="id", partition_by="id",
        indexes=["balance"],
    )  # fmt: skip
    bank.table("people", "name string, visits bigint NOT NULL", key="name", partition_by="name")
    bank.table("shelves", "zone bigint, number bigint, count bigint NOT NULL", key=("number", "zone"),
               partition_by="zone")  # fmt: skip
    bank.table("counters", "id bigint, orders bigint NOT NULL", key="id", partition_by="id")
    bank.table("orders", "id bigint, number bigint, price bigint NOT NULL", key=("id", "number"),
               partition_by="id", indexes=[("id", "price")])  # fmt: skip
    bank.table("rates", "name string, rate bigint NOT NULL", key="name")

    @bank.procedure(
        event="source bigint, target bigint, name string, amount bigint NOT NULL",
        returns="number bigint, dearest bigint",
    )
    def order(e: Any, counters: Any, orders: Any, rates: Any) -> Any:
        if e.source not in counters:
            counters.insert(id=e.source, orders=0)
        counter = counters[e.source]
        counter.orders += 1
        orders.insert(id=e.source, number=counter.orders, price=e.amount * rates[e.name].rate)
        dearest = orders.by("id", "price")[e.target].last()
        if dearest is None:
            return counter.orders, None
        price = dearest.price
        if e.amount < 0:
            del orders[(e.target, dearest.number)]
        if price > 60:
            abort("dear")
        return counter.orders, price

    @bank.procedure(
        event="kind string, source bigint, target int, name string, amount bigint NOT NULL",
        returns="left bigint, visits bigint",
    )
    def act(e: Any, accounts: Any, people: Any) -> Any:
        if e.kind == "visit":
            if e.name not in people:
                people.insert(name=e.name, visits=0)
            people[e.name].visits += e.amount
            return None, people[e.name].visits
        if e.source not in accounts:
            accounts.insert(id=e.source, balance=50)
        source = accounts[e.source]
        source.balance -= e.amount
        if e.kind == "close":
            accounts[e.target].balance += source.balance
            del accounts[e.source]
            return 0, None
        if e.kind == "move":
            accounts[e.target].balance += e.amount
        if source.balance < 0:
            abort("short")
        if e.name is not None and e.name in people:
            source.owner = e.name
        return source.balance, None

    @bank.procedure(
        event="source bigint, targets array<bigint>, names array<string>, amount bigint NOT NULL",
        returns="left bigint",
    )
    def share(e: Any, accounts: Any, people: Any) -> Any:
        if e.source not in accounts:
            accounts.insert(id=e.source, balance=50)
        for target in e.targets:
            if target not in accounts:
                accounts.insert(id=target, balance=0)
            accounts[target].balance += e.amount
            accounts[e.source].balance -= e.amount
        for name in e.names:
            if name in people:
                del people[name]
            else:
                people.insert(name=name, visits=len(e.targets))
        if accounts[e.source].balance < 0:
            abort("short")
        return accounts[e.source].balance

    @bank.procedure(
        event="source bigint, target bigint, shift bigint NOT NULL",
        returns="left bigint",
        route=("e.source // 10", "max(e.target, 0) // 10"),
    )
    def move(e: Any, shelves: Any) -> Any:
        if (e.source, e.source // 10) not in shelves:
            shelves.insert(number=e.source, zone=e.source // 10, count=2)
        shelves[(e.source, e.source // 10)].count -= 1
        if (e.target, e.target // 10 + e.shift) not in shelves:
            shelves.insert(number=e.target, zone=e.target // 10 + e.shift, count=0)
        shelves[(e.target, e.target // 10 + e.shift)].count += 1
        if shelves[(e.source, e.source // 10)].count < 0:
            abort("empty")
        return shelves[(e.source, e.source // 10)].count

    @bank.procedure(
        event="number bigint, zones bigint NOT NULL", returns="next bigint", route="e.number // 10"
    )
    def walk(e: Any, shelves: Any) -> Any:
        zone = e.number // 10
        if (e.number, zone) not in shelves:
            shelves.insert(number=e.number, zone=zone, count=e.number % 10)
        following = 10 * zone + shelves[(e.number, zone)].count
        shelves[(following, zone)].count += 1 + e.zones // max(e.number, 0)
        return following

    @bank.procedure(
        event="source bigint, target bigint, read string, name string, rate bigint NOT NULL",
        returns="orders bigint, rate bigint",
    )
    def price(e: Any, counters: Any, rates: Any) -> Any:
        if e.source is None:
            return None, rates[e.read].rate
        if e.source not in counters:
            counters.insert(id=e.source, orders=0)
        counters[e.source].orders += rates[e.read].rate if e.read in rates else 1
        if e.target is not None and e.target in counters:
            counters[e.target].orders += 1
        if e.name is not None:
            if e.name not in rates:
                rates.insert(name=e.name, rate=e.rate)
            elif e.rate < 0:
                del rates[e.name]
            else:
                rates[e.name].rate += e.rate
        if counters[e.source].orders > 30:
            abort("many")
        return counters[e.source].orders, None

    return bank


BANK = make_bank()


def _interpret(name: str) -> Program:
    program = BANK.procedures[name].program()
    assert isinstance(program, Program)
    for one in (program, program.route):
        if one is not None:
            one.__dict__["kernel"] = interpreted(one)
    return program


PROGRAMS = {name: _interpret(name) for name in BANK.procedures}
PROGRAM = PROGRAMS["act"]


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw events; a share between none and all of them may need several buckets."""
    remote, ids = draw(st.sampled_from([0.01, 0.2, 1.0])), st.integers(0, draw(st.sampled_from([3, 30])))
    made = []
    for _ in range(draw(st.integers(1, 60))):
        one, several = draw(ids), draw(st.floats(0, 1)) < remote
        kind = draw(st.sampled_from(["move", "spend", "close", "visit"]))
        name = draw(st.none() | st.sampled_from(NAMES))
        if kind == "visit":
            one_source = one if several else None
            row = {"kind": kind, "source": one_source, "target": None, "name": name or "Ada", "amount": 1}
            made.append(row)
            continue
        target = draw(st.none() | ids) if several else draw(st.sampled_from([one, None]))
        made.append({
            "kind": kind, "source": one, "target": target, "name": name if several else None,
            "amount": draw(st.integers(-20, 60)),
        })  # fmt: skip
    return made


def several(**columns: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries(columns), min_size=10, max_size=24)


def seldom_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Most transactions with a null are rejected."""
    return st.integers(0, 11).flatmap(lambda n: st.none() if n == 7 else values)


IDS, NUMBERS = st.integers(0, 12), st.integers(0, 49)
EVENTS = {
    "act": events(),
    "share": several(
        source=seldom_null(IDS),
        targets=seldom_null(st.lists(seldom_null(IDS), max_size=4)),
        names=seldom_null(st.lists(st.sampled_from(NAMES), max_size=2)),
        amount=st.integers(-5, 20),
    ),
    "move": several(
        source=seldom_null(NUMBERS), target=seldom_null(NUMBERS), shift=st.sampled_from([0, 0, 0, 1])
    ),
    "order": several(
        source=seldom_null(IDS),
        target=seldom_null(IDS),
        name=st.sampled_from(["Ada", "Ada", "Bo", "Žofie"]),
        amount=st.integers(-9, 20),
    ),
    "price": several(
        source=seldom_null(IDS),
        target=st.none() | IDS,
        read=st.sampled_from(NAMES),
        name=st.sampled_from([None, None, None, None, "Ada", "Bo", "Žofie"]),
        rate=st.integers(-5, 9),
    ),
    "walk": several(number=seldom_null(NUMBERS), zones=st.sampled_from([0, 0, 7])),
}


def batch_of(rows: Sequence[dict[str, Any]], program: Program = PROGRAM) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=Forwarding(program, 1, "any").event)


RATES = pa.RecordBatch.from_pylist(
    [{"name": "Ada", "rate": 2}, {"name": "Bo", "rate": 4}], schema=BANK.tables["rates"].schema
)


@dataclass
class Spark:
    """Micro-batches over buckets in files: any attempt may run again, and a crash may come anywhere."""

    forwarding: Forwarding
    directory: str
    draw: random.Random
    committed: dict[int, Pointer] = field(default_factory=dict)
    numbers: dict[int, list[int]] = field(default_factory=dict)
    forwarded: int = 0
    copies: BucketCopies = field(default_factory=lambda: BucketCopies(tuple(BANK.tables.values())))

    def store(self, bucket: int) -> BucketStore:
        rule = SnapshotRule(max_deltas=3, min_delta_bytes=1, max_commits=4)
        return BucketStore(open_files(f"{self.directory}/{bucket}"), retain_versions=RETAINED, snapshots=rule)

    def load(self, bucket: int) -> tuple[TableSet, Handle]:
        state, handle = TableSet(BANK.tables.values()), Handle()
        if bucket in self.committed:
            handle = self.store(bucket).load(self.committed[bucket], state)
        else:
            state.load("rates", RATES)
        return state, handle

    def old_files(self, bucket: int) -> list[str]:
        """Return files that no version needs which may still arrive, nor a snapshot of one."""
        _, handle = self.load(bucket)
        assert handle.pointer is not None
        needed, lowest = handle.needed_files(RETAINED), handle.pointer.version - RETAINED - 12
        names = [facts.name for facts in self.store(bucket).files.list()]
        return [name for name in names if (number_of(name) or 0) < lowest and name not in needed]

    def run_bucket(self, bucket: int, rows: pa.RecordBatch, places: np.ndarray) -> dict[str, Any]:
        """Run stage 1 of a bucket."""
        store = self.store(bucket)
        state, handle = self.load(bucket)
        if handle.pointer is not None:
            store.sweep(handle)
        split, first = self.forwarding.split(rows, bucket), state.transactions
        results = state.run(self.forwarding.program, rows.take(pa.array(split.own)))
        state.transactions = first + len(split.own) + len(split.forwarded)
        exported = None
        if len(split.needed):
            exported = self.forwarding.rows(state, rows.take(pa.array(split.needed)), bucket)
        pointer = store.commit(state, handle).pointer
        return {
            "pointer": pointer,
            "results": dict(zip(places[split.own].tolist(), results_of([results]), strict=True)),
            "numbers": (first + np.concatenate([split.own_numbers, split.forwarded_numbers])).tolist(),
            "forwarded": places[split.forwarded].tolist(),
            "rows": exported,
        }

    def coordinate(
        self, number: int, batch: pa.RecordBatch, parts: dict[int, Any], stop: int
    ) -> dict[int, Any]:
        """Run stage 2, or only until `stop` continuations are published."""
        moved = {bucket: part for bucket, part in parts.items() if part["rows"] is not None}
        places = sorted(place for part in moved.values() for place in part["forwarded"])
        rows: dict[str, list[pa.RecordBatch]] = {}
        for bucket in self.draw.sample(sorted(moved), len(moved)):
            for name, some in moved[bucket]["rows"].items():
                rows.setdefault(name, []).append(some)
        events = batch.take(pa.array(places, pa.int64()))
        stores = {bucket: self.store(bucket) for bucket in moved}
        if self.forwarding.copies_buckets:
            assert not any(rows.values())
            if self.draw.random() < 0.3:  # in another worker
                self.copies = BucketCopies(tuple(BANK.tables.values()))
            self.copies.follow(stores, {bucket: part["pointer"] for bucket, part in moved.items()})
            results, changes = self.forwarding.run_over(self.copies.state, events)
        else:
            results, changes = self.forwarding.run(events, rows)
        assert not any(change.blocks for bucket, change in enumerate(changes) if bucket not in moved)
        for bucket in self.draw.sample(sorted(moved), len(moved))[:stop]:
            publish_continuation(
                stores[bucket], moved[bucket]["pointer"], number, changes[bucket], BANK.tables
            )
        if self.forwarding.copies_buckets:
            if stop < len(moved):  # it dies
                self.copies = BucketCopies(tuple(BANK.tables.values()))
            else:
                after = {bucket: continuation_of(part["pointer"], number) for bucket, part in moved.items()}
                self.copies.advance(stores, after)
        return dict(zip(places, results_of([results]), strict=True))

    def run(self, number: int, batch: pa.RecordBatch) -> tuple[list[Any], list[int]]:
        """Run a micro-batch; return its results in the order of arrival, and which were forwarded."""
        while True:
            by_bucket = self.forwarding.places(batch)
            parts: dict[int, Any] = {}
            for bucket in range(self.forwarding.buckets):
                places = by_bucket[bucket]
                for _ in range(self.draw.choice([1, 1, 2])) if len(places) else ():
                    # The coordinator sees one attempt; the other one was lost after its commit.
                    parts[bucket] = self.run_bucket(bucket, batch.take(pa.array(places)), places)
            moved = [bucket for bucket, part in parts.items() if part["rows"] is not None]
            if self.draw.random() < 0.4:  # a crash: Spark runs the micro-batch again
                if self.draw.random() < 0.7:
                    self.coordinate(number, batch, parts, self.draw.randint(0, len(moved)))
                continue
            forwarded = self.coordinate(number, batch, parts, len(moved))
            if self.draw.random() < 0.3:  # Spark runs the second stage again, alone
                assert self.coordinate(number, batch, parts, len(moved)) == forwarded
            found = {place: row for part in parts.values() for place, row in part["results"].items()}
            assert not found.keys() & forwarded.keys()
            for bucket, part in parts.items():
                pointer = part["pointer"]
                self.committed[bucket] = continuation_of(pointer, number) if bucket in moved else pointer
                self.numbers.setdefault(bucket, []).extend(part["numbers"])
            self.forwarded += len(forwarded)
            return [row for _, row in sorted((found | forwarded).items())], sorted(forwarded)


def tables(states: Sequence[TableSet]) -> dict[str, list[Any]]:
    parts = [contents(state, BANK) for state in states]
    found = {name: sorted((row for part in parts for row in part[name]), key=repr) for name in BANK.tables}
    for part in parts:  # each bucket has all rows of a replicated table
        assert part["rates"] == parts[0]["rates"]
    return found | {"rates": sorted(parts[0]["rates"], key=repr)}


def check_serial_order(
    forwarding: Forwarding, rows: Sequence[dict[str, Any]], draw: random.Random, sizes: Sequence[int]
) -> int:
    """Run micro-batches of random sizes, and compare with a serial run; return how many were forwarded."""
    program = forwarding.program
    with tempfile.TemporaryDirectory() as directory:
        spark = Spark(forwarding, directory, draw)
        results: list[Any] = []
        serial: list[int] = []
        begin = number = 0
        while begin < len(rows):
            end = min(begin + draw.choice(sizes), len(rows))
            some, forwarded = spark.run(number, batch_of(rows[begin:end], program))
            results += some
            late = [begin + place for place in forwarded] if forwarding.order == "any" else []
            serial += [place for place in range(begin, end) if place not in late] + late
            begin, number = end, number + 1
        state = TableSet(BANK.tables.values())
        state.load("rates", RATES)
        expected = results_of([state.run(program, batch_of([rows[place] for place in serial], program))])
        assert [results[place] for place in serial] == expected
        stored = [spark.load(bucket)[0] for bucket in spark.committed]
        assert tables(stored) == tables([state])
        for bucket, one in zip(spark.committed, stored, strict=True):
            assert sorted(spark.numbers.get(bucket, [])) == list(range(one.transactions))
            assert spark.old_files(bucket) == []
            unit = spark.store(bucket).read_version(spark.committed[bucket])[1]
            assert unit.meta["rows"] == one.rows
        assert sum(one.transactions for one in stored) == len(rows)
        return spark.forwarded


@pytest.mark.parametrize(
    ("name", "order", "buckets"),
    [
        ("act", "arrival", 2), ("act", "arrival", 5), ("act", "any", 3), ("share", "arrival", 3),
        pytest.param("share", "any", 2, marks=pytest.mark.long), ("move", "arrival", 3),
        pytest.param("move", "any", 4, marks=pytest.mark.long), ("walk", "arrival", 3),
        ("order", "any", 3), pytest.param("order", "arrival", 4, marks=pytest.mark.long),
        ("price", "arrival", 3), ("price", "any", 2),
    ],
)  # fmt: skip
@settings(max_examples=6, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_mix_equals_the_serial_order(
    name: str, order: str, buckets: int, data: st.DataObject, seed: int
) -> None:
    program, rows = PROGRAMS[name], data.draw(EVENTS[name])
    check_serial_order(Forwarding.plan(program, buckets, order), rows, random.Random(seed), [1, 5, 20])


def test_a_transaction_is_forwarded_only_for_rows_that_an_earlier_one_moves() -> None:
    made = [("move", 1, 2), ("spend", 1, None), ("spend", 3, None), ("move", 3, 3), ("spend", 2, None)]
    batch = batch_of([
        {"kind": kind, "source": source, "target": target, "name": None, "amount": 1}
        for kind, source, target in made
    ])  # fmt: skip
    for order, expected in (("arrival", {0, 1, 4}), ("any", {0})):
        forwarding = Forwarding(PROGRAM, 64, order)
        by_bucket = forwarding.places(batch)
        assert sum(0 in places for places in by_bucket) == 2, "the two accounts should be in two buckets"
        forwarded = set()
        for bucket in range(64):
            places = by_bucket[bucket]
            if len(places):
                forwarded |= set(places[forwarding.split(batch.take(pa.array(places)), bucket).forwarded])
        assert forwarded == expected


def _bucket(table: str, value: Any, buckets: int) -> int:
    spec = BANK.tables[table]
    column = spec.column(spec.partition_by or "")
    return int(Placement(spec, buckets).partitions_of([column], [pa.array([value], column.type)])[0])


def _needed(name: str, row: dict[str, Any], buckets: int) -> list[int]:
    """Return the buckets of the rows that an event names, in the order of the program's keys."""
    if name == "move" and None in (row["source"], row["target"]):
        return []  # the route has no value
    if name == "move":
        keys = [("shelves", row[one] // 10) for one in ("source", "target")]
    else:
        keys = [("accounts", row["source"]), *(("accounts", one) for one in row["targets"] or [])]
        keys += [("people", one) for one in row["names"] or []]
    return [_bucket(table, value, buckets) for table, value in keys if value is not None]


@pytest.mark.parametrize("name", ["share", "move"])
def test_lists_and_routes_name_exactly_the_buckets_of_their_rows(name: str) -> None:
    draw, buckets, rows = random.Random(name), 4, list[dict[str, Any]]()
    for _ in range(60):
        source, target = (draw.choice([None, *range(0, 60, 7)]) for _ in range(2))
        targets = draw.choice([None, [], [3], [draw.randrange(9), None, draw.randrange(9)]])
        names = draw.choice([None, [], ["Ada"], ["Bo", "Žofie"]])
        row = {
            "source": source,
            "target": target,
            "shift": 0,
            "targets": targets,
            "names": names,
            "amount": 1,
        }
        rows.append({one: row[one] for one in Forwarding(PROGRAMS[name], 1, "any").event.names})
    needed = [_needed(name, row, buckets) for row in rows]
    batch = batch_of(rows, PROGRAMS[name])
    for order in ("any", "arrival"):
        forwarding = Forwarding.plan(PROGRAMS[name], buckets, order)
        places = [found.tolist() for found in forwarding.places(batch)]
        assert places == [
            [place for place, some in enumerate(needed) if bucket in (some or [0])]
            for bucket in range(buckets)
        ]
        own, passed, used = dict[int, int](), list[int](), set[int]()
        for bucket, some in enumerate(places):
            split = forwarding.split(batch.take(pa.array(some, pa.int64())), bucket)
            own |= {some[one]: bucket for one in split.own}
            passed += [some[one] for one in split.forwarded]
            used |= {some[one] for one in split.needed}
        several = {place for place, some in enumerate(needed) if len(set(some)) > 1}
        assert sorted(passed) == sorted(set(passed)), "one bucket passes each event"
        assert used == set(passed) >= several
        assert order == "arrival" or set(passed) == several
        assert own == {n: min(some or [0]) for n, some in enumerate(needed) if n not in used}


def test_elements_that_a_null_list_hides_need_no_bucket() -> None:
    forwarding = Forwarding(PROGRAMS["share"], 8, "arrival")
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 6, 7], pa.int32()), pa.array(range(7), pa.int64()), mask=pa.array([True, False])
    )
    assert hidden.values.to_pylist() == list(range(7))
    columns = [pa.nulls(2, pa.int64()), hidden, pa.nulls(2, pa.list_(pa.string())), pa.array([1, 1])]
    batch = pa.RecordBatch.from_arrays([
        column.cast(field.type) if column.type != field.type else column
        for column, field in zip(columns, forwarding.event, strict=True)
    ], schema=forwarding.event)  # fmt: skip
    places = [found.tolist() for found in forwarding.places(batch)]
    assert sum(0 in found for found in places) == 1
    assert 0 in places[0]
    assert sum(1 in found for found in places) == 1


def test_writes_to_replicated_tables_need_all_buckets() -> None:
    forwarding = Forwarding.plan(PROGRAMS["price"], 4, "arrival")
    row = {"source": 1, "target": None, "read": "Ada", "name": None, "rate": 1}
    rows = [row, row | {"name": "Bo"}, row, row | {"source": None}]
    batch = batch_of(rows, PROGRAMS["price"])
    places = [found.tolist() for found in forwarding.places(batch)]
    (home,) = [bucket for bucket in range(4) if 0 in places[bucket]]
    assert places == [[*([0] if n == home else []), 1, *([2] if n == home else []), *([3] if n == 0 else [])]
                      for n in range(4)]  # fmt: skip
    split = {n: forwarding.split(batch.take(pa.array(places[n])), n) for n in range(4)}
    assert [places[home][own] for own in split[home].own] == [0], "what follows a write may read it"
    assert sorted(places[n][one] for n in range(4) for one in split[n].forwarded) == [1, 2, 3]
    unknown = "def act(e, a, b):\n    a[e.k].x += 1\n    b[a[e.k].x].x += 1\n"
    database = penstock.database("unknown")
    database.table("a", "k bigint, x bigint NOT NULL", key="k", partition_by="k")
    database.table("b", "k bigint, x bigint NOT NULL", key="k")
    program = database.procedure(event="k bigint")(define(unknown)).program()
    every = Forwarding.plan(program, 3, "any").places(pa.RecordBatch.from_pydict({"k": pa.array([1, 2])}))
    assert [found.tolist() for found in every] == [[0, 1]] * 3


def test_buckets_export_only_columns_that_the_coordinator_needs() -> None:
    database = penstock.database("exports")
    columns = "k bigint, x bigint, name string NOT NULL"
    for name in "ab":
        database.table(name, columns, key="k", partition_by="k")
    text = "def act(e, a, b):\n    if a[e.k].x is not None:\n        b[e.j].x = 1\n"
    program = database.procedure(event="k bigint, j bigint")(define(text)).program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    forwarding = Forwarding.plan(program, 1, "any")
    assert forwarding.exported["a"].names == ["k", "x"]
    assert forwarding.exported["b"].names == ["k", "x", "name"], "its rows are stored whole"
    state, row = TableSet(database.tables.values()), {"k": 1, "x": 5, "name": "Ada"}
    for name in "ab":
        schema = database.tables[name].schema
        state.load(name, pa.RecordBatch.from_pylist([row, row | {"k": 2, "x": None}], schema=schema))
    events = pa.RecordBatch.from_pylist([{"k": 1, "j": 2}, {"k": 2, "j": 1}], schema=forwarding.event)
    rows = {name: [some] for name, some in forwarding.rows(state, events, 0).items()}
    _, (changes,) = forwarding.run(events, rows)
    assert changes.blocks["b/upserts"].to_pylist() == [{"k": 2, "x": 1, "name": "Ada"}]


def test_copies_forget_replicated_rows_that_another_worker_deleted(tmp_path: Any) -> None:
    stores, pointers = dict[int, BucketStore](), dict[int, Pointer]()
    for bucket, rates in enumerate([RATES, RATES.slice(1)]):  # the second is a snapshot after the deletion
        stores[bucket] = BucketStore(open_files(tmp_path / str(bucket)))
        state = TableSet(BANK.tables.values())
        state.load("rates", rates)
        pointer = stores[bucket].commit(state, Handle()).pointer
        assert pointer is not None
        pointers[bucket] = pointer
    copies = BucketCopies(tuple(BANK.tables.values()))
    copies.follow({0: stores[0]}, {0: pointers[0]})
    keys = RATES.slice(0, 1).select(["name"])
    publish_continuation(stores[0], pointers[0], 1, Changes({"rates/tombstones": keys}, -1), BANK.tables)
    pointers[0] = continuation_of(pointers[0], 1)
    for some in ({1: pointers[1]}, pointers):
        copies.follow(stores, some)
        assert contents(copies.state, BANK)["rates"] == [("Bo", 4)]


def test_other_changes_under_the_number_of_a_micro_batch_are_refused(tmp_path: Any) -> None:
    store = BucketStore(open_files(tmp_path))
    state = TableSet(BANK.tables.values())
    pointer = store.commit(state, Handle()).pointer
    assert pointer is not None
    row = pa.RecordBatch.from_pylist(
        [{"id": 1, "balance": 2, "owner": None}], schema=BANK.tables["accounts"].schema
    )
    publish_continuation(store, pointer, 7, Changes({"accounts/upserts": row}, 1), BANK.tables)
    publish_continuation(store, pointer, 7, Changes({"accounts/upserts": row}, 1), BANK.tables)
    with pytest.raises(CorruptDataError, match="ahead of the checkpoint"):
        publish_continuation(store, pointer, 7, Changes({}, 0), BANK.tables)


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("def act(e, a):\n    a[e.k].x += a[e.j].x\n", None),
        ("def act(e, a, b):\n    a[e.k].x += a[e.j].x + b[(e.k, e.j)].x\n", None),
        ("def act(e, a, b):\n    a[e.k].x += a[e.j].x\n    b[(e.k, e.k)].x = 1\n", None),
        ("def act(e, b):\n    b[(e.k, e.k)].x = 1\n", "it accesses no table with partition_by"),
        ("def act(e, b):\n    return b[(e.k, e.j)].x\n", "it accesses no table with partition_by"),
        ("def act(e, a):\n    return a[a[e.k].x].x\n", "no attribute of the event is the k of a"),
        ("def act(e, p):\n    return p[(e.k, 3)].x + p[(e.j, 3)].x\n", None),
        ("def act(e, p):\n    return p.by('j')[e.j].first().x\n", "an index finds the bucket of rows of p"),
    ],
)
def test_rows_that_an_event_does_not_name_are_refused(text: str, because: str | None) -> None:
    database = penstock.database("random")
    database.table("a", "k bigint, x bigint NOT NULL", key="k", partition_by="k")
    database.table("b", "k bigint, j bigint, x bigint NOT NULL", key=("k", "j"))
    database.table(
        "p", "k bigint, j bigint, x bigint NOT NULL", key=("k", "j"), partition_by="k", indexes=["j"]
    )
    program = database.procedure(event="k bigint, j bigint", returns="x bigint")(define(text)).program()
    if because is None:
        Forwarding.plan(program, 2, "arrival")
        return
    with pytest.raises(InvalidUsageError, match="that its event does not name") as caught:
        Forwarding.plan(program, 2, "arrival")
    assert because in str(caught.value)
