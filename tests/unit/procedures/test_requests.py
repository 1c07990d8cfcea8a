"""Requests run once, in their order, and get the answers of a serial run."""

from __future__ import annotations

import datetime
import random
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import abort
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet, event_schema
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.requests import run
from penstock.procedures.requests.client import RequestClient, request_streams
from penstock.procedures.requests.messages import ANSWERS, REQUESTS, decode_values, encode_values
from penstock.procedures.requests.programs import RequestPrograms
from penstock.procedures.requests.run import REMEMBERED_REQUESTS, answer_requests
from tests.transactions.workflows import state_bytes, table_bytes


def make_bank() -> Database:
    """Return accounts, with procedures to pay, to read, and some that requests may not call."""
    bank = penstock.database("bank")
    bank.table("accounts", "id bigint, balance bigint NOT NULL, at timestamp", key="id", partition_by="id")
    moved = bank.stream("moved", "id bigint")
    last = bank.window("last", "id bigint", size=2, slide=1)

    @bank.procedure(event="id bigint, amount bigint, at timestamp", returns="left bigint, at timestamp")
    def pay(e: Any, accounts: Any) -> Any:
        if e.id not in accounts:
            accounts.insert(id=e.id, balance=10)
        account = accounts[e.id]
        account.balance -= e.amount
        account.at = e.at
        if account.balance < 0:
            abort("short")
        return account.balance, account.at

    @bank.procedure(event="id bigint", returns="balance bigint")
    def balance(e: Any, accounts: Any) -> Any:
        return accounts[e.id].balance

    @bank.procedure(event="id bigint", returns="n bigint", plain=True)
    def count(e: Any, accounts: Any) -> Any:
        return sum(1 for one in (e.id, e.id + 1) if one in accounts)

    @bank.procedure(returns="n bigint")
    def undeclared(e: Any, accounts: Any) -> Any:
        return accounts[e.id].balance

    @bank.procedure(event="id bigint")
    def move(e: Any, moved: Any) -> None:
        moved.emit(id=e.id)

    @bank.procedure(event=moved)
    def take(e: Any, last: Any) -> None:
        last.insert(id=e.id)

    assert last.size == 2
    return bank


def batch_of(rows: list[tuple[str, str, str]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(REQUESTS.names, row, strict=True)) for row in rows], REQUESTS)


def state_of(bank: Database) -> TableSet:
    return TableSet((*bank.catalog.all_tables.values(), REMEMBERED_REQUESTS))


@pytest.mark.parametrize("seed", range(4))
def test_requests_equal_the_serial_run_and_repeated_ones_run_once(seed: int) -> None:
    draw, bank = random.Random(seed), make_bank()
    programs, plain = RequestPrograms.collect(bank.catalog, 1), PlainTables(bank.tables.values())
    state, known = state_of(bank), dict[str, tuple[Any, ...]]()
    for _ in range(6):
        rows: list[tuple[str, str, str]] = []
        for _ in range(draw.randrange(40)):
            name = draw.choice(["pay", "pay", "balance", "count", "no", "move"])
            when = datetime.datetime(2026, 1, draw.randrange(1, 20), tzinfo=datetime.UTC)
            values: dict[str, Any] = {"id": draw.choice([1, 2, 3, None, "x"]), "amount": draw.randrange(8)}
            rows.append((f"r{draw.randrange(90)}", name, encode_values(values | {"at": when})))
        expected = []
        for id_, name, arguments in rows:
            if id_ not in known:
                known[id_] = (name, arguments, *serial(bank, plain, name, arguments, len(known)))
            same = known[id_][:2] == (name, arguments)
            expected.append(known[id_][2:] if same else (None, "the id of another request"))
        found = answer_requests(state, batch_of(rows), programs, 0).to_pylist()
        assert [one["id"] for one in found] == [row[0] for row in rows]
        results = [None if one["results"] is None else tuple(results_of(bank, one).values()) for one in found]
        assert list(zip(results, [one["rejected"] for one in found], strict=True)) == expected
        numbers = [one["transaction"] for one in found if one["transaction"] is not None]
        assert max(numbers, default=0) < max(state.transactions, 1)
        # The next requests find what is stored, from a snapshot or deltas.
        units = [*state.snapshot()] if draw.random() < 0.5 else []
        delta = state.delta()
        again = state if not units else state_of(bank)
        if units:
            again.restore(units)
        else:
            assert delta is not None
        state = again
    wanted = state_bytes(plain, bank)
    assert (
        table_bytes(pa.Table.from_batches([state["accounts"].table()]), bank.tables["accounts"])
        == (wanted["accounts"])
    )


def serial(bank: Database, plain: PlainTables, name: str, arguments: str, number: int) -> tuple[Any, Any]:
    """Return results and rejection of a request by plain Python."""
    if name in ("no", "move"):
        return None, {"no": "no such procedure", "move": "not for requests"}[name]
    procedure = bank.procedures[name]
    events, misfits = decode_values([arguments], event_schema(procedure.program().event))
    if misfits:
        return None, "arguments do not fit"
    *values, rejected = plain.run(procedure.text, events, procedure.result_columns())[0]
    return (tuple(values) if rejected is None else None), rejected


def results_of(bank: Database, answer: dict[str, Any]) -> dict[str, Any]:
    rows, _ = decode_values([answer["results"]], bank.procedures[answer["procedure"]].results)
    columns = [pa.compute.cast(one, pa.int64()) for one in rows.columns]
    return {name: column[0].as_py() for name, column in zip(rows.schema.names, columns, strict=True)}


