"""Requests beside a stream of transactions run once; results equal a serial run in the log's order."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import abort
from penstock._failpoints import TASK_ROWS_POINTS
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.inspect.database import read_databases
from penstock.jobs.pipelines.databases import databases_in
from penstock.jobs.pipelines.run import run_to_end
from penstock.procedures.databases import Database
from tests.long_tests import long_but
from tests.spark.queries import Input, Place, failure, fresh_workers, limits
from tests.transactions.merged_log import check_merged_log
from tests.transactions.workflows import state_bytes, table_bytes

pytestmark = pytest.mark.spark

KEYS = 12
EVENTS = pa.schema({"number": pa.int64(), "account": pa.int64(), "amount": pa.int64()})


def make_bank(opening: int = 5, interest: int = 0) -> Database:
    """Return accounts that events charge, and requests pay into or read."""
    bank = penstock.database("bank")
    bank.table(
        "accounts", "account bigint, balance bigint NOT NULL, paid bigint NOT NULL", key="account",
        partition_by="account",
    )  # fmt: skip

    @bank.procedure(event="account bigint, amount bigint", returns="left bigint")
    def charge(e: Any, accounts: Any) -> Any:
        if e.account not in accounts:
            accounts.insert(account=e.account, balance=opening, paid=0)
        accounts[e.account].balance -= e.amount
        if accounts[e.account].balance < 0:
            abort("short")
        return accounts[e.account].balance

    @bank.procedure(event="account bigint, amount bigint", returns="balance bigint, paid bigint")
    def pay(e: Any, accounts: Any) -> Any:
        account = accounts[e.account]
        account.balance += e.amount
        account.paid += 1
        if account.paid % 7 == 0:
            abort("seventh")
        return account.balance, account.paid

    @bank.procedure(event="account int", returns="balance bigint")
    def read(e: Any, accounts: Any) -> Any:
        return accounts[e.account].balance + interest

    assert len(bank.procedures) == 3
    return bank


def append_events(place: Place, draw: random.Random, rows: int) -> pa.Table:
    """Append drawn events; return all there are."""
    path = place.directory / "events"
    with penstock.PStreamWriter(path, EVENTS, unit_rows=40, threads=1) as writer:
        first = writer.committed_rows
        writer.append({
            "number": range(first, first + rows),
            "account": draw.choices(range(KEYS), k=rows),
            "amount": draw.choices(range(6), k=rows),
        })  # fmt: skip
    return penstock.PStreamReader(path).read()


def transactions(
    spark: SparkSession, place: Place, bank: Database, buckets: int, way: str, compatible: str | None = None
) -> DataFrame:
    events = spark.readStream.format("pstream").options(reader="bank", partitions=2)
    df = events.options(**limits(maxRows=60)).load(str(place.directory / "events"))
    return penstock.transactions(
        df.where("true") if way == "through_spark" else df,
        bank.procedures["charge"],
        keep=("number", "account", "amount"),
        buckets=buckets,
        requests=place.directory / "requests",
        compatible_with=compatible,
        state_location=place.state,
    )


def check_serial(
    spark: SparkSession, place: Place, bank: Database, events: pa.Table, calls: Sequence[tuple[str, str, Any]]
) -> None:
    """Run events and requests again in plain Python, in the order that the results and answers show."""
    answers = penstock.PStreamReader(place.directory / "requests" / "answers").read()
    assert answers.num_rows == len(calls), "a request has no answer, or several"
    columns = ("bucket", "transaction", "number", "account", "amount", "left", "rejected")
    made = place.sequence(*columns)
    plain = check_merged_log(
        bank.procedures["charge"],
        events,
        pa.table(dict(zip(columns, zip(*made, strict=True), strict=True))),
        answers,
        {id_: (name, values) for id_, name, values in calls},
        keep=("number", "account", "amount"),
    )
    stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="accounts").toArrow()
    assert table_bytes(stored, bank.tables["accounts"]) == state_bytes(plain, bank)["accounts"]


def drawn_calls(draw: random.Random, first: int, count: int) -> list[tuple[str, str, Any]]:
    calls: list[tuple[str, str, Any]] = []
    for number in range(first, first + count):
        name = draw.choice(["pay", "pay", "read", "charge"])
        values = {"account": draw.randrange(KEYS)}
        calls.append((str(number), name, values | ({} if name == "read" else {"amount": draw.randrange(9)})))
    return calls


@pytest.mark.parametrize(
    ("buckets", "way"), long_but([(1, "read_in_bucket"), (3, "through_spark")], (1, "read_in_bucket"))
)
def test_requests_and_events_equal_a_serial_run_in_the_order_of_the_log(
    spark: SparkSession, tmp_path: Path, buckets: int, way: str
) -> None:
    place, draw, bank = Place(tmp_path), random.Random(buckets), make_bank()
    penstock.register(spark)
    events = append_events(place, draw, 150)
    calls: list[tuple[str, str, Any]] = []
    for _ in range(2):
        query = place.start(transactions(spark, place, bank, buckets, way))
        try:
            with bank.connect(place.directory / "requests", timeout="180s") as client:
                own = drawn_calls(draw, len(calls), 24)
                calls += own
                sent = [client.send(id_, name, **values) for id_, name, values in own[:8]]
                events = append_events(place, draw, 90)
                for id_, name, values in own[8:16]:
                    assert client.wait(client.send(id_, name, **values)).keys() >= {"rejected"}
                threads = [
                    threading.Thread(target=client.send, args=(id_, name), kwargs=values)
                    for id_, name, values in own[16:]
                ]
                for thread in threads:
                    thread.start()
                events = append_events(place, draw, 90)
                for thread in threads:
                    thread.join()
                for id_ in [*sent, *(one[0] for one in own[16:])]:
                    client.wait(id_)
            query.processAllAvailable()
        finally:
            query.stop()
    check_serial(spark, place, bank, events, calls)
    (stored,) = read_databases(str(place.state), None, 2)
    assert {name for bucket in stored.buckets for name in bucket.rows} == {"accounts"}


@pytest.mark.crash
@pytest.mark.long
def test_workers_killed_with_requests_in_flight_answer_each_once(spark: SparkSession, tmp_path: Path) -> None:
    place, draw, bank = Place(tmp_path), random.Random(7), make_bank()
    penstock.register(spark)
    append_events(place, draw, 60)
    place.run(transactions(spark, place, bank, 1, "read_in_bucket"))
    events, calls = append_events(place, draw, 50), drawn_calls(draw, 0, 9)
    with bank.connect(place.directory / "requests") as client:
        for id_, name, values in calls:
            client.send(id_, name, **values)
        for point in TASK_ROWS_POINTS:
            marker = tmp_path / point
            with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}"):
                failure(transactions(spark, place, bank, 1, "read_in_bucket"), place)
            assert marker.exists()
        place.run(transactions(spark, place, bank, 1, "read_in_bucket"))
        found = {id_: client.wait(id_) for id_, _, _ in calls}
    check_serial(spark, place, bank, events, calls)
    with bank.connect(place.directory / "requests") as client:
        # A client that does not know whether it was answered asks again.
        for id_, name, values in calls[:4]:
            client.send(id_, name, **values)
        place.run(transactions(spark, place, bank, 1, "read_in_bucket"))
        assert {id_: client.wait(id_) for id_, _, _ in calls[:4]} == {
            id_: found[id_] for id_, _, _ in calls[:4]
        }


@pytest.mark.long
def test_a_replay_with_another_program_or_other_answers_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, draw, bank = Place(tmp_path), random.Random(5), make_bank()
    penstock.register(spark)
    append_events(place, draw, 30)
    with bank.connect(place.directory / "requests") as client:
        client.send("a", "charge", account=1, amount=2)
        client.send("b", "read", account=1)
        place.run(transactions(spark, place, bank, 1, "read_in_bucket"))
        assert client.wait("a") == {"left": 3, "rejected": None}
        assert client.wait("b") == {"balance": 3, "rejected": None}
    place.forget(0)
    other = make_bank(opening=50)
    why = failure(transactions(spark, place, other, 1, "read_in_bucket"), place)
    assert "the checkpoint was made with another program" in why
    changed = transactions(
        spark, place, other, 1, "read_in_bucket", bank.procedures["charge"].program().digest
    )
    why = failure(changed, place)
    assert "a micro-batch that was not finished was begun with another program" in why
    why = failure(transactions(spark, place, make_bank(interest=1), 1, "read_in_bucket"), place)
    assert "rows that tasks have written to a p-stream are ahead of the checkpoint, and differ" in why
    place.run(transactions(spark, place, bank, 1, "read_in_bucket"))


FILE = """
import penstock

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")


