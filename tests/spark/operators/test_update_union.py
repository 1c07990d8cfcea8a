"""Unions of update streams on real Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidUsageError
from tests.long_tests import long_but
from tests.oracles.naive_union import NaiveUnion, Tuple
from tests.spark.queries import Input, Place, failure, quotes

pytestmark = pytest.mark.spark

LONGS = "k long, t long, v long"
OTHER_ORDER = "v long, k long, t long"


def table(tuples: Sequence[Tuple], schema: str = LONGS) -> pa.Table:
    columns = {"k": [one.key for one in tuples], "t": [one.time for one in tuples]}
    columns["v"] = [one.value for one in tuples]
    names = [part.split()[0] for part in schema.split(", ")]
    return pa.table({name: pa.array(columns[name], pa.int64()) for name in names})


def batches_of(seed: int, count: int) -> list[tuple[list[Tuple], list[Tuple]]]:
    """Return the rows of two inputs in each micro-batch: out of order, with ties."""
    draw = random.Random(seed)
    return [
        (
            [
                Tuple(draw.randint(0, 9), 4 * number + draw.randint(-5, 6), 0, draw.randint(0, 999))
                for _ in range(30)
            ],
            [
                Tuple(draw.randint(0, 9), 4 * number + draw.randint(-5, 6), 1, draw.randint(0, 999))
                for _ in range(25)
            ],
        )
        for number in range(count)
    ]


def rank(tuples: Sequence[Tuple], prefer: int | None) -> list[Tuple]:
    """Number the source whose truth wins 0, and all others alike."""
    return [one._replace(source=0 if prefer is None or one.source == prefer else 1) for one in tuples]


@pytest.mark.parametrize(
    ("prefer", "position"), long_but([(None, None), ("second", 1), (0, 0)], ("second", 1))
)
def test_each_key_gets_its_newest_tuple_once_also_across_a_restart(
    spark: SparkSession, tmp_path: Path, prefer: Any, position: int | None
) -> None:
    place, second = Place(tmp_path), Input(tmp_path / "second")
    model, expected = NaiveUnion(), []
    late = duplicates = rows_in = 0
    batches = batches_of(seed=5, count=4)
    for begin in (0, 2):
        for left, right in batches[begin : begin + 2]:
            place.input.add(table(left))
            second.add(table(right, OTHER_ORDER))
            model.enqueue(rank([*left, *right], position))
            expected.append(sorted(model.take(key) for key in list(model.waiting)))
        inputs = {"first": place.input.frame(spark, LONGS), "second": second.frame(spark, OTHER_ORDER)}
        given = inputs.values() if isinstance(prefer, int) else [inputs]
        df = penstock.update_union(
            *given, key="k", time="t", prefer=prefer, buckets=3, state_location=place.state
        )
        assert df.columns == ["k", "t", "v"]
        query = place.run(df)
        for metrics in penstock.metrics(query):
            rows_in += metrics["rows_in"]
            late += metrics["late"]
            duplicates += metrics["duplicates"]
    assert [sorted(rows) for rows in place.rows().values()] == expected
    assert (rows_in, late, duplicates) == (4 * 55, model.late, model.duplicates)
    assert late > 0
    assert duplicates > 0


def _same(rows: pa.Table) -> pa.Table:
    assert rows.column_names == ["k", "t", "v"]
    return rows


def test_a_union_is_an_update_queue_too(spark: SparkSession, tmp_path: Path) -> None:
    place, second = Place(tmp_path), Input(tmp_path / "second")
    place.input.add(quotes([(f"k{n}", 1, 1.0) for n in range(6)] + [(None, 1, 1.0)]))
    second.add(quotes([(f"k{n}", 2, 2.0) for n in range(6)] + [("k0", None, 1.0)]))
    df = penstock.update_union(
        place.input.frame(spark), second.frame(spark), key="k", time="t", budget=2, nulls="drop",
        apply=_same, output_schema="k string, t long, v double", state_location=place.state, name="both",
    )  # fmt: skip
    query = place.run_until_drained(df)
    assert sorted(place.sequence("k", "v")) == [(f"k{n}", 2.0) for n in range(6)]
    state = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    assert sorted(state.select("k", "emitted", "waiting").collect()) == [
        (f"k{n}", 2, False) for n in range(6)
    ]
    metrics = penstock.metrics(query)
    assert {one["operator"] for one in metrics} == {"both"}
    assert sum(one["dropped"] for one in metrics) == 2
    assert sum(one["conflated"] for one in metrics) == 6


def test_rows_without_key_or_time_fail_a_union_by_default(spark: SparkSession, tmp_path: Path) -> None:
    place, second = Place(tmp_path), Input(tmp_path / "second")
    place.input.add(quotes([("a", 1, 1.0)]))
    second.add(quotes([("a", None, 1.0)]))
    df = penstock.update_union(
        place.input.frame(spark), second.frame(spark), key="k", time="t", state_location=place.state
    )
    assert "rows with a null (or NaN) key, time or arrival: rows=1" in failure(df, place)


def test_what_is_wrong_with_a_union_is_told_before_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    stream, static = Input(tmp_path / "in").frame(spark), spark.createDataFrame([], "k string, t long")
    cases: list[tuple[list[Any], dict[str, Any], str]] = [
        ([stream], {}, "at least two inputs"),
        ([stream, 5], {}, "an input is not a DataFrame: input=1"),
        ([stream, static], {}, "not streaming: input=1"),
        ([stream, stream.select("k", "t")], {}, "missing=v additional=none"),
        ([stream, stream.selectExpr("*", "1 AS w")], {}, "missing=none additional=w"),
        ([stream, stream.selectExpr("k", "t", "int(v) AS v")], {}, "types=v is int, not double"),
        (
            [{"a": stream, "b": stream}],
            {"prefer": "c"},
            "no such input to prefer: prefer=c.*the inputs are a, b",
        ),
        ([stream, stream], {"prefer": 2}, "no such input to prefer: prefer=2"),
        ([stream, stream], {"prefer": True}, "no such input to prefer: prefer=True"),
        ([stream, stream], {"key": "x"}, "there is no such column: option=key column=x"),
        ([stream, stream], {"nulls": "keep"}, "option=nulls got=keep"),
        ([stream, stream], {"working_copy": "disk"}, "option=working_copy got=disk"),
    ]
    for inputs, options, message in cases:
        given: dict[str, Any] = {"key": "k", "time": "t", "state_location": tmp_path} | options
        with pytest.raises(InvalidUsageError, match=message):
            penstock.update_union(*inputs, **given)


def test_a_checkpoint_of_a_queue_is_none_of_a_union(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]))
    one: DataFrame = place.input.frame(spark)
    place.run(penstock.update_queue(one.union(one), "k", "t", state_location=place.state, name="q"))
    place.input.add(quotes([("a", 2, 1.0)]))
    union = penstock.update_union(one, one, key="k", time="t", state_location=place.state, name="q")
    with pytest.raises(InvalidUsageError, match="the checkpoint was made with another schema"):
        place.start(union)


def test_two_sources_of_one_reader_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    penstock.register(spark)
    path = tmp_path / "events"
    with penstock.PStreamWriter(path, table([]).schema) as writer:
        writer.append(table([Tuple(1, 1, 0, 1)]))

    def load(**options: str) -> DataFrame:
        return spark.readStream.format("pstream").options(**options).load(str(path))

    given: dict[str, Any] = {"key": "k", "time": "t", "state_location": tmp_path / "state"}
    one = load(reader="a")
    why = "two sources of a query read a p-stream under one name: reader=a"
    with pytest.raises(InvalidUsageError, match=why):
        penstock.update_union(one.where("k > 1"), one.where("k < 1"), **given)
    with pytest.raises(InvalidUsageError, match=why):
        penstock.update_join(
            one, load(reader="a").selectExpr("k", "t", "v AS w"), within="1 s", unit="s", **given
        )
    for other in (load(reader="b"), load()):
        penstock.update_union(one, other, **given)
    penstock.update_union(load(), load(), **given)
