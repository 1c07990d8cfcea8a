"""Transactions over a stream of Spark equal the serial run, whatever happens meanwhile."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock._failpoints import STATE_POINTS
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.inspect.database import read_databases
from penstock.jobs.pipelines.run import run_to_end
from penstock.procedures.databases import Database
from tests.long_tests import long_but
from tests.spark.queries import Input, Place, failure, fresh_workers
from tests.transactions.procedures import define

pytestmark = pytest.mark.spark

SCHEMA = "id long, ts long, kind string, source long, target long, amount long"
TRANSFER = """
def act(e, accounts):
    if e.kind == "open":
        accounts.insert(id=e.source, balance=e.amount, owner=e.kind)
        return e.amount
    source = accounts[e.source]
    source.balance -= e.amount
    if source.balance < 0:
        abort("short")
    if e.kind == "move":
        accounts[e.target].balance += e.amount
    return source.balance
"""
SPEND = """
def act(e, accounts):
    if e.source not in accounts:
        accounts.insert(id=e.source, balance=0)
    account = accounts[e.source]
    account.balance += e.amount
    if account.balance < 0:
        abort("short")
    return account.balance
"""


def bank(text: str = TRANSFER) -> Any:
    database: Database = penstock.database("bank")
    database.table(
        "accounts", "id bigint, balance bigint NOT NULL, owner string", key="id", partition_by="id"
    )
    return database.procedure(returns="left bigint")(define(text))


def events(*rows: tuple[int, int, str, int | None, int, int]) -> pa.Table:
    names = ["id", "ts", "kind", "source", "target", "amount"]
    types = [pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.int64()]
    columns = list(zip(*rows, strict=True))
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)


def query(spark: SparkSession, place: Place, procedure: Any = None, **options: Any) -> DataFrame:
    given: dict[str, Any] = {"time": "ts", "keep": "id", "state_location": place.state} | options
    return penstock.transactions(place.input.frame(spark, SCHEMA), procedure or bank(), **given)


POINTS = [*(point for point in STATE_POINTS if point.startswith("state.")), "operator.after_commit"]
FIRST = events(
    (2, 5, "move", 1, 2, 30), (1, 1, "open", 2, 0, 0), (0, 1, "open", 1, 0, 100), (3, 6, "move", 1, 2, 71),
    (4, 7, "move", 1, 9, 1), (5, 8, "open", 1, 0, 1), (6, 9, "move", None, 1, 1),
)  # fmt: skip
SECOND = events((7, 1, "move", 2, 1, 30), (8, 2, "spend", 1, 0, 100), (9, 3, "spend", 1, 0, 1))


def results(place: Place) -> list[tuple[Any, ...]]:
    return sorted(place.sequence("bucket", "transaction", "id", "left", "rejected"))


EXPECTED = [
    (0, 0, 1, 0, None), (0, 1, 0, 100, None), (0, 2, 2, 70, None), (0, 3, 3, None, "short"),
    (0, 4, 4, None, "unknown key: accounts"), (0, 5, 5, None, "duplicate key: accounts"),
    (0, 6, 6, None, "null key: accounts"), (0, 7, 7, 0, None), (0, 8, 8, 0, None), (0, 9, 9, None, "short"),
]  # fmt: skip


def test_transactions_run_by_time_and_go_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(FIRST)
    ended = place.run(query(spark, place))
    entry = penstock.metrics(ended)[0]
    assert (entry["rows_in"], entry["committed"], entry["rejected"], entry["keys"]) == (7, 3, 4, 2)
    place.input.add(SECOND)
    place.run(query(spark, place))
    assert results(place) == EXPECTED
    accounts = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    found = accounts.orderBy("id").select("id", "balance", "owner").collect()
    assert [tuple(row) for row in found] == [(1, 0, "open"), (2, 0, "open")]


def test_a_changed_program_is_refused_unless_it_is_compatible(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(FIRST)
    place.run(query(spark, place))
    place.input.add(SECOND)
    changed = bank(TRANSFER.replace('"short"', '"too little"'))
    with pytest.raises(InvalidUsageError, match="the checkpoint was made with another program") as caught:
        place.start(query(spark, place, changed))
    begun = json.loads(caught.value.context["was"])
    assert caught.value.hint is not None
    assert f'compatible_with="{begun}"' in caught.value.hint
    place.run(query(spark, place, changed, compatible_with=begun))
    assert results(place)[-1] == (0, 9, 9, None, "too little")


@pytest.mark.parametrize("sink", ["parquet", "foreachBatch"])
def test_a_micro_batch_runs_again_with_its_own_program_whatever_the_sink(
    spark: SparkSession, tmp_path: Path, sink: str
) -> None:
    place, seen = Place(tmp_path), list[tuple[int, list[tuple[Any, ...]]]]()

    def run(df: DataFrame) -> None:
        if sink == "parquet":
            place.run(df)
            return
        writer = df.writeStream.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True)
        query = writer.foreachBatch(
            lambda rows, batch: seen.append((batch, sorted(map(tuple, rows.collect()))))
        ).start()
        assert query.awaitTermination(180)

    changed = bank(TRANSFER.replace('"short"', '"too little"'))
    own, other = (one.program(events(*[(0, 0, "", 0, 0, 0)]).schema).digest for one in (bank(), changed))
    place.input.add(FIRST)
    run(query(spark, place))
    place.input.add(SECOND)
    run(query(spark, place))
    first_run = results(place) if sink == "parquet" else list(seen)
    # A crash before Spark's commit. Files that are no part of the sink's log may have been seen, too.
    if sink == "parquet":
        place.forget(1)
    else:
        place.forget_commits(1)
    with pytest.raises(StreamingQueryException, match="was begun with another program") as caught:
        run(query(spark, place, changed, compatible_with=own))
    assert f"was={own}" in str(caught.value)
    assert f"now={other}" in str(caught.value)
    run(query(spark, place))
    if sink == "parquet":
        assert results(place) == first_run == EXPECTED
    else:
        assert seen == [*first_run, first_run[-1]]
    place.input.add(events((10, 1, "spend", 1, 0, 5)))
    run(query(spark, place, changed, compatible_with=own))
    last = results(place)[-1] if sink == "parquet" else seen[-1][1][-1]
    assert last == (0, 10, 10, None, "too little")


def test_several_buckets_take_transactions_of_one_partition_each(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    rows = [(i, i, "spend", i % 7, 0, 10 - i % 3 * 15) for i in range(200)]
    for begin in range(0, 200, 50):
        place.input.add(events(*rows[begin : begin + 50]))
    place.run(query(spark, place, bank(SPEND), buckets=4))
    balances: dict[int | None, int] = {}
    expected = []
    for number, _, _, source, _, amount in rows:
        new = balances.get(source, 0) + amount
        if new >= 0:
            balances[source] = new
        expected.append((number, new if new >= 0 else None, None if new >= 0 else "short"))
    assert sorted(place.sequence("id", "left", "rejected")) == expected
    assert {row[0] for row in place.sequence("bucket")} > {0}
    stored = penstock.read_state(spark, place.state, table="accounts").select("id", "balance").collect()
    assert {row["id"]: row["balance"] for row in stored} == balances


def test_what_cannot_run_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(FIRST)
    with pytest.raises(InvalidUsageError, match="that its event does not name"):
        next_one = bank("def act(e, accounts):\n    accounts[e.source + 1].balance = 1\n")
        query(spark, place, next_one, buckets=2)
    with pytest.raises(InvalidUsageError, match="there is no such column"):
        query(spark, place, keep="nothing")
    with pytest.raises(InvalidUsageError, match="cannot be the time"):
        query(spark, place, time="kind")
    with pytest.raises(InvalidUsageError, match="the event has no missing"):
        query(spark, place, bank("def act(e, accounts):\n    x = e.missing\n"))


def balances(spark: SparkSession, place: Place, **options: Any) -> list[tuple[int, int]]:
    stored = penstock.read_state(spark, place.state, table="accounts", **options)
    return sorted((row["id"], row["balance"]) for row in stored.collect())


@pytest.mark.parametrize("buckets", [1, 4])
def test_first_rows_are_loaded_once_into_every_bucket(
    spark: SparkSession, tmp_path: Path, buckets: int
) -> None:
    place = Place(tmp_path)
    place.input.add(events((0, 0, "spend", 3, 0, -5)))
    rows = spark.range(20).selectExpr("id", "id * 10 AS balance")
    options: dict[str, Any] = {"procedure": bank(SPEND), "buckets": buckets}
    place.run(query(spark, place, initial={"accounts": rows}, **options))
    expected = {id: 10 * id for id in range(20)} | {3: 25}
    assert balances(spark, place, checkpoint=place.checkpoint) == sorted(expected.items())
    place.input.add(events((1, 0, "spend", 3, 0, -30), (2, 0, "spend", 4, 0, 1), (3, 0, "spend", 30, 0, 7)))
    other = pa.table({"id": [4, 50], "balance": [0, 0]})
    place.run(query(spark, place, initial={"accounts": other}, **options))
    assert balances(spark, place) == sorted((expected | {4: 41, 30: 7}).items())
    assert sorted(place.sequence("id", "left", "rejected")) == [
        (0, 25, None), (1, None, "short"), (2, 41, None), (3, 7, None),
    ]  # fmt: skip


def test_first_rows_that_a_later_start_names_are_ignored_in_every_bucket(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(events((0, 0, "spend", 3, 0, -5)))
    place.run(query(spark, place, bank(SPEND), buckets=4))
    place.input.add(events(*((i, 0, "spend", i, 0, -5) for i in range(1, 9))))
    late = {"accounts": pa.table({"id": range(9), "balance": [100] * 9})}
    place.run(query(spark, place, bank(SPEND), buckets=4, initial=late))
    assert balances(spark, place, checkpoint=place.checkpoint) == []


def test_first_rows_that_do_not_fit_are_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(FIRST)
    for table, rows, message in [
        ("account", {"id": [1]}, "there is no such table"),
        ("accounts", {"id": [1]}, "a column is missing"),
        (
            "accounts",
            {"id": [1], "balance": [0], "note": [0]},
            "no such columns: table=accounts columns=note",
        ),
        ("accounts", {"id": [1], "balence": [0]}, "Hint: did you mean 'balance'"),
        ("accounts", {"id": [1, 1], "balance": [0, 0]}, "two rows have the same key"),
        ("accounts", {"id": [1, None], "balance": [0, 0]}, "a column does not fit"),
    ]:
        with pytest.raises(InvalidUsageError, match=message):
            query(spark, place, initial={table: pa.table(rows)})


@pytest.mark.crash
@pytest.mark.parametrize("point", long_but(["state.before_write", "state.after_write"], "state.after_write"))
def test_first_rows_are_loaded_once_though_a_worker_is_killed(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    place = Place(tmp_path)
    place.input.add(events((0, 0, "spend", 1, 0, -5)))
    initial = {"accounts": pa.table({"id": [1, 2], "balance": [10, 20]})}
    marker = tmp_path / "died"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}"):
        failure(query(spark, place, bank(SPEND), buckets=2, initial=initial), place)
    assert marker.exists()
    place.run(query(spark, place, bank(SPEND), buckets=2, initial=initial))
    assert balances(spark, place, checkpoint=place.checkpoint) == [(1, 5), (2, 20)]


LARGE = Decimal("1000000000000000000000.000001")
"""More than 18 digits, with room for a sum in Python's context of 28 digits."""