def test_a_bucket_forgets_the_oldest_requests() -> None:
    bank = make_bank()
    programs, state = RequestPrograms.collect(bank.catalog, 1), state_of(bank)

    def ask(*numbers: int) -> list[int | None]:
        rows = [(f"r{number}", "pay", encode_values({"id": number, "amount": 1})) for number in numbers]
        found = answer_requests(state, batch_of(rows), programs, 0, capacity=3)
        return found.column("transaction").to_pylist()

    assert ask(0, 1, 2, 3) == [0, 1, 2, 3]
    assert ask(1, 3, 0) == [1, 3, 4]
    assert len(state[REMEMBERED_REQUESTS.name]) == 3
    again = state_of(bank)
    again.restore(state.snapshot())
    state = again
    assert ask(2, 3, 0, 1) == [2, 3, 4, 5]


def test_values_of_each_type_come_back_from_json() -> None:
    schema = pa.schema({
        "i": pa.int8(), "d": pa.decimal128(10, 2), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"),
        "b": pa.binary(), "l": pa.list_(pa.int64()), "f": pa.float64(), "day": pa.date32(), "o": pa.bool_(),
        "s": pa.string(),
    })  # fmt: skip
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
    row = {
        "i": -128, "d": Decimal("-3.20"), "t": when.replace(tzinfo=datetime.UTC), "n": when, "b": b"\0\xff",
        "l": [1, None], "f": 0.1, "day": datetime.date(1, 1, 1), "o": False, "s": "é",
    }  # fmt: skip
    rows, misfits = decode_values([encode_values(row), "{}"], schema)
    assert rows.to_pylist() == [row, dict.fromkeys(row)]
    assert misfits == []
    strange = ['{"i": 128}', '{"i": 1.5}', '{"i": true}', '{"o": 0}', '{"d": "x"}', '{"b": "?"}', "[]", "{",
               '{"t": 5}', '{"l": 5}', '{"s": 5}', '{"d": "1.234"}', '{"d": "NaN"}']  # fmt: skip
    rows, misfits = decode_values(["{}", *strange], schema)
    assert (rows.num_rows, misfits) == (1, list(range(1, len(strange) + 1)))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Database, RequestClient]]:
    """Serve requests in a thread, as a query does."""
    bank, place = make_bank(), tmp_path / "requests"
    end = threading.Event()
    request_streams(place)

    def serve() -> None:
        programs, state = RequestPrograms.collect(bank.catalog, 1), state_of(bank)
        reader = penstock.PStreamReader(place / "requests", reader="query")
        with penstock.PStreamWriter(place / "answers", ANSWERS, writer="query") as writer:
            while not end.wait(0.005):
                for batch in reader.read().to_batches():
                    writer.append(answer_requests(state, batch, programs, 0))
                    writer.flush()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with bank.connect(place, timeout="20s") as client:
            yield bank, client
    finally:
        end.set()
        thread.join()


def test_a_client_gets_results_and_rejections(served: tuple[Database, RequestClient]) -> None:
    bank, client = served
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    assert client.call("pay", id=1, amount=3, at=when) == {"left": 7, "at": when, "rejected": None}
    assert client.call("pay", id=1, amount=8, at=None) == {"left": None, "at": None, "rejected": "short"}
    assert client.call("balance", id=1) == {"balance": 7, "rejected": None}
    assert client.call("balance", id=None) == {"balance": None, "rejected": "null key: accounts"}
    first = client.wait(client.send("order-1", "pay", id=1, amount=2, at=None))
    with bank.connect(client.location) as other:
        assert other.wait(other.send("order-1", "pay", id=1, amount=2, at=None)) == first
    assert first["left"] == client.call("balance", id=1)["balance"] == 5
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        found[number] = client.call("pay", id=100 + number, amount=number, at=None)["left"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: 10 - number for number in range(8)}


def test_a_client_refuses_what_no_query_would_run(tmp_path: Path) -> None:
    bank = make_bank()
    with bank.connect(tmp_path / "r", timeout="30ms") as client:
        for name, why in [
            ("pai", "there is no such procedure: procedure=pai. Hint: did you mean 'pay'"),
            ("undeclared", "a request needs to know the attributes of the event"),
            ("take", "requests call procedures that access tables only: procedure=take accesses=moved"),
            ("move", "a procedure that emits rows runs in a workflow"),
        ]:
            with pytest.raises(InvalidUsageError) as caught:
                client.call(name, id=1)
            assert why in str(caught.value)
        for given, why in (
            ({"id": 1}, "lacks an attribute: procedure=pay attribute=amount"),
            ({"id": 1, "amount": "1", "at": None}, "procedure=pay attribute=amount type=str. Hint: the"),
            ({"id": 1, "amount": 1, "at": object()}, "procedure=pay attribute=at reason=object has no form"),
        ):
            with pytest.raises(InvalidUsageError, match=why):
                client.call("pay", **given)
        with pytest.raises(InvalidUsageError, match="waits for no such request"):
            client.wait("x")
        with pytest.raises(UnavailableError, match="there is no answer in time"):
            client.call("balance", id=1)
    assert penstock.PStreamReader(tmp_path / "r" / "requests").read().num_rows == 1
    with penstock.PStreamWriter(tmp_path / "other" / "answers", pa.schema({"x": pa.int64()})):
        pass
    with pytest.raises(InvalidUsageError, match="columns differ"):
        bank.connect(tmp_path / "other")


def test_procedures_of_several_partitions_are_refused_in_several_buckets() -> None:
    bank = make_bank()
    programs = RequestPrograms.collect(bank.catalog, 3, pa.int64())
    assert set(programs.programs) == {"pay", "balance"}
    assert programs.why_not("count") == "several buckets"
    assert run.REMEMBERED > 1000
