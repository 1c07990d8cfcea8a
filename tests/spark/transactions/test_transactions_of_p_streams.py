"""Transactions over a p-stream: no row crosses the JVM, and all ends as the serial run does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.databases import Database
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.procedure import Procedure
from penstock.procedures.programs import PROGRAMS, PackagedProgram
from penstock.spark_ext.api.transactions import PlannedTransactions, plan_transactions
from penstock.spark_ext.border.transaction_packing import Route
from penstock.spark_ext.graph import frames
from tests.long_tests import long_but
from tests.spark.queries import PATIENCE_S, Place, limits, settings
from tests.transactions.procedures import comparable, define
from tests.transactions.workflows import state_bytes, table_bytes

pytestmark = pytest.mark.spark

SPEND = """
def spend(e, accounts):
    accounts[e.account].balance -= e.amount
    return accounts[e.account].balance
"""


def spending() -> tuple[Database, Procedure]:
    """Return a database of accounts, and the procedure that spends."""
    database = penstock.database("accounts")
    database.table("accounts", "account bigint, balance bigint", key="account", partition_by="account")
    return database, database.procedure(event="account bigint, amount bigint", returns="left bigint")(
        define(SPEND)
    )


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    penstock.register(spark)


def appended(place: Place, program: PackagedProgram, keys: int, *counts: int) -> Iterator[pa.Table]:
    """Append events in steps, in p-units of 200 rows."""
    opening = program.opening(keys)
    for seed, count in enumerate(counts):
        drawn = program.workload(count, keys, seed)
        rows = pa.Table.from_batches([drawn] if seed else [opening, drawn])
        append(place, rows)
        yield rows


def append(place: Place, rows: pa.Table) -> None:
    with penstock.PStreamWriter(place.directory / "events", rows.schema, unit_rows=200) as writer:
        writer.append(rows)


def source(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    given: dict[str, Any] = {"reader": "test"} | limits(maxRows=700) | options
    return spark.readStream.format("pstream").options(**given).load(str(place.directory / "events"))


def route(results: DataFrame) -> Route:
    """Return the route that Spark's plan names; a `MapInArrow` is where rows cross."""
    plan = str(results._jdf.queryExecution().analyzed().toString())
    (found,) = (one for one in Route if f"transactions_{one.value}_" in plan)
    assert plan.count("MapInArrow") == (2 if found is Route.SPARK else 1)
    return found


def serial(program: PackagedProgram, rows: list[pa.Table]) -> tuple[list[tuple[Any, ...]], PlainTables]:
    plain = PlainTables(program.database.tables.values())
    columns = program.procedure.program().results
    batches = [batch for table in rows for batch in table.to_batches()]
    made = [row for batch in batches for row in plain.run(program.procedure.text, batch, columns)]
    return [comparable(row) for row in made], plain


def found(place: Place, program: PackagedProgram, *keep: str) -> list[tuple[Any, ...]]:
    """Return the results by bucket and transaction."""
    own = [column.name for column in program.procedure.program().results]
    rows = sorted(place.sequence("bucket", "transaction", *keep, *own, "rejected"), key=lambda row: row[:2])
    return [comparable(row) for row in rows]


def check_state(spark: SparkSession, place: Place, database: Database, plain: PlainTables) -> None:
    """Check the bytes of all tables' rows."""
    expected = state_bytes(plain, database)
    assert expected.keys() == database.tables.keys()
    for name, spec in database.tables.items():
        read = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table=name)
        assert table_bytes(read.toArrow(), spec) == expected[name], name