@bank.procedure(event="id bigint, amount bigint", returns="left bigint")
def act(e, accounts):
    if e.id not in accounts:
        accounts.insert(id=e.id, balance=0)
    accounts[e.id].balance += e.amount
    return accounts[e.id].balance


@bank.procedure(event="id bigint", returns="balance bigint")
def balance(e, accounts):
    return accounts[e.id].balance
"""


def test_a_pipeline_and_a_graph_take_requests(spark: SparkSession, tmp_path: Path) -> None:
    penstock.register(spark)
    (tmp_path / "bank.py").write_text(FILE)
    (bank,) = databases_in(tmp_path / "bank.py").values()
    schema = pa.schema({"id": pa.int64(), "amount": pa.int64()})
    with penstock.PStreamWriter(tmp_path / "events", schema) as writer:
        writer.append({"id": [1, 2, 1], "amount": [5, 6, 7]})
    inputs = Input(tmp_path / "in")
    inputs.add(penstock.PStreamReader(tmp_path / "events").read())
    sections = {
        "source": {
            "type": "files",
            "format": "parquet",
            "path": str(inputs.directory),
            "schema": "id LONG, amount LONG",
        },
        "database": {"file": str(tmp_path / "bank.py"), "procedure": "act", "requests": str(tmp_path / "r")},
        "sink": {"type": "parquet", "path": str(tmp_path / "out")},
        "query": {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now"},
    }
    with bank.connect(tmp_path / "r") as client:
        client.send("a", "act", id=1, amount=1)
        totals = run_to_end(Pipeline.model_validate(sections))
        assert (totals.rows_in, client.wait("a")) == (3, {"left": 1, "rejected": None})
        graph = penstock.graph("g").source("events", schema)
        graph = graph.transactions(bank.procedures["act"], requests=tmp_path / "r2").sink(
            "pstream", path=str(tmp_path / "out2")
        )
        assert "beside requests" in graph.explain()
        sources = {"events": tmp_path / "events"}
        with (
            penstock.start(graph, spark, tmp_path / "graph", sources=sources) as running,
            bank.connect(tmp_path / "r2", timeout="120s") as other,
        ):
            assert other.call("act", id=9, amount=4) == {"left": 4, "rejected": None}
            assert other.call("balance", id=9) == {"balance": 4, "rejected": None}
            running.process_all_available()
    assert penstock.PStreamReader(tmp_path / "out2").read()["left"].to_pylist() == [5, 6, 12]


def test_requests_are_fixed_for_the_life_of_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    place, bank = Place(tmp_path), make_bank()
    penstock.register(spark)
    append_events(place, random.Random(1), 30)
    events = spark.readStream.format("pstream").load(str(place.directory / "events"))
    given: dict[str, Any] = {"state_location": place.state}
    place.run(penstock.transactions(events, bank.procedures["charge"], **given))
    with pytest.raises(InvalidUsageError, match="the checkpoint was made with other requests"):
        place.start(
            penstock.transactions(events, bank.procedures["charge"], requests=tmp_path / "r", **given)
        )
