"""The rows of `read_state` equal what the queue emitted and holds, with and without the checkpoint."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

import penstock
from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import open_files
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, Version
from penstock.state_store.location import Operator, find_operators
from penstock.state_store.survey import survey_bucket
from tests.checkpoints.states import links_of
from tests.long_tests import long_but
from tests.spark.queries import Place, quotes, settings, wait

pytestmark = pytest.mark.spark

BUCKETS = 3


def expected(place: Place, fed: dict[str, tuple[int, float | None]]) -> dict[str, tuple[Any, ...]]:
    """Return (emitted, waiting, t, v) of each key, after a query that was fed these newest tuples."""
    emitted = place.newest()
    return {
        key: (t, False, None, None) if emitted.get(key) == t else (emitted.get(key), True, t, v)
        for key, (t, v) in fed.items()
    }


def shown(df: DataFrame) -> dict[str, tuple[Any, ...]]:
    rows = df.select("k", "emitted", "waiting", "t", "v").collect()
    found = {row["k"]: tuple(row)[1:] for row in rows}
    assert len(found) == len(rows), "one row for each key"
    return found


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, Any]]:
    """Give a query with a budget that stopped while keys wait, and the newest tuple of each key."""
    place = Place(tmp_path_factory.mktemp("ran"))
    first = [(f"k{n}", n, None if n % 5 == 0 else n / 4) for n in range(40)]
    second = [(f"k{n}", 100 + n, float(n)) for n in range(0, 40, 2)]
    place.input.add(quotes(first), quotes(second))
    place.run_until(place.queue(spark, buckets=BUCKETS, budget=6), lambda: len(place.batches()) >= 4)
    place.forget(3)  # The sink may have had the fourth micro-batch before Spark committed it.
    return place, {k: (t, v) for k, t, v in [*first, *second]}


def test_emitted_and_waiting_are_what_the_sink_got_and_did_not_get(
    spark: SparkSession, ran: tuple[Place, dict[str, Any]]
) -> None:
    place, fed = ran
    exact = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    assert not exact.isStreaming
    found = shown(exact)
    assert found == expected(place, fed)
    assert {True, False} == {waiting for _, waiting, _, _ in found.values()}
    assert shown(penstock.read_state(spark, place.state)).keys() == fed.keys()
    assert exact.schema == StructType([
        StructField("bucket", IntegerType()),
        StructField("version", LongType()),
        StructField("k", StringType()),
        *spark.createDataFrame([], "emitted long, waiting boolean, t long, v double").schema,
        StructField("arrived_us", LongType()),
        StructField("rank", LongType()),
    ])  # fmt: skip
    assert exact.where("waiting != (arrived_us is not null) or waiting != (rank is not null)").count() == 0


def test_versions_are_those_of_the_committed_pointers(
    spark: SparkSession, ran: tuple[Place, dict[str, Any]]
) -> None:
    place, _ = ran
    df = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    versions = {(row.bucket, row.version) for row in df.select("bucket", "version").distinct().collect()}
    assert len(versions) == BUCKETS
    (operator,) = find_operators_of(place)
    for bucket, version in versions:
        found = survey_bucket(operator.buckets[bucket])
        assert version in {*found.versions, found.newest[0].version}
        assert (found.rows or 0) > 0


def find_operators_of(place: Place) -> list[Operator]:
    return find_operators(open_files(place.state))


def test_states_are_loaded_in_the_workers_one_bucket_a_task(
    spark: SparkSession, ran: tuple[Place, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, fed = ran

    def refuse(*_: object) -> None:
        raise AssertionError("the driver loads a state")

    monkeypatch.setattr(BucketStore, "load", refuse)
    monkeypatch.setattr(BucketStore, "read_version", refuse)
    df = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    partitions = df.select("bucket", sf.spark_partition_id().alias("partition")).distinct().collect()
    assert len(partitions) == len({row.partition for row in partitions}) == BUCKETS
    assert df.count() == len(fed)


def test_without_a_checkpoint_a_lost_attempt_makes_the_version_before_the_likely_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]), quotes([("a", 2, 2.0)]), quotes([("b", 3, 3.0)]))
    place.run(place.queue(spark, buckets=1))
    assert shown(penstock.read_state(spark, place.state)) == {
        "a": (2, False, None, None),
        "b": (3, False, None, None),
    }
    (operator,) = find_operators_of(place)
    found = survey_bucket(operator.buckets[0])
    store = BucketStore(operator.buckets[0])
    assert found.proven is not None
    newest = place.state_files()[-1]
    unit = decode(newest.read_bytes(), newest)
    other = Pointer(Version(found.proven.version + 1), FileId("0" * 32))
    meta = {**unit.meta, "file_id": other.file_id}
    newest.with_name(other.file_name).write_bytes(encode(PUnit(unit.kind, meta, unit.blocks)))
    assert links_of(store.read_version(other)[0])[-1] == other.file_name
    guessed = penstock.read_state(spark, place.state)
    assert {row.version for row in guessed.collect()} == {found.proven.version}
    assert shown(guessed) == {"a": (2, False, None, None)}
    exact = penstock.read_state(spark, place.state, checkpoint=str(place.checkpoint))
    assert shown(exact).keys() == {"a", "b"}


def test_a_batch_that_was_not_committed_is_seen_only_without_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]), quotes([("a", 2, 2.0), ("b", 2, 2.0)]))
    place.run(place.queue(spark, buckets=BUCKETS))
    place.forget(1)  # As if the driver was killed before it committed the second micro-batch.
    committed = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    assert shown(committed) == {"a": (1, False, None, None)}
    assert shown(penstock.read_state(spark, place.state)).keys() == {"a", "b"}
    place.input.add(quotes([("c", 3, 3.0)]))
    place.run(place.queue(spark, buckets=BUCKETS))
    again = shown(penstock.read_state(spark, place.state, checkpoint=place.checkpoint))
    assert again == {key: (t, False, None, None) for key, t in {"a": 2, "b": 2, "c": 3}.items()}


def test_the_example_of_the_documentation_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path)
    place.state = place.checkpoint / "penstock"
    place.input.add(quotes([("a", 1, 1.5), ("b", 2, 2.5)]))
    source = place.input.frame(spark).selectExpr("t as time", "k as symbol", "v as price")
    df = penstock.update_queue(
        source, key="symbol", time="time", buckets=1, budget=1, state_location=place.state
    )
    place.run_until(df, lambda: len(place.batches()) >= 2)
    place.forget(1)
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "inspect.md").read_text()
    *_, example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(
        example.replace('"market-checkpoint', f'"{place.checkpoint}'), {"spark": spark, "penstock": penstock}
    )
    assert "|     b|   NULL|   2|  2.5|" in capsys.readouterr().out


def test_a_query_that_runs_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([(f"k{n}", n, 1.0) for n in range(50)]))
    running = place.start(place.queue(spark, buckets=BUCKETS, budget=2))
    try:
        wait(running, lambda: len(place.batches()) >= 2)
        choices: list[dict[str, Any]] = [{}, {"checkpoint": place.checkpoint}]
        for options in choices:
            found = shown(penstock.read_state(spark, place.state, **options))
            assert len(found) == 50
            for key, (emitted, waiting, t, _) in found.items():
                number = int(key[1:])
                assert (emitted, t) == ((None, number) if waiting else (number, None))
    finally:
        running.stop()


MOMENT = dt.datetime(2024, 3, 10, 2, 30, 0, 123456)

TYPED = [
    "struct(cast(t as decimal(20, 3)) as d, k as s, date_add(date'2024-02-28', 1) as day) as kept",
    "cast(t as decimal(20, 3)) as price",
    "concat(k, ' é\\u0000') as text",
    "timestamp'2024-03-10 02:30:00.123456' + make_dt_interval(cast(t as int)) as at",
    "timestamp_ntz'2024-03-10 02:30:00.123456' + make_dt_interval(cast(t as int)) as local",
    "date_add(date'2024-02-28', cast(t as int)) as day",
    "map(k, array(v, null)) as history",
    "t as bucket",
    "v as `a.b c`",
]


@pytest.mark.parametrize("large", long_but(["true", "false"], "true"))
@pytest.mark.parametrize(
    ("key", "time"),
    [
        (("text", "price"), "at"),
        (("day", "bucket"), "local"),
        (("price",), "day"),
        (("at", "local"), "a.b c"),
    ],
)
def test_keys_times_and_payload_have_their_types_and_values(
    spark: SparkSession, tmp_path: Path, key: tuple[str, ...], time: str, large: str
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([(f"k{n}", n, n / 2) for n in range(6)]))
    source = place.input.frame(spark).selectExpr(TYPED)
    df = penstock.update_queue(
        source, key=key, time=time, buckets=2, budget=2, policy="linecutting", cost="1us",
        state_location=place.state,
    ).select("text")  # fmt: skip
    place.run_until(df, lambda: len(place.batches()) >= 2)
    place.forget(1)
    batch = spark.read.schema(place.input.frame(spark).schema).parquet(str(place.input.directory))
    rows = {row["text"]: row for row in batch.selectExpr(TYPED).collect()}
    emitted = {row[0] for row in place.sequence("text")}
    with settings(spark, spark__sql__execution__arrow__useLargeVarTypes=large):
        state = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    names = [name for name in source.columns if name not in key]
    assert state.columns == [
        "__penstock_bucket", "version", *key, "emitted", "waiting", *names,
        "arrived_us", "rank", "seen_us", "interval_us",
    ]  # fmt: skip
    for name in source.columns:
        # What is nullable within a type is not stored.
        assert state.schema[name].dataType.simpleString() == source.schema[name].dataType.simpleString()
    assert state.schema["emitted"].dataType == source.schema[time].dataType
    by_key = {tuple(row[name] for name in key): row for row in rows.values()}
    found = state.collect()
    assert len(found) == 6
    waiting = 0
    for row in found:
        original = by_key.pop(tuple(row[name] for name in key))
        waiting += row["waiting"]
        assert row["waiting"] == (original["text"] not in emitted)
        assert row["emitted"] == (None if row["waiting"] else original[time])
        assert [row[name] for name in names] == [original[name] if row["waiting"] else None for name in names]
        assert row["seen_us"] is not None
    assert 0 < waiting < 6


def test_an_arrival_column_brings_when_keys_were_dequeued_and_delivered(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0), ("b", 2, 1.0)]))
    source = place.input.frame(spark).withColumn("came", sf.lit(MOMENT).cast(TimestampType()))
    df = penstock.update_queue(
        source, key="k", time="t", buckets=1, budget=1, arrival="came", state_location=place.state
    )
    place.run_until(df, lambda: len(place.batches()) >= 2)
    place.forget(1)
    rows = penstock.read_state(spark, place.state, checkpoint=place.checkpoint).collect()
    a, b = sorted(rows, key=lambda row: str(row["k"]))
    assert (a["waiting"], b["waiting"]) == (False, True)
    assert a["dequeued_us"] > 0
    assert a["delivered_us"] >= a["dequeued_us"]
    assert (b["dequeued_us"], b["delivered_us"]) == (None, None)
    assert b["arrived_us"] == pa.scalar(MOMENT, pa.timestamp("us")).value
    assert b["came"] == MOMENT


def test_types_whose_text_cannot_be_parsed_come_from_the_stored_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0), ("b", 2, 2.0)]))
    source = place.input.frame(spark).selectExpr(
        "named_struct('a b:c', v, 'd', array(cast(v as decimal(5, 2)))) as odd", "k as `the key`", "t"
    )
    df = penstock.update_queue(
        source, key="the key", time="t", buckets=1, budget=1, state_location=place.state
    ).select("the key", "t")
    place.run_until(df, lambda: len(place.batches()) >= 2)
    place.forget(1)
    state = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    (row,) = state.where("waiting").collect()
    assert (row["the key"], row["t"]) == ("b", 2)
    assert row["odd"].asDict() == {"a b:c": 2.0, "d": [Decimal("2.00")]}


def test_with_several_operators_and_queries_one_is_chosen(spark: SparkSession, tmp_path: Path) -> None:
    place, other = Place(tmp_path / "one"), Place(tmp_path / "other")
    other.state = place.state
    for one, rows in ((place, [("a", 1, 1.0), ("b", 2, 2.0)]), (other, [("c", 3, 3.0)])):
        one.input.add(quotes(rows))
    # Spark 4.3 refuses two operators of this kind in one query unless it is told not to look.
    with settings(spark, spark__sql__streaming__unsupportedOperationCheck="false"):
        first = place.queue(spark, buckets=BUCKETS, name="first")
        second = penstock.update_queue(
            first.where("k != 'b'"), key="k", time="t", buckets=2, state_location=place.state, name="second"
        )
        place.run(second.dropDuplicates(["k", "t"]))
    other.run(other.queue(spark, buckets=BUCKETS, name="first"))

    def keys(**options: Any) -> set[str]:
        return set(shown(penstock.read_state(spark, place.state, **options)))

    assert keys(checkpoint=place.checkpoint, operator="first") == {"a", "b"}
    assert keys(checkpoint=place.checkpoint, operator="second") == {"a"}
    assert keys(checkpoint=other.checkpoint) == {"c"}
    assert keys(operator="second") == {"a"}
    (directory,) = place.state.glob("*/second")
    assert set(shown(penstock.read_state(spark, directory))) == {"a"}
    assert keys(query=directory.parent.name, operator="first") == {"a", "b"}
    with pytest.raises(InvalidUsageError, match=r"more than one operator matches.*Hint: choose"):
        keys(checkpoint=place.checkpoint)
    with pytest.raises(InvalidUsageError, match="no operator matches"):
        keys(operator="third")
    with pytest.raises(InvalidUsageError, match="the checkpoint belongs to another query"):
        keys(checkpoint=other.checkpoint, query=directory.parent.name)
    with pytest.raises(InvalidUsageError, match="one bucket"):
        penstock.read_state(spark, next(directory.glob("0*")))
    with pytest.raises(InvalidUsageError, match="there is no state"):
        penstock.read_state(spark, tmp_path / "nothing")
    with pytest.raises(InvalidUsageError, match="this is not the checkpoint"):
        keys(checkpoint=tmp_path)


def test_damage_fails_the_action_and_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]))
    place.run(place.queue(spark, buckets=1))
    path = place.state_files()[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    choices: list[dict[str, Any]] = [{}, {"checkpoint": place.checkpoint}]
    for options in choices:
        df = penstock.read_state(spark, place.state, **options)
        with pytest.raises(PySparkException, match=f"CorruptDataError.*{path.name}"):
            df.collect()
    path.rename(path.with_name(Pointer(Version(1), FileId("0" * 32)).file_name))
    with pytest.raises(CorruptDataError, match="the checkpoint points to no file of this operator"):
        penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
