"""Readers beside a stream of transactions see whole transactions, and whole nested ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import abort
from penstock.procedures.databases import Database
from tests.long_tests import LONG
from tests.spark.queries import Place, limits

pytestmark = pytest.mark.spark

ACCOUNTS, OPENING, STEPS, ROWS = 12, 100, 6 if LONG else 3, 200


def make_bank() -> Database:
    """Return accounts whose sum is fixed, two tables that a nested transaction keeps equal, and readers."""
    bank = penstock.database("bank")
    bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id", indexes=["id"])
    bank.table("sent", "id bigint, amount bigint NOT NULL", key="id", indexes=["id"])
    bank.table("received", "id bigint, amount bigint NOT NULL", key="id", indexes=["id"])
    moves = bank.stream("moves", "number bigint, source bigint, target bigint, amount bigint NOT NULL")

    @bank.procedure(event="number bigint, source bigint, target bigint, amount bigint")
    def send(e: Any, accounts: Any, sent: Any, moves: Any) -> None:
        accounts[e.source].balance -= e.amount
        sent.insert(id=e.number, amount=e.amount)
        moves.emit(number=e.number, source=e.source, target=e.target, amount=e.amount)
        if accounts[e.source].balance < 0:
            abort("short")

    @bank.procedure(event=moves)
    def receive(e: Any, accounts: Any, received: Any) -> None:
        received.insert(id=e.number, amount=e.amount)
        accounts[e.target].balance += e.amount
        if e.amount % 7 == 0:
            abort("seven")

    @bank.procedure(event="any bigint", returns="money bigint, sent bigint, received bigint")
    def audit(e: Any, accounts: Any, sent: Any, received: Any) -> Any:
        money = 0
        for account in accounts.by("id"):
            money += account.balance
        gone = 0
        for gone_row in sent.by("id"):
            gone += gone_row.amount
        come = 0
        for come_row in received.by("id"):
            come += come_row.amount
        return money, gone, come

    bank.workflow("move", bank.nested(send, receive))
    assert audit.name in bank.procedures
    return bank


def append(place: Path, first: int, draw: random.Random) -> None:
    numbers = range(first, first + ROWS)
    rows = {
        "number": numbers,
        "source": [draw.randrange(ACCOUNTS) for _ in numbers],
        "target": [draw.randrange(ACCOUNTS) for _ in numbers],
        "amount": [draw.randrange(40) for _ in numbers],
    }
    with penstock.PStreamWriter(place, pa.schema(dict.fromkeys(rows, pa.int64()))) as writer:
        writer.append(rows)


def test_readers_see_whole_nested_transactions(spark: SparkSession, tmp_path: Path) -> None:
    penstock.register(spark)
    place, bank, draw = Place(tmp_path), make_bank(), random.Random(4)
    append(tmp_path / "events", 0, draw)
    opening = {"accounts": pa.table({"id": range(ACCOUNTS), "balance": [OPENING] * ACCOUNTS})}
    results = penstock.transactions(
        spark.readStream.format("pstream").options(**limits(maxRows=70)).load(str(tmp_path / "events")),
        bank.workflows["move"],
        initial=opening,
        requests=tmp_path / "requests",
        retain_versions=50,  # readers are slower than micro-batches
        state_location=place.state,
    )
    query = place.start(results)
    seen: set[tuple[int, int]] = set()
    try:
        with bank.connect(tmp_path / "requests", timeout="120s") as client:
            for step in range(STEPS):
                answer = client.call("audit", any=0)
                assert (answer["money"], answer["sent"]) == (ACCOUNTS * OPENING, answer["received"])
                stored = {
                    name: penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table=name)
                    for name in ("accounts", "sent", "received")
                }
                tables = {name: one.toArrow() for name, one in stored.items()}
                assert sum(tables["accounts"]["balance"].to_pylist()) == ACCOUNTS * OPENING
                seen.add((len(tables["sent"]), answer["sent"]))
                append(tmp_path / "events", ROWS * (step + 1), draw)
            query.processAllAvailable()
    finally:
        query.stop()
    assert len(seen) > 1, "the readers saw one state only"
    made = place.sequence("rejected")
    assert len(made) == ROWS * (STEPS + 1)
    assert {"send: short", "receive: seven", None} <= {why for (why,) in made}
    final = {
        name: penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table=name).toArrow()
        for name in ("accounts", "sent", "received")
    }
    assert final["sent"].sort_by("id").equals(final["received"].sort_by("id"))
    assert sum(final["accounts"]["balance"].to_pylist()) == ACCOUNTS * OPENING