def test_decimals_and_binary_columns_pass_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    database = penstock.database("shop")
    database.table(
        "sums",
        "code decimal(20, 0), who binary, total decimal(12, 2) NOT NULL, last timestamp_ntz, "
        "sum decimal(38, 6)",
        key=("code", "who"),
        partition_by="code",
    )
    text = """
def add(e, sums):
    if (e.code, e.who) not in sums:
        sums.insert(code=e.code, who=e.who, total=0)
    row = sums[e.code, e.who]
    row.total += e.amount
    row.last = e.at
    old = row.sum
    row.sum = e.sum
    return row.total, row.who, old
"""
    returns = "total decimal(12, 2), who2 binary, old decimal(38, 6)"
    procedure = database.procedure(returns=returns)(define(text))
    when = datetime.datetime(2026, 1, 2, 3, 4, 5)
    rows = [
        (1, b"a", Decimal("1.10")),
        (2, b"\xff", Decimal("-0.05")),
        (3, b"a", Decimal("2.35")),
        (4, None, Decimal(1)),
    ]
    place = Place(tmp_path)
    place.input.add(
        pa.table({
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "who": pa.array([row[1] for row in rows], pa.binary()),
            "amount": pa.array([row[2] for row in rows], pa.decimal128(10, 2)),
            "at": pa.array([when] * 4, pa.timestamp("us")),
            "code": pa.array([Decimal(10**19)] * 4, pa.decimal128(20, 0)),
            "sum": pa.array([LARGE + row[0] for row in rows], pa.decimal128(38, 6)),
        })
    )  # fmt: skip
    types = "id long, who binary, amount decimal(10, 2), at timestamp_ntz"
    frame = place.input.frame(spark, f"{types}, code decimal(20, 0), sum decimal(38, 6)")
    options: dict[str, Any] = {"keep": ["id", "who"], "buckets": 3, "state_location": place.state}
    place.run(penstock.transactions(frame, procedure, **options))
    found = sorted(place.sequence("id", "total", "who2", "rejected", "old"))
    assert [(id, total, who and bytes(who), why, old) for id, total, who, why, old in found] == [
        (1, Decimal("1.10"), b"a", None, None), (2, Decimal("-0.05"), b"\xff", None, None),
        (3, Decimal("3.45"), b"a", None, LARGE + 1), (4, None, None, "null key: sums", None),
    ]  # fmt: skip
    stored = penstock.read_state(spark, place.state, table="sums").collect()
    columns = [(row["code"], bytes(row["who"]), row["total"], row["last"], row["sum"]) for row in stored]
    assert sorted(columns) == [
        (10**19, b"a", Decimal("3.45"), when, LARGE + 3),
        (10**19, b"\xff", Decimal("-0.05"), when, LARGE + 2),
    ]  # fmt: skip


