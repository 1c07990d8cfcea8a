"""Wrong input raises an error when the query is planned, or an error of `penstock.errors` when it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.errors import InvalidUsageError, UnavailableError
from tests.long_tests import long_but
from tests.spark.queries import SCHEMA, Place, failure, quotes, settings

pytestmark = pytest.mark.spark


def _same(table: pa.Table) -> pa.Table:
    return table


WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    (
        {"key": "nowhere"},
        r"no such column: option=key column=nowhere columns=\['k', 't', 'v'\]. Hint: the columns are k, t, v",
    ),
    ({"key": "K"}, "no such column: option=key column=K"),
    ({"key": ["k", "nowhere"]}, "no such column: option=key column=nowhere"),
    ({"key": []}, "the update key has no column"),
    ({"key": ["k", "k"]}, "the update key names a column twice"),
    ({"key": 5}, "columns are given by name: option=key got=5. Hint: write the name as text, such as key="),
    ({"key": ["k", "t"]}, "a time column cannot be part of the update key"),
    ({"time": "nowhere"}, "no such column: option=time column=nowhere"),
    ({"time": None}, "columns are given by name: option=time got=None"),
    ({"time": "k", "key": "t"}, "a column of this type cannot be the time: column=k type=string"),
    ({"arrival": "nowhere"}, "no such column: option=arrival"),
    ({"arrival": "t"}, "the arrival column is not a timestamp: column=t type=int64"),
    (
        {"policy": "lifo"},
        r"unknown value: option=policy got=lifo known=\['fifo', 'in_place', 'linecutting', 'freshest'\]",
    ),
    ({"policy": None}, "unknown value: option=policy got=None"),
    ({"budget": 0}, "the budget is not positive: budget=0"),
    ({"budget": -3}, "the budget is not positive: budget=-3"),
    ({"budget": True}, "neither rows nor a duration: budget=True"),
    ({"budget": 2.5}, r"neither rows nor a duration: budget=2\.5"),
    ({"budget": np.int64(5)}, r"neither rows nor a duration: budget=np\.int64"),
    ({"budget": "10"}, "has no unit"),
    ({"budget": "soon"}, "is not a duration"),
    ({"budget": "-1s", "apply": _same, "output_schema": SCHEMA}, "is negative"),
    ({"budget": "0ms", "apply": _same, "output_schema": SCHEMA}, "a duration is not positive: option=budget"),
    ({"budget": "1s"}, "a budget of time needs apply="),
    ({"apply": _same}, "apply needs output_schema"),
    ({"apply": 5, "output_schema": SCHEMA}, "apply is not callable: got=int"),
    ({"output_schema": SCHEMA}, "output_schema is for the results of apply"),
    ({"apply": _same, "output_schema": "t long, v double"}, r"drops key columns: missing=\['k'\]"),
    ({"apply": _same, "output_schema": "int"}, "output_schema is not a list of columns"),
    ({"apply": _same, "output_schema": "k string, t long, t long"}, "output_schema repeat: columns=.'t'"),
    ({"apply": _same, "output_schema": "k interval year"}, "cannot go through an update queue: column=k"),
    ({"buckets": 0}, "the number of buckets is not a positive integer: buckets=0"),
    ({"buckets": 2.5}, r"the number of buckets is not a positive integer: buckets=2\.5"),
    ({"buckets": "4"}, "the number of buckets is not a positive integer: buckets='4'"),
    ({"buckets": True}, "the number of buckets is not a positive integer"),
    ({"cost": "0s"}, "a duration is not positive: option=cost"),
    ({"cost": 5}, "5 is not a duration"),
    ({"nulls": "ignore"}, "unknown value: option=nulls got=ignore"),
    (
        {"working_copy": "disk"},
        r"unknown value: option=working_copy got=disk known=\['memory', 'rocksdb'\]",
    ),
    ({"combine": "yes"}, "unknown value: option=combine got=yes"),
    ({"name": ""}, "the name is not allowed"),
    ({"name": "a/b"}, "the name is not allowed: name='a/b'"),
    ({"name": 5}, "the name is not allowed: name=5"),
    ({"state_location": None}, "no location for state is given"),
    ({"state_location": "nosuch://bucket/state"}, "no file system is known for this location"),
    ({"state_location": "s3n://bucket/state"}, "write s3:// instead of s3n://"),
    ({"retain_versions": 0}, "the number of retained versions is not a positive integer"),
]


def _named(wrong: dict[str, Any]) -> str:
    """Return a name for a case that is the same in every process."""
    return " ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in wrong.items())


@pytest.mark.parametrize(("wrong", "text"), WRONG_ARGUMENTS, ids=[_named(w) for w, _ in WRONG_ARGUMENTS])
def test_a_wrong_argument_is_refused_when_the_query_is_planned(
    spark: SparkSession, tmp_path: Path, wrong: dict[str, Any], text: str
) -> None:
    df = Place(tmp_path).input.frame(spark)
    options = {"key": "k", "time": "t", "state_location": str(tmp_path / "state")} | wrong
    with pytest.raises(InvalidUsageError, match=text):
        penstock.update_queue(df, **options)
    assert not (tmp_path / "state").exists()


WRONG_STREAMS: list[tuple[str, Callable[[DataFrame], DataFrame], str]] = [
    ("reserved", lambda df: df.withColumn("__penstock_x", sf.lit(1)), "names begin with a reserved prefix"),
    ("repeated", lambda df: df.select("*", "v"), r"column names repeat: columns=\['v'\]"),
    ("list key", lambda df: df.withColumn("k", sf.array("k")), "cannot be a key: column=k type=list"),
    ("map key", lambda df: df.withColumn("k", sf.create_map("k", "v")), "cannot be a key: column=k type=map"),
    ("struct key", lambda df: df.withColumn("k", sf.struct("k")), "cannot be a key: column=k type=struct"),
    ("boolean time", lambda df: df.withColumn("t", sf.lit(True)), "cannot be the time: column=t type=bool"),
    ("decimal time", lambda df: df.withColumn("t", sf.col("t").cast("decimal(9,1)")), "cannot be the time"),
    ("interval", lambda df: df.withColumn("t", sf.expr("interval '1' day")), "cannot be the time"),
    (
        "two operators",
        lambda df: penstock.update_queue(df, "k", "t", state_location="/nowhere"),
        "can hold only one window, update queue, union or join of update streams. Hint: write the output",
    ),
    ("batch", lambda df: df.sparkSession.range(1).selectExpr("id k", "id t"), "not a streaming DataFrame"),
]


@pytest.mark.parametrize(
    ("change", "text"), [case[1:] for case in WRONG_STREAMS], ids=[case[0] for case in WRONG_STREAMS]
)
def test_an_unusable_stream_is_refused_when_the_query_is_planned(
    spark: SparkSession, tmp_path: Path, change: Callable[[DataFrame], DataFrame], text: str
) -> None:
    df = change(Place(tmp_path).input.frame(spark))
    with pytest.raises(InvalidUsageError, match=text):
        penstock.update_queue(df, key="k", time="t", state_location=str(tmp_path))


def test_a_column_of_spark_is_no_name_of_a_column(spark: SparkSession, tmp_path: Path) -> None:
    df, at = Place(tmp_path).input.frame(spark), str(tmp_path / "state")
    columns: list[Any] = [sf.col(name) for name in ("k", "t", "v")]
    k, t, v = columns
    windows: dict[str, Any] = {"size": "1 s", "aggs": {"n": "count(*)"}, "unit": "s", "state_location": at}
    calls: list[tuple[str, str, Callable[[], object]]] = [
        ("key", "k", lambda: penstock.update_queue(df, k, "t", state_location=at)),
        ("key", "k", lambda: penstock.update_queue(df, ["v", k], "t", state_location=at)),
        ("time", "t", lambda: penstock.update_queue(df, "k", t, state_location=at)),
        ("arrival", "v", lambda: penstock.update_queue(df, "k", "t", arrival=v, state_location=at)),
        ("key", "k", lambda: penstock.update_union(df, df, key=k, time="t", state_location=at)),
        ("time", "t", lambda: penstock.update_union(df, df, key="k", time=t, state_location=at)),
        ("key", "k", lambda: penstock.update_join(df, df, k, "t", within="1 s", state_location=at)),
        ("time", "t", lambda: penstock.update_join(df, df, "k", t, within="1 s", state_location=at)),
        ("key", "k", lambda: penstock.update_window(df, k, "t", **windows)),
        ("time", "t", lambda: penstock.update_window(df, "k", t, **windows)),
        ("key", "k", lambda: penstock.upsert(df, to="sqlite:///x", table="x", key=k, time="t")),
        ("time", "t", lambda: penstock.upsert(df, to="sqlite:///x", table="x", key="k", time=t)),
    ]
    for option, name, call in calls:
        hint = f"Hint: write the name as text, such as {option}='{name}'"
        with pytest.raises(InvalidUsageError, match=f"columns are given by name: option={option} .*{hint}"):
            call()


def test_the_staleness_column_may_not_be_there_already(spark: SparkSession, tmp_path: Path) -> None:
    df = Place(tmp_path).input.frame(spark).withColumn("queue_staleness_ms", sf.lit(1.0))
    with pytest.raises(InvalidUsageError, match="the stream has this column already"):
        penstock.update_queue(df, key="k", time="t", staleness_column=True, state_location=str(tmp_path))


def test_an_aggregate_is_sql_or_a_column_that_means_the_same(spark: SparkSession, tmp_path: Path) -> None:
    df = Place(tmp_path).input.frame(spark).withColumn("t", sf.timestamp_seconds("t"))
    df = df.withColumn("a b", sf.col("v"))

    def windows(**aggs: Any) -> DataFrame:
        return penstock.update_window(df, "k", "t", "1 s", aggs=aggs, state_location=str(tmp_path))

    written = windows(a="avg(v)", b="sum(v * 2)", c="count(*)", d="max(`a b`)")
    given = windows(a=sf.avg("v"), b=sf.sum(sf.col("v") * 2), c=sf.count("*"), d=sf.max("`a b`"))
    assert given.schema == written.schema
    for wrong in (sf.sum(sf.udf(lambda v: v, "double")("v")), len):
        with pytest.raises(InvalidUsageError, match=r"neither SQL text nor .* Hint: write Spark SQL"):
            windows(a=wrong)
    for unknown in ("sum(vv)", sf.sum("vv")):
        with pytest.raises(InvalidUsageError, match=r"^there is no column 'vv'.* Hint: did you mean 'v'\?$"):
            windows(a=unknown)
    with pytest.raises(InvalidUsageError, match=r"cannot aggregate .* expression=t\. Hint"):
        windows(a="sum(t)")
    with pytest.raises(InvalidUsageError, match=r"aggs is not a mapping: got=list"):
        penstock.update_window(df, "k", "t", "1 s", aggs=["sum(v)"], state_location=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match=r"no such column: .* Hint: did you mean 'k'"):
        penstock.update_window(df, "kk", "t", "1 s", aggs={"n": "count(*)"}, state_location=str(tmp_path))


class _GoneError(Exception):
    """An error that a user's function raises."""


