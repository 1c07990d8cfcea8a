"""Tuples that queues, unions and joins drop are in the p-stream of `late_to`, each once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from penstock.checkpointing.p_stream import PStream, PStreamReader
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.bad_records import BAD_RECORD, reject_bad_records
from penstock.spark_ext.api.metrics import metrics
from tests.long_tests import long_but
from tests.spark.dropped_rows import WANTED, add, found, query, updates
from tests.spark.queries import Place

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", long_but(WANTED, "queue"))
def test_dropped_tuples_are_those_of_brute_force_and_replays_add_none(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    batches, place, late = updates(3, 120, 5), Place(tmp_path), tmp_path / "late"
    add(place, batches[:3])
    counted = metrics(place.run(query(spark, place, kind, late_to=late)))
    place.forget(2)
    add(place, batches[3:])
    # The same micro-batch comes in other pieces, as with another number of cores.
    spark.conf.set("spark.sql.files.maxPartitionBytes", "600")
    try:
        again = metrics(place.run(query(spark, place, kind, late_to=late)))
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    wanted = WANTED[kind](batches)
    assert found(late, kind) == wanted
    counted = [one for one in counted if one["batch_id"] < 2] + again
    assert sum(one["late"] + one["duplicates"] + one["dropped"] for one in counted) == wanted.total() > 20
    assert PStreamReader(late).read().num_rows == wanted.total()


def test_late_rows_are_refused_where_they_depend_on_order(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    add(place, updates(3, 9, 1))
    with pytest.raises(InvalidUsageError, match="an adaptive queue cannot write its late rows"):
        query(spark, place, "queue", late_to=tmp_path / "late", semantics="adaptive")
    with pytest.raises(InvalidUsageError, match="combine=True drops tuples that late_to needs"):
        query(spark, place, "queue", late_to=tmp_path / "late", combine=True)
    with pytest.raises(InvalidUsageError, match="late rows would go into the state location"):
        query(spark, place, "join", late_to=place.state)


def test_rejected_records_of_files_are_the_same_with_another_number_of_cores(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, rejected = Place(tmp_path), tmp_path / "rejected"
    lines = [f'{{"k": "a", "t": {n}}}' if n % 3 else f"bad {n}" for n in range(3000)]
    confs = {"spark.sql.files.openCostInBytes": "1", "spark.sql.leafNodeDefaultParallelism": "2"}

    def run(cores: int, *numbers: int) -> None:
        for number in numbers:
            (tmp_path / "input" / f"{number}.json").write_text("\n".join(lines[number * 1000 :][:1000]))
        for name, value in (confs | {"spark.sql.leafNodeDefaultParallelism": str(cores)}).items():
            spark.conf.set(name, value)
        reader = spark.readStream.schema(f"k STRING, t BIGINT, {BAD_RECORD} STRING")
        reader = reader.option("columnNameOfCorruptRecord", BAD_RECORD).option("maxFilesPerTrigger", 1)
        frame = reader.json(str(tmp_path / "input"))
        facts = {"value": sf.col(BAD_RECORD), "reason": sf.lit("bad")}
        place.run(reject_bad_records(frame, "source", "keep", rejected, facts).select("k", "t"))

    try:
        run(2, 0, 1)
        tasks = {file.writer for file in PStream(rejected).log.commits}
        place.forget(1)
        run(5, 2)
    finally:
        for name in (*confs, "spark.sql.files.minPartitionNum"):
            spark.conf.unset(name)
    assert len(tasks) > 5, "each file was cut"
    values = PStreamReader(rejected).read()["value"].to_pylist()
    assert Counter(values) == Counter(line.encode() for line in lines if line.startswith("bad"))
