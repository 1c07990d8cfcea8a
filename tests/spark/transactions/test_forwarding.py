"""Transactions over several buckets of Spark equal the serial run, also if a crash separates both stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import penstock
from penstock import abort
from penstock._failpoints import COORDINATOR_POINTS
from penstock.cli import app
from penstock.conf.pipeline import load_pipeline
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.inspect.database import describe_database, read_databases
from penstock.jobs.pipelines.start import start_pipeline
from penstock.procedures.analysis.counts import TransactionCounts
from penstock.procedures.compiler.program import event_schema
from penstock.procedures.plain.tables import PlainTables
from penstock.spark_ext.state_reader.table_view import TableView
from tests.spark.queries import PATIENCE_S, Place, failure, fresh_workers
from tests.spark.transactions.test_transactions import SCHEMA, TRANSFER, bank, events

pytestmark = pytest.mark.spark

PROCEDURE = bank()
Event = tuple[int, int, str, int | None, int, int]
COLUMNS = ("bucket", "transaction", "id", "left", "rejected")


def draw_events(seed: int, count: int = 240, accounts: int = 24) -> list[Event]:
    """Draw events in the order of their time; about half of the moves are between buckets."""
    draw = random.Random(seed)
    rows: list[Event] = [(n, 0, "open", 2 * n, 2 * n, 60) for n in range(accounts // 2)]
    while len(rows) < count:
        kind = draw.choice(["open", "move", "move", "spend", "spend"])
        source = draw.randrange(accounts)
        target = draw.randrange(accounts) if kind == "move" else source
        rows.append((len(rows), len(rows) // 3, kind, source, target, draw.randrange(-20, 70)))
    return rows


def query(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    given: dict[str, Any] = {"time": "ts", "keep": "id", "buckets": 3, "state_location": place.state}
    return penstock.transactions(place.input.frame(spark, SCHEMA), PROCEDURE, **(given | options))


def add(place: Place, rows: Sequence[Event], batches: int) -> None:
    """Add rows as micro-batches; within one, the time orders rows, and of one time the arrival."""
    size = -(-len(rows) // batches)
    for begin in range(0, len(rows), size):
        some = sorted(rows[begin : begin + size], key=lambda row: (row[1] % 2, row[0]))
        place.input.add(events(*some))


def serial(rows: Sequence[Event]) -> tuple[list[tuple[Any, ...]], set[tuple[int, int]]]:
    """Return the results of a serial run in plain Python, and the accounts after it."""
    tables = PlainTables(PROCEDURE.tables.values())
    schema = event_schema(PROCEDURE.program(events(rows[0]).schema).event)
    batch = events(*rows).select(schema.names).cast(schema).combine_chunks().to_batches()[0]
    results = plain_results(batch, tables)
    accounts = {(row["id"], row["balance"]) for row in tables.tables["accounts"].rows.values() if row}
    return [(row[0], *result) for row, result in zip(rows, results, strict=True)], accounts


def plain_results(batch: pa.RecordBatch, tables: PlainTables) -> list[tuple[Any, ...]]:
    return tables.run(PROCEDURE.text, batch, PROCEDURE.program(batch.schema).results)


def accounts(spark: SparkSession, place: Place) -> set[tuple[int, int]]:
    stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="accounts")
    return {(row["id"], row["balance"]) for row in stored.collect()}


def check_arrival(spark: SparkSession, place: Place, rows: Sequence[Event]) -> None:
    """Compare results, their numbers and the tables with the serial run in the order of arrival."""
    expected, last = serial(rows)
    made = place.sequence(*COLUMNS)
    assert sorted((row[2:] for row in made), key=lambda row: row[0]) == expected
    for bucket in range(3):
        own = sorted(row[1:3] for row in made if row[0] == bucket)
        assert [number for number, _ in own] == list(range(len(own)))
        assert [id_ for _, id_ in own] == sorted(id_ for _, id_ in own)
    assert accounts(spark, place) == last


def test_results_and_tables_equal_the_serial_run_in_the_order_of_arrival(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, rows = Place(tmp_path), draw_events(1)
    add(place, rows[:160], 2)
    ended = place.run(query(spark, place))
    add(place, rows[160:], 1)
    more = place.run(query(spark, place))
    check_arrival(spark, place, rows)
    entries = penstock.metrics(ended) + penstock.metrics(more)
    assert sum(entry["rows_in"] for entry in entries) == len(rows)
    assert sum(entry["committed"] + entry["rejected"] for entry in entries) == len(rows)
    forwarded = sum(entry["forwarded"] for entry in entries)
    assert 0 < forwarded < len(rows)
    (stored,) = read_databases(str(place.state), str(place.checkpoint), 2)
    assert stored.is_sound
    assert sum(bucket["forwarded"] for bucket in describe_database(stored)["buckets"]) == forwarded  # type: ignore[attr-defined]
    both = [penstock.count_transactions(one) for one in (ended, more)]
    counts = penstock.count_transactions(place.checkpoint, state_location=place.state)
    assert counts == TransactionCounts(len(rows), forwarded)
    assert sum(one.transactions for one in both) == len(rows)
    assert sum(one.forwarded for one in both) == forwarded
    share = f"forwarded, measured: {forwarded} of 240 transactions ({forwarded / 240:.1%})"
    assert PROCEDURE.explain(counts).endswith(share)
    with pytest.raises(InvalidUsageError, match="no such operator has run"):
        penstock.count_transactions(ended, operator="other")
    with pytest.raises(InvalidUsageError, match="the state location is missing"):
        penstock.count_transactions(place.checkpoint)


@pytest.mark.long
def test_results_of_any_order_tell_it(spark: SparkSession, tmp_path: Path) -> None:
    place, rows = Place(tmp_path), draw_events(2)
    add(place, rows, 3)
    place.run(query(spark, place, order="any"))
    made = sorted(place.sequence("batch", "forwarded", "id", "left", "rejected", "bucket", "transaction"))
    by_id = {row[0]: row for row in rows}
    expected, last = serial([by_id[row[2]] for row in made])
    assert [row[2:5] for row in made] == expected
    assert accounts(spark, place) == last
    assert {row[1] for row in made} == {False, True}
    for bucket in range(3):  # the order within a bucket is the same
        own = [row[6] for row in made if row[5] == bucket]
        assert own == list(range(len(own)))


@pytest.mark.long
def test_a_graph_and_a_pipeline_tell_the_share_forwarded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = draw_events(7)
    with penstock.PStreamWriter("events", events(rows[0]).schema) as writer:
        writer.append(events(*rows))
    Path("bank.py").write_text(
        "import penstock\nfrom penstock import abort\n\nbank = penstock.database('bank')\n"
        "bank.table('accounts', 'id bigint, balance bigint NOT NULL, owner string', key='id', "
        "partition_by='id')\n\n\n@bank.procedure(returns='left bigint')" + TRANSFER
    )
    Path("p.yaml").write_text(
        "source: {type: pstream, path: events}\n"
        "database: {file: bank.py, procedure: act, time: ts, keep: id, buckets: 3}\n"
        "sink: {type: pstream, path: out}\nquery: {checkpoint: ck, trigger: available_now}\n"
    )
    running = start_pipeline(spark, load_pipeline("p.yaml"))
    assert running.await_termination(PATIENCE_S)
    counts = penstock.count_transactions(running)
    assert counts == penstock.count_transactions("ck")
    assert (counts.transactions, 0 < counts.forwarded < len(rows)) == (len(rows), True)
    told = CliRunner().invoke(app, ["explain", "p.yaml", "--measured"])
    assert told.exit_code == 0, told.output
    for text in (running.explain(), told.stdout):
        assert f"forwarded, measured: {counts.describe()}" in text
        assert "input: rows pass through Spark, since each may go to several buckets" in text
    assert "measured" not in CliRunner().invoke(app, ["explain", "p.yaml"]).stdout


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.parametrize("point", ["operator.after_commit", *COORDINATOR_POINTS])
def test_a_worker_killed_between_the_stages_changes_nothing(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    place, rows = Place(tmp_path), draw_events(3)
    add(place, rows[:80], 1)
    place.run(query(spark, place))
    add(place, rows[80:], 1)
    marker = tmp_path / "died"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}"):
        failure(query(spark, place), place)
    assert marker.exists()
    place.run(query(spark, place))
    check_arrival(spark, place, rows)


@pytest.mark.long
def test_tasks_write_the_results_of_both_stages(spark: SparkSession, tmp_path: Path) -> None:
    place, rows = Place(tmp_path), draw_events(4)
    penstock.register(spark)
    add(place, rows, 2)
    first = {"accounts": pa.table({"id": range(1, 24, 2), "balance": [500] * 12})}
    writer = penstock.write_transactions(
        place.input.frame(spark, SCHEMA), PROCEDURE, place.sink, time="ts", keep="id", buckets=3,
        state_location=place.state, initial=first,
    )  # fmt: skip
    ended = writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True).start()
    assert ended.awaitTermination(180)
    opened: list[Event] = [(-1 - id_, 0, "open", id_, id_, 500) for id_ in range(1, 24, 2)]
    expected, last = serial([*opened, *rows])
    made = penstock.PStreamReader(place.sink).read().sort_by("id")
    assert [tuple(row.values())[2:] for row in made.to_pylist()] == expected[len(opened) :]
    assert accounts(spark, place) == last


@pytest.mark.long
@pytest.mark.parametrize("order", ["arrival", "any"])
def test_lists_and_routes_name_buckets(spark: SparkSession, tmp_path: Path, order: str) -> None:
    place, draw = Place(tmp_path), random.Random(order)
    database = penstock.database("shop")
    database.table("stock", "store bigint, item bigint, count bigint NOT NULL", key=("store", "item"),
                   partition_by="store")  # fmt: skip

    @database.procedure(returns="count bigint", route="e.till // 10")
    def sell(e: Any, stock: Any) -> Any:
        total = 0
        for place_ in range(len(e.stores)):
            if (e.stores[place_], e.items[0]) not in stock:
                stock.insert(store=e.stores[place_], item=e.items[0], count=9)
            total += stock[(e.stores[place_], e.items[0])].count
            stock[(e.stores[place_], e.items[0])].count -= 1
        if (e.till // 10, e.items[0]) not in stock:
            stock.insert(store=e.till // 10, item=e.items[0], count=0)
        stock[(e.till // 10, e.items[0])].count += len(e.stores)
        if total % 5 == 0:
            abort("fifth")
        return total

    columns = {
        "id": pa.int64(),
        "till": pa.int64(),
        "stores": pa.list_(pa.int64()),
        "items": pa.list_(pa.int64()),
    }
    rows = [
        {
            "id": number, "till": draw.choice([None, *range(40)]), "items": [draw.randrange(3)],
            "stores": draw.choice([None, [], [number % 9], [draw.randrange(9), draw.randrange(9), None]]),
        }
        for number in range(90)
    ]  # fmt: skip
    for begin in (0, 50):
        place.input.add(pa.Table.from_pylist(rows[begin : begin + 50], pa.schema(columns)))
    df = place.input.frame(spark, "id long, till long, stores array<long>, items array<long>")
    results = penstock.transactions(
        df, sell, time="id", keep="id", buckets=3, order=order, state_location=place.state
    )
    ended = place.run(results)
    counts = penstock.count_transactions(ended)
    assert counts.transactions == len(rows)
    assert 0 < counts.forwarded < len(rows)
    made = place.sequence("id", "count", "rejected", *(["batch", "forwarded"] if order == "any" else []))
    made.sort(key=lambda row: (*row[3:], row[0]))
    tables = PlainTables(database.tables.values())
    given = pa.Table.from_pylist([rows[row[0]] for row in made]).select(["till", "stores", "items"])
    schema = event_schema(sell.program(pa.schema(columns)).event)
    batch = given.select(schema.names).cast(schema).combine_chunks().to_batches()[0]
    expected = tables.run(sell.text, batch, sell.program(batch.schema).results)
    assert [row[1:3] for row in made] == expected
    stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="stock")
    found = {(row["store"], row["item"], row["count"]) for row in stored.collect()}
    assert found == {
        (row["store"], row["item"], row["count"]) for row in tables.tables["stock"].rows.values() if row
    }


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.parametrize("order", ["arrival", "any"])
def test_replicated_tables_change_in_all_buckets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    place, draw = Place(tmp_path), random.Random(order)
    market = penstock.database("market")
    market.table("prices", "item string, price bigint NOT NULL", key="item")
    market.table("tills", "till bigint, total bigint NOT NULL", key="till", partition_by="till")

    @market.procedure(
        event="id bigint, till bigint, item string, changed string, price bigint NOT NULL",
        returns="total bigint",
    )
    def sell(e: Any, prices: Any, tills: Any) -> Any:
        if e.till not in tills:
            tills.insert(till=e.till, total=0)
        if e.changed is not None:
            if e.price < 0:
                del prices[e.changed]
            elif e.changed in prices:
                prices[e.changed].price = e.price
            else:
                prices.insert(item=e.changed, price=e.price)
        tills[e.till].total += prices[e.item].price
        return tills[e.till].total

    first = {"prices": pa.table({"item": ["a", "b"], "price": [3, 5]})}
    rows = [
        {
            "id": number, "till": draw.randrange(12), "item": draw.choice("ab"),
            "price": draw.randint(-5, 20), "changed": draw.choice("abc") if draw.random() < 0.2 else None,
        }
        for number in range(120)
    ]  # fmt: skip
    schema = event_schema(sell.program().event)

    def run() -> DataFrame:
        df = place.input.frame(spark, "id long, till long, item string, changed string, price long")
        return penstock.transactions(
            df, sell, time="id", keep="id", buckets=3, order=order, state_location=place.state, initial=first
        )

    for begin in (0, 40, 80):
        place.input.add(pa.Table.from_pylist(rows[begin : begin + 40], schema))
        if begin == 40:
            marker = tmp_path / "died"
            with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"coordinator.after_continuation=kill@{marker}"):
                failure(run(), place)
            assert marker.exists()
        place.run(run())
    made = place.sequence("id", "total", "rejected", *(["batch", "forwarded"] if order == "any" else []))
    made.sort(key=lambda row: (*row[3:], row[0]))
    tables = PlainTables(market.tables.values())
    for price in first["prices"].to_pylist():
        tables.tables["prices"].insert(**price)
    batch = pa.RecordBatch.from_pylist([rows[row[0]] for row in made], schema)
    assert [row[1:3] for row in made] == tables.run(sell.text, batch, sell.program().results)
    assert {row[2] for row in made} > {None}, "some sales have no price"
    monkeypatch.setattr(TableView, "is_copied", False)  # read the copies of all buckets
    for table, buckets in (("tills", 1), ("prices", 3)):
        names = market.tables[table].names
        stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table=table)
        found = sorted(tuple(row[name] for name in names) for row in stored.collect())
        left = [tuple(row[name] for name in names) for row in tables.tables[table].rows.values() if row]
        assert found == sorted(left * buckets)


@pytest.mark.long
def test_an_old_checkpoint_meets_newer_continuations(spark: SparkSession, tmp_path: Path) -> None:
    place, rows = Place(tmp_path / "place"), draw_events(5)
    add(place, rows[:80], 1)
    place.run(query(spark, place))
    old = place.copy_to(tmp_path / "old")
    add(place, rows[80:160], 1)
    place.run(query(spark, place))
    add(old, rows[160:], 1)  # other events under the number of the second micro-batch
    error = failure(query(spark, old, state_location=place.state), old)
    assert CorruptDataError.__name__ in str(error)


def test_what_cannot_be_forwarded_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    add(place, draw_events(6), 1)
    moves = bank("def act(e, accounts):\n    accounts[accounts[e.source].balance].balance += 1\n")
    with pytest.raises(InvalidUsageError, match="its event does not name") as caught:
        penstock.transactions(place.input.frame(spark, SCHEMA), moves, buckets=2, state_location=place.state)
    assert "no attribute of the event is the id" in caught.value.context["because"]
    with pytest.raises(InvalidUsageError, match="unknown value"):
        query(spark, place, order="none")