def _raising(table: pa.Table) -> pa.Table:
    raise _GoneError("the service of my company is down")


def _other_keys(table: pa.Table) -> pa.Table:
    return table.set_column(0, "k", pa.array(["other"] * table.num_rows))


def _null_keys(table: pa.Table) -> pa.Table:
    return table.set_column(0, "k", pa.nulls(table.num_rows, pa.string()))


MISBEHAVIOUR: list[tuple[str, Callable[[pa.Table], Any], str]] = [
    ("raises", _raising, "apply raised an error: rows=2 error=_GoneError at=test_bad_input.py:"),
    ("returns no table", lambda table: None, "apply did not return a pyarrow table: returned=NoneType"),
    (
        "returns pandas",
        lambda table: table.to_pandas(),
        "apply did not return a pyarrow table: returned=DataFrame",
    ),
    (
        "drops a column",
        lambda table: table.drop_columns(["v"]),
        "apply returned a table without columns of the output schema: missing=['v']",
    ),
    ("drops the key", lambda table: table.drop_columns(["k"]), "apply dropped key columns: missing=['k']"),
    (
        "adds a column",
        lambda table: table.append_column("w", table["v"]),
        "apply returned columns that the output schema does not have: columns=['w']",
    ),
    (
        "changes a type",
        lambda table: table.set_column(2, "v", table["k"]),
        "apply returned columns of other types than the output schema's: returned=",
    ),
    ("changes the key", _other_keys, "apply changed the update key of rows: key=['k']"),
    ("nulls the key", _null_keys, "apply returned rows with a null key: key=['k']"),
]