@pytest.mark.parametrize("name", long_but(["GS", "SL", "OB", "TP", "bank"], "SL"))
def test_routes_and_restarts_with_other_partitions_change_nothing(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    place, program = Place(tmp_path), PROGRAMS[name]
    rows = []
    for step, more in enumerate(appended(place, program, 100, 1500, 900, 900)):
        rows.append(more)
        with settings(spark, spark__sql__shuffle__partitions=str(1 + step)):
            events = source(spark, place, partitions=3 - step)
            events = events.where("true") if step == 1 else events.select(*reversed(events.columns))
            results = penstock.transactions(events, program.procedure, state_location=place.state)
            assert route(results) is (Route.SPARK if step == 1 else Route.BUCKET)
            place.run(results)
    expected, plain = serial(program, rows)
    assert [row[2:] for row in found(place, program)] == expected
    assert [row[1] for row in found(place, program)] == list(range(len(expected)))
    check_state(spark, place, program.database, plain)


@pytest.mark.long
def test_transactions_run_by_time_in_a_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    place, program = Place(tmp_path), PROGRAMS["linear_road"]
    rows = program.workload(900, 30, 1)
    backwards = pa.Table.from_batches([rows]).sort_by([("time", "descending"), ("vehicle", "descending")])
    append(place, backwards)
    results = penstock.transactions(
        source(spark, place, **limits(maxRows=1000)), program.procedure, time="time",
        keep=("vehicle", "time"), state_location=place.state, buckets=1,
    )  # fmt: skip
    assert route(results) is Route.BUCKET
    place.run(results)
    times = backwards["time"].to_pylist()
    ordered = backwards.take(sorted(range(len(times)), key=times.__getitem__))
    expected, plain = serial(program, [ordered])
    keys = zip(ordered["vehicle"].to_pylist(), ordered["time"].to_pylist(), strict=True)
    assert [row[2:] for row in found(place, program, "vehicle", "time")] == [
        (*key, *row) for key, row in zip(keys, expected, strict=True)
    ]
    check_state(spark, place, program.database, plain)


@pytest.mark.parametrize("buckets", [1, 2])
def test_the_time_may_be_no_attribute_of_the_event(spark: SparkSession, tmp_path: Path, buckets: int) -> None:
    place, (_, spend) = Place(tmp_path), spending()
    append(place, pa.table({"account": [1, 1, 1], "amount": [7, 8, 9], "at": [3, 1, 2]}))
    results = penstock.transactions(
        source(spark, place), spend, time="at", keep="amount", buckets=buckets, state_location=place.state
    )
    assert route(results) is (Route.BUCKET if buckets == 1 else Route.READERS)
    place.run(results)
    assert place.sequence("transaction", "amount") == [(0, 8), (1, 9), (2, 7)]


@pytest.mark.long
def test_readers_pack_rows_for_several_buckets(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    database, spend = spending()
    opening = pa.table({"account": list(range(40)), "balance": [0] * 40})
    for step in range(3):
        # No event goes to some of the buckets in the first micro-batch.
        accounts = [7] * 90 if step == 0 else [number * 7 % 41 for number in range(900)]
        append(place, pa.table({"account": accounts, "amount": range(len(accounts))}))
        events = source(spark, place, partitions=3 - step)
        events = events.where("true") if step == 1 else events
        results = penstock.transactions(
            events,
            spend,
            keep=("account", "amount"),
            buckets=3,
            initial={"accounts": opening},
            state_location=place.state,
        )
        assert route(results) is (Route.SPARK if step == 1 else Route.READERS)
        place.run(results)
    table = penstock.PStreamReader(place.directory / "events").read()
    plain = PlainTables(database.tables.values())
    plain.tables["accounts"].rows = {(row["account"],): row for row in opening.to_pylist()}
    events = table.combine_chunks().to_batches()[0]
    expected = plain.run(spend.text, events, spend.program().results)
    made = place.sequence("bucket", "transaction", "account", "amount", "left", "rejected")
    assert {row[0] for row in made} == {0, 1, 2}
    keys = zip(table["account"].to_pylist(), table["amount"].to_pylist(), strict=True)
    wanted = [(*key, *row) for key, row in zip(keys, expected, strict=True)]
    assert sorted((row[2:] for row in made), key=repr) == sorted(wanted, key=repr)
    check_state(spark, place, database, plain)


@pytest.mark.parametrize("through_spark", long_but([False, True], False))
@pytest.mark.parametrize("buckets", long_but([1, 3], 3))
def test_first_rows_are_there_if_the_first_micro_batch_has_no_event(
    spark: SparkSession, tmp_path: Path, buckets: int, through_spark: bool
) -> None:
    place, (_, spend) = Place(tmp_path), spending()
    other = place.directory / "other"
    with penstock.PStreamWriter(other, pa.schema({"x": pa.int64()})) as writer:
        writer.append(pa.table({"x": [1]}))
    append(place, pa.table({"account": [1], "amount": [1]}).slice(0, 0))

    def results(**options: Any) -> DataFrame:
        events = source(spark, place)
        made = penstock.transactions(
            events.where("true") if through_spark else events, spend, buckets=buckets,
            state_location=place.state, **options,
        )  # fmt: skip
        others = spark.readStream.format("pstream").load(str(other))
        return made.unionByName(others.selectExpr("0 bucket", "-1L transaction", "x left", "'' rejected"))

    opening = {"accounts": pa.table({"account": [1, 2, 3], "balance": [0, 0, 0]})}
    place.run(results(initial=opening))
    assert place.sequence("transaction") == [(-1,)]
    append(place, pa.table({"account": [1, 2, 3], "amount": [1, 2, 3]}))
    place.run(results(initial=opening))
    assert sorted(place.sequence("left", "rejected")) == [(-3, None), (-2, None), (-1, None), (1, "")]


@pytest.mark.parametrize("buckets", [1, 2])
def test_columns_of_another_case_pass_through_spark(
    spark: SparkSession, tmp_path: Path, buckets: int
) -> None:
    place = Place(tmp_path)
    _, spend = spending()
    append(place, pa.table({"Account": [1], "amount": [2]}))
    events = source(spark, place).select("account", "amount")
    opening = pa.table({"account": [1], "balance": [5]})
    results = penstock.transactions(
        events, spend, buckets=buckets, initial={"accounts": opening}, state_location=place.state
    )
    assert route(results) is Route.SPARK
    place.run(results)
    assert place.sequence("left", "rejected") == [(3, None)]


def test_tasks_write_results_themselves_or_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    place, program = Place(tmp_path), PROGRAMS["bank"]
    rows = []
    for step, more in enumerate(appended(place, program, 50, 1000, 800, 600)):
        rows.append(more)
        given: dict[str, Any] = {"keep": "kind", "state_location": place.state}
        events = source(spark, place)
        if step == 1:
            results = penstock.transactions(events, program.procedure, **given)
            writer = results.writeStream.format("pstream").option("path", str(tmp_path / "out"))
        else:
            writer = penstock.write_transactions(events, program.procedure, tmp_path / "out", **given)
        writer = writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(int(PATIENCE_S))
        assert sum(entry["rows_in"] for entry in penstock.metrics(query)) == more.num_rows
    made = penstock.PStreamReader(tmp_path / "out").read().to_pylist()
    kinds = [row["kind"] for table in rows for row in table.to_pylist()]
    expected = zip(kinds, serial(program, rows)[0], strict=True)
    assert [tuple(row.values()) for row in made] == [
        (0, number, kind, *row) for number, (kind, row) in enumerate(expected)
    ]


def test_an_error_of_transactions_that_write_their_results_names_the_node(
    spark: SparkSession, tmp_path: Path
) -> None:
    database, spend = spending()
    schema = pa.schema({"account": pa.int64(), "amount": pa.int64()})
    append(Place(tmp_path), schema.empty_table())
    graph = penstock.graph("g").source("events", schema).transactions(
        spend, name="spending", initial=("accounts",)
    )  # fmt: skip
    graph = graph.sink("pstream", path=str(tmp_path / "out"))
    twice = spark.createDataFrame([(1, 2), (1, 3)], "account long, balance long")
    with pytest.raises(InvalidUsageError, match=r"two rows have the same key.*node=spending"):
        penstock.start(
            graph, spark, tmp_path / "graph", sources={"events": tmp_path / "events"},
            tables={"accounts": twice},
        )  # fmt: skip
    assert database.tables.keys() == {"accounts"}


@pytest.mark.parametrize("wide", long_but([False, True], True))
def test_a_graph_reads_and_writes_without_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    place, program = Place(tmp_path), PROGRAMS["bank"]
    rows = pa.Table.from_batches([program.opening(50), program.workload(900, 50, 0)])
    stored = rows.append_column("note", pa.nulls(rows.num_rows, pa.string())) if wide else rows
    append(place, stored)
    routes: list[Route] = []

    def planned(*arguments: Any) -> PlannedTransactions:
        made = plan_transactions(*arguments)
        routes.append(made.route)
        return made

    monkeypatch.setattr(frames, "plan_transactions", planned)
    graph = penstock.graph("money").source("events", stored.schema).transactions(program.procedure)
    graph = graph.sink("pstream", path=str(tmp_path / "out"))
    assert graph.explain().rstrip().endswith("input: the bucket's task reads the p-stream")
    options: dict[str, Any] = {"sources": {"events": place.directory / "events"}, "available_now": True}
    with penstock.start(graph, spark, tmp_path / "graph", **limits(max_rows=400), **options) as running:
        assert running.await_termination(PATIENCE_S), running.status()
        assert running.status()["queries"]["results"]["writes"] == "directly"
    assert set(routes) == {Route.BUCKET}
    made = penstock.PStreamReader(tmp_path / "out").read().to_pylist()
    expected = serial(program, [rows])[0]
    assert [tuple(row.values()) for row in made] == [(0, number, *row) for number, row in enumerate(expected)]
    graph_directory = tmp_path / "graph"
    accounts = penstock.read_state(
        spark, graph_directory / "state", checkpoint=graph_directory, table="accounts"
    )
    assert accounts.select("version").distinct().count() == 1
