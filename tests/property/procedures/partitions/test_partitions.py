"""A database in partitions gives the results and tables of a serial run, with any number of partitions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.language import abort
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from tests.transactions.procedures import interpreted

Call = tuple[str, list[dict[str, Any]]]

IDS = st.integers(0, 9)
NAMES = st.sampled_from(["", "Ada", "Bo", "Žofie", "a longer name than a word"])
AMOUNTS = st.integers(-5, 40)
NUMBERS = st.integers(0, 29)
EVENTS: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "deposit": {"id": st.none() | IDS, "amount": AMOUNTS},
    "transfer": {"source": IDS, "target": st.none() | IDS, "amount": AMOUNTS},
    "open_account": {"id": IDS, "owner": NAMES},
    "close_account": {"id": IDS, "heir": IDS},
    "order": {"buyer": IDS, "currency": NAMES},
    "give": {"buyer": IDS, "friend": IDS},
    "set_rate": {"currency": NAMES, "rate": AMOUNTS},
    "convert": {"currency": NAMES},
    "rename": {"old": NAMES, "new": NAMES},
    "count_rich": {"least": AMOUNTS},
    "count_plainly": {"id": IDS},
    "pay_all": {"ids": st.none() | st.lists(st.none() | IDS, max_size=4), "amount": AMOUNTS},
    "give_all": {"buyer": IDS, "friends": st.lists(IDS, max_size=3), "numbers": st.lists(IDS, max_size=3)},
    "reward": {"owner": NAMES, "amount": AMOUNTS},
    "reward_all": {"owner": st.none() | NAMES, "source": IDS, "amount": AMOUNTS},
    "marry": {"owner": NAMES, "new": NAMES},
    "store": {"number": st.none() | NUMBERS, "shift": st.sampled_from([0, 0, 0, 1])},
    "move": {"source": NUMBERS, "target": NUMBERS, "other": NUMBERS},
}


def make_bank() -> Database:
    """Return a database whose procedures take every route."""
    bank = penstock.database("bank")
    bank.table(
        "accounts", "id bigint, owner string, balance bigint NOT NULL, orders int NOT NULL",
        key="id", partition_by="id", indexes=["balance", "owner"],
    )  # fmt: skip
    bank.table(
        "purchases", "buyer int, number int, price bigint", key=("buyer", "number"), partition_by="buyer",
        indexes=[("buyer", "price")],
    )  # fmt: skip
    bank.table("people", "name string, visits bigint NOT NULL", key="name", partition_by="name")
    bank.table("shelves", "zone bigint, number bigint, count int NOT NULL", key=("number", "zone"),
               partition_by="zone")  # fmt: skip
    bank.table("rates", "currency string, rate bigint NOT NULL", key="currency")

    @bank.procedure(event="id bigint, amount bigint NOT NULL", returns="balance bigint")
    def deposit(e: Any, accounts: Any) -> Any:
        accounts[e.id].balance += e.amount
        return accounts[e.id].balance

    @bank.procedure(event="source bigint, target bigint, amount bigint NOT NULL", returns="left bigint")
    def transfer(e: Any, accounts: Any) -> Any:
        source = accounts[e.source]
        source.balance -= e.amount
        accounts[e.target].balance += e.amount
        if source.balance < 0:
            abort("short")
        return source.balance

    @bank.procedure(event="id bigint, owner string")
    def open_account(e: Any, accounts: Any, people: Any) -> Any:
        accounts.insert(id=e.id, owner=e.owner, balance=10, orders=0)
        if e.owner in people:
            people[e.owner].visits += 1
        else:
            people.insert(name=e.owner, visits=1)

    @bank.procedure(event="id bigint, heir bigint")
    def close_account(e: Any, accounts: Any) -> Any:
        balance = accounts[e.id].balance
        del accounts[e.id]
        accounts[e.heir].balance += balance

    @bank.procedure(event="buyer int, currency string", returns="number int, dearest bigint")
    def order(e: Any, accounts: Any, purchases: Any, rates: Any) -> Any:
        account = accounts[e.buyer]
        account.orders += 1
        account.balance -= rates[e.currency].rate
        purchases.insert(buyer=e.buyer, number=account.orders, price=rates[e.currency].rate)
        if account.balance < 0:
            abort("short")
        dearest = purchases.by("buyer", "price")[e.buyer].last()
        return account.orders, dearest.price

    @bank.procedure(event="buyer int, friend int", returns="dearest bigint")
    def give(e: Any, accounts: Any, purchases: Any) -> Any:
        gift = purchases[(e.buyer, accounts[e.buyer].orders)]
        accounts[e.friend].orders += 1
        purchases.insert(buyer=e.friend, number=accounts[e.friend].orders, price=gift.price)
        return purchases.by("buyer", "price")[e.friend].last().price

    @bank.procedure(event="currency string, rate bigint NOT NULL")
    def set_rate(e: Any, rates: Any) -> Any:
        if e.currency in rates:
            rates[e.currency].rate = e.rate
        else:
            rates.insert(currency=e.currency, rate=e.rate)
        if e.rate < 0:
            abort("negative")

    @bank.procedure(event="currency string", returns="rate bigint")
    def convert(e: Any, rates: Any) -> Any:
        return rates[e.currency].rate

    @bank.procedure(event="old string, new string")
    def rename(e: Any, people: Any) -> Any:
        visits = people[e.old].visits
        del people[e.old]
        people.insert(name=e.new, visits=visits)

    @bank.procedure(event="least bigint", returns="accounts bigint")
    def count_rich(e: Any, accounts: Any) -> Any:
        return len(accounts.by("balance")[e.least :])

    @bank.procedure(event="id bigint", returns="digits string", plain=True)
    def count_plainly(e: Any, accounts: Any) -> Any:
        accounts[e.id].balance += 1
        return "".join(sorted(str(accounts[e.id].balance)))

    @bank.procedure(event="ids array<bigint>, amount bigint NOT NULL", returns="left bigint")
    def pay_all(e: Any, accounts: Any) -> Any:
        left = 0
        for id_ in e.ids:
            accounts[id_].balance += e.amount
            left = accounts[id_].balance
        if left < 0:
            abort("short")
        return left

    @bank.procedure(event="buyer int, friends array<int>, numbers array<int>", returns="price bigint")
    def give_all(e: Any, purchases: Any) -> Any:
        price = 0
        for place in range(len(e.friends)):
            number = e.numbers[place]
            gift = purchases.get((e.friends[place], number))
            if gift is not None:
                price += gift.price
            else:
                purchases.insert(buyer=e.friends[place], number=number, price=e.buyer)
        return price

    @bank.procedure(event="owner string, amount bigint NOT NULL", returns="id bigint, price bigint")
    def reward(e: Any, accounts: Any, purchases: Any) -> Any:
        found = accounts.by("owner")[e.owner].first()
        if found is None:
            abort("nobody")
        found.balance += e.amount
        last = purchases.by("buyer", "price")[found.id].last()
        if last is None:
            return found.id, None
        return found.id, last.price

    @bank.procedure(event="owner string, source bigint, amount bigint NOT NULL", returns="count bigint")
    def reward_all(e: Any, accounts: Any) -> Any:
        count = 0
        for row in accounts.by("owner")[e.owner]:
            row.balance += e.amount
            accounts[e.source].balance -= e.amount
            count += 1
        if accounts[e.source].balance < 0:
            abort("short")
        return count

    @bank.procedure(event="owner string, new string")
    def marry(e: Any, accounts: Any) -> Any:
        found = accounts.by("owner")[e.owner].first()
        if found is None:
            abort("nobody")
        found.owner = e.new

    @bank.procedure(event="number bigint, shift bigint NOT NULL", returns="count int", route="e.number // 10")
    def store(e: Any, shelves: Any) -> Any:
        zone = e.number // 10
        shelf = shelves.get((e.number, zone))
        if shelf is None:
            shelves.insert(number=e.number, zone=zone + e.shift, count=1)
            return 1
        shelves[(e.number, zone + e.shift)].count += 1
        return shelf.count

    @bank.procedure(
        event="source bigint, target bigint, other bigint",
        returns="left int",
        route=("e.source // 10", "max(e.target, 0) // 10"),
    )
    def move(e: Any, shelves: Any) -> Any:
        source = shelves[(e.source, e.source // 10)]
        source.count -= 1
        shelves[(e.target, e.target // 10)].count += 1
        if e.other % 7 == 0:
            shelves[(e.other, e.other // 10)].count += 1
        return source.count

    return bank


BANK = make_bank()
for procedure in BANK.procedures.values():
    program = procedure.program()
    if isinstance(program, Program):  # compiling the kernels takes longer than all tests with Python's
        program.__dict__["kernel"] = interpreted(program)
        if program.route is not None:
            program.route.__dict__["kernel"] = interpreted(program.route)
RANGES: Mapping[int, Mapping[str, Sequence[Any]]] = {
    3: {"accounts": [2, 7], "purchases": [2, 7], "people": ["Ada", "b"], "shelves": [1, 2]},
    4: {"accounts": [1, 2, 3], "people": ["A", "B", "a"]},
}


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    made: list[Call] = [("open_account", [{"id": id_, "owner": "Ada"} for id_ in range(0, 10, 2)])]
    made.append(("set_rate", [{"currency": "Bo", "rate": 3}]))
    made.append(("store", [{"number": number, "shift": 0} for number in range(0, 30, 3)]))
    for name in draw(st.lists(st.sampled_from(sorted(EVENTS)), max_size=8)):
        events = draw(st.lists(st.fixed_dictionaries(dict(EVENTS[name])), min_size=1, max_size=12))
        made.append((name, events))
    return made


def run(db: OpenDatabase, made: Sequence[Call]) -> list[list[dict[str, Any]]]:
    return [
        db.run(name, pa.Table.from_pylist(events, BANK.procedures[name].event)).to_pylist()
        for name, events in made
    ]


def tables(db: OpenDatabase) -> dict[str, list[dict[str, Any]]]:
    return {
        name: db.table(name).sort_by([(column, "ascending") for column in spec.key]).to_pylist()
        for name, spec in BANK.tables.items()
    }


@pytest.mark.parametrize(
    ("partitions", "ranged", "least", "speculate"),
    [(2, False, 0, False), (3, True, 1 << 14, "rows"), (4, True, 1 << 14, False), (5, False, 0, "tables")],
)
@settings(max_examples=12, deadline=None)
@given(made=calls())
def test_any_mix_equals_the_serial_order(
    partitions: int, ranged: bool, least: int, speculate: bool | str, made: list[Call]
) -> None:
    ranges = RANGES[partitions] if ranged else None
    with (
        BANK.open() as serial,
        BANK.open(partitions=partitions, ranges=ranges, speculate=speculate) as db,
    ):
        assert isinstance(db._state, PartitionedTables)
        db._state.gathered.min_moves = least  # 0: tables are often gathered
        assert run(db, made) == run(serial, made)
        assert tables(db) == tables(serial)
        assert db._state.transactions == serial._state.transactions
        assert db._state.rows == serial._state.rows


def test_a_snapshot_holds_each_row_once() -> None:
    made: list[Call] = [
        ("open_account", [{"id": id_, "owner": name} for id_, name in enumerate(["Ada", "Bo", "", "Ada"])]),
        ("set_rate", [{"currency": "Bo", "rate": 3}]),
        ("transfer", [{"source": 0, "target": 1, "amount": 4}]),
    ]
    with BANK.open(partitions=3) as db, BANK.open() as one, BANK.open(partitions=4) as four:
        run(db, made)
        units = list(db._state.snapshot())
        assert sum(block.num_rows for unit in units for block in unit.blocks.values()) == 4 + 3 + 1
        for other in (one, four):
            other._state.restore(units)
            assert tables(other) == tables(db)


@settings(max_examples=4, deadline=None)
@given(made=calls(), more=calls(), stored=st.booleans())
def test_a_log_is_replayed_on_any_number_of_partitions(
    made: list[Call], more: list[Call], stored: bool
) -> None:
    with BANK.open() as serial, tempfile.TemporaryDirectory() as directory:
        expected, last = run(serial, made), tables(serial)
        living = BANK.open(location=f"{directory}/bank", partitions=2, speculate=stored)
        assert run(living, made[: len(made) // 2]) == expected[: len(made) // 2]
        if stored:
            living.checkpoint()
        assert run(living, made[len(made) // 2 :]) == expected[len(made) // 2 :]
        for partitions in (1, 2, 4, 8):  # each from what a process that dies leaves
            shutil.copytree(f"{directory}/bank", f"{directory}/{partitions}")
            with BANK.open(location=f"{directory}/{partitions}", partitions=partitions) as db:
                assert tables(db) == last
                assert db._state.transactions == serial._state.transactions
        living.close()
        # Versions that some number of partitions has stored are read by others, which store more.
        expected, last = run(serial, more), tables(serial)
        for before, partitions in ((2, 3), (8, 1), (1, 4)):
            with BANK.open(location=f"{directory}/{before}", partitions=partitions) as db:
                assert run(db, more) == expected
            with BANK.open(location=f"{directory}/{before}", partitions=2) as db:
                assert tables(db) == last