BANK = """
import penstock
from penstock import abort

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL, owner string", key="id", indexes=["balance"])


@bank.procedure(returns="id bigint")
def richest(e, accounts):
    return accounts.by("balance").last().id


@bank.procedure(returns="left bigint, richest bigint")
def act(e, accounts):
    if e.kind == "open":
        accounts.insert(id=e.source, balance=e.amount, owner=e.kind)
    else:
        accounts[e.source].balance -= e.amount
        if accounts[e.source].balance < 0:
            abort("short")
    if e.kind == "move":
        accounts[e.target].balance += e.amount
    first = richest(e, accounts)
    return accounts[e.source].balance, first
"""


def test_a_pipeline_with_a_database_runs_and_goes_on_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "bank.py"
    file.write_text(BANK)
    inputs = Input(tmp_path / "in")
    first = {"format": "csv", "path": str(tmp_path / "first.csv"), "schema": "id LONG, balance LONG"}
    (tmp_path / "first.csv").write_text("3,-7\n")
    sections = {
        "source": {"type": "files", "format": "parquet", "path": str(inputs.directory), "schema": SCHEMA},
        "database": {
            "file": str(file),
            "procedure": "act",
            "time": "ts",
            "keep": "id",
            "initial": {"accounts": first},
        },
        "results": {"projection": ["id", "left", "richest", "rejected"]},
        "sink": {"type": "parquet", "path": str(tmp_path / "out")},
        "query": {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now"},
    }
    inputs.add(FIRST)
    totals = run_to_end(Pipeline.model_validate(sections))
    assert (totals.rows_in, totals.committed, totals.rejected) == (7, 3, 4)
    inputs.add(SECOND)
    run_to_end(Pipeline.model_validate(sections))
    found = sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    richest = {0: 1, 1: 2, 2: 1, 7: 1, 8: 2}
    assert found == sorted((id, left, richest.get(id), why) for _, _, id, left, why in EXPECTED)
    state = tmp_path / "checkpoint" / "state"
    accounts = (
        penstock.read_state(spark, state, operator="database", table="accounts").orderBy("id").collect()
    )
    assert [(row["id"], row["balance"]) for row in accounts] == [(1, 0), (2, 0), (3, -7)]
    (stored,) = read_databases(str(state), None, 2)
    assert stored.indexes == {"accounts": [["balance"]]}
    assert stored.buckets[0].rows == {"accounts": 3}


@pytest.mark.crash
@pytest.mark.parametrize("point", long_but(POINTS, "operator.after_commit"))
def test_a_worker_killed_at_a_fail_point_changes_nothing(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    place = Place(tmp_path)
    place.input.add(FIRST)
    place.run(query(spark, place))
    place.input.add(SECOND)
    marker = tmp_path / "died"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}"):
        failure(query(spark, place), place)
    assert marker.exists()
    place.run(query(spark, place))
    assert results(place) == EXPECTED


ORDERS = """
def take(e, orders, lines):
    orders.insert(id=e.source, amount=e.amount)
    lines.emit(order=e.source, price=e.amount)
    lines.emit(order=e.source, price=1)
"""
LINES = """
def bill(e, bills, recent):
    if e.order not in bills:
        bills.insert(order=e.order, total=0, recent=0)
    if e.price > 90:
        abort("too much")
    recent.insert(price=e.price)
    bill = bills[e.order]
    bill.total += e.price
    for row in recent:
        bill.recent += row.price
    return bill.recent
"""


def workflow(*, nested: bool = False, window: int = 3) -> Any:
    database: Database = penstock.database("orders")
    database.table("orders", "id bigint, amount bigint NOT NULL", key="id")
    database.table("bills", "order bigint, total bigint NOT NULL, recent bigint NOT NULL", key="order")
    lines = database.stream("lines", "order bigint, price bigint")
    database.window("recent", "price bigint NOT NULL", size=window, slide=2)
    take = database.procedure(define(ORDERS))
    bill = database.procedure(event=lines, returns="recent bigint")(define(LINES))
    return database.workflow("order", *([database.nested(take, bill)] if nested else [bill, take]))


def bills(rows: list[tuple[Any, ...]], *, nested: bool) -> tuple[list[Any], dict[int, Any], set[int]]:
    """Return the expected results, bills and orders."""
    made: list[Any] = []
    totals, orders, inserted = dict[int, tuple[int, int]](), set[int](), list[int]()
    for number, _, _, source, _, amount in rows:
        if source in orders:
            made.append((number, None, "take: duplicate key: orders"))
            continue
        if amount > 90:
            made.append((number, None, "bill: too much"))
            orders |= set() if nested else {source}
            continue
        orders.add(source)
        total, recent = 0, 0
        for price in (amount, 1):
            inserted.append(price)
            total += price
            # Three rows at most, those of the slides of two that are full.
            recent += sum(inserted[: len(inserted) // 2 * 2][-3:])
        totals[source] = (total, recent)
        made.append((number, recent, None))
    return made, totals, orders


@pytest.mark.parametrize("nested", long_but([False, True], True))
def test_a_workflow_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path, nested: bool) -> None:
    place = Place(tmp_path)
    rows = [(i, i, "order", i % 23 if i % 5 == 0 else i, 0, i * 37 % 97) for i in range(90)]
    runs = []
    for begin in (0, 30, 60):
        place.input.add(events(*rows[begin : begin + 30]))
        runs.append(place.run(query(spark, place, workflow(nested=nested))))
    made, totals, orders = bills(rows, nested=nested)
    assert sorted(place.sequence("id", "recent", "rejected")) == made
    entry = penstock.metrics(runs[-1])[0]
    assert entry["rows_in"] == entry["committed"] + entry["rejected"] == 30
    stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="bills").collect()
    assert {row["order"]: (row["total"], row["recent"]) for row in stored} == totals
    stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="orders").collect()
    assert {row["id"] for row in stored} == orders