@pytest.mark.parametrize(
    ("apply", "text"),
    long_but([case[1:] for case in MISBEHAVIOUR], *(case[1:] for case in MISBEHAVIOUR[:2])),
    ids=[case[0] for case in MISBEHAVIOUR],
)
def test_an_apply_that_misbehaves_fails_the_query_and_says_how(
    spark: SparkSession, tmp_path: Path, apply: Callable[[pa.Table], Any], text: str
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.5), ("b", 1, 2.5)]))
    df = penstock.update_queue(
        place.input.frame(spark), key="k", time="t", buckets=1, apply=apply, output_schema=SCHEMA,
        state_location=place.state,
    )  # fmt: skip
    error = failure(df, place)
    assert f"penstock.errors.InvalidUsageError: {text}" in error
    if apply is _raising:
        assert "_GoneError: the service of my company is down" in error, "the cause is shown"
        assert "in _raising" in error, "with its traceback"
    assert place.batches() == {}
    assert place.state_files() == []


def test_a_query_goes_on_after_its_apply_was_repaired(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.5), ("b", 1, 2.5)]))
    for apply in (_raising, _same):
        df = penstock.update_queue(
            place.input.frame(spark), key="k", time="t", buckets=1, apply=apply, output_schema=SCHEMA,
            state_location=place.state,
        )  # fmt: skip
        if apply is _raising:
            failure(df, place)
        else:
            place.run(df)
    assert place.sequence() == [("a", 1, 1.5), ("b", 1, 2.5)]