def test_a_changed_workflow_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(FIRST)
    place.run(query(spark, place, workflow()))
    place.input.add(SECOND)
    for changed in (workflow(nested=True), workflow(window=4)):
        with pytest.raises(
            InvalidUsageError, match=r"the checkpoint was made with (another program|other tables)"
        ):
            place.start(query(spark, place, changed))
    with pytest.raises(InvalidUsageError, match="the window recent is of all rows"):
        query(spark, place, workflow(), buckets=2)


@pytest.mark.crash
@pytest.mark.parametrize("point", long_but(POINTS, "operator.after_commit"))
def test_a_workflow_killed_at_a_fail_point_runs_each_round_once(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    place = Place(tmp_path)
    rows = [(i, i, "order", i, 0, i * 37 % 97) for i in range(40)]
    place.input.add(events(*rows[:25]))
    place.run(query(spark, place, workflow()))
    place.input.add(events(*rows[25:]))
    marker = tmp_path / "died"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}"):
        failure(query(spark, place, workflow()), place)
    assert marker.exists()
    place.run(query(spark, place, workflow()))
    made, totals, _ = bills(rows, nested=False)
    assert sorted(place.sequence("id", "recent", "rejected")) == made
    stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="bills").collect()
    assert {row["order"]: (row["total"], row["recent"]) for row in stored} == totals