@pytest.mark.parametrize("where", ["below a file", "where nothing can be made"])
def test_a_state_location_that_cannot_be_written_is_named(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.5)]))
    (tmp_path / "file").write_text("")
    location = tmp_path / "file" / "state" if where == "below a file" else Path("/proc/penstock")
    df = penstock.update_queue(place.input.frame(spark), key="k", time="t", state_location=location)
    with pytest.raises(UnavailableError) as refused:
        place.start(df)
    assert str(location.parent) in str(refused.value)
    assert "Hint: choose a location that this user may write" in str(refused.value)
    assert not spark.streams.active
    assert not place.checkpoint.exists(), "it is refused before Spark starts the query"


@pytest.mark.parametrize("form", long_but(["relative", "file:", "file://", "setting"], "relative", "setting"))
def test_a_state_location_may_be_written_in_several_ways(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.5)]))
    location = {
        "relative": os.path.relpath(place.state),
        "file:": f"file:{place.state}",
        "file://": f"file://{place.state}",
        "setting": None,
    }[form]
    with settings(spark, spark__penstock__stateLocation=str(place.state if form == "setting" else tmp_path)):
        df = penstock.update_queue(place.input.frame(spark), key="k", time="t", state_location=location)
    place.run(df)
    assert len(place.state_files()) == 1
