"""An update queue starts again from its checkpoint, or a clear error says why it cannot."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock._clock import pause
from penstock.checkpointing.files import LocalFiles
from penstock.errors import InvalidUsageError
from penstock.spark_ext.border.connection import is_connect
from penstock.spark_ext.worker import restart
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, Version
from penstock.state_store.tables.scratch import PREFIX
from tests.long_tests import long_but
from tests.oracles.naive import Update
from tests.spark.model import LONGS, Model, random_batches, updates_table
from tests.spark.queries import PATIENCE_S, Place, failure, fresh_workers, quotes, settings, wait

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("policy", long_but(["in_place", "fifo", "linecutting"], "linecutting"))
def test_a_restart_goes_on_where_the_query_stopped(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    place = Place(tmp_path)
    batches = random_batches(seed=5, batches=4, rows=30, keys=15)
    # A late tuple that arrives after the restart: its key was emitted with a later time before it.
    batches[0] = [Update(99, 10**6, 1), *batches[0]]
    batches[2] = [*batches[2], Update(99, 10**6 - 1, 2)]
    model = Model(buckets=2, budget=4, policy=policy, cost_us=1 if policy == "linecutting" else None)
    cost = "1us" if policy == "linecutting" else None
    expected = model.run_all(batches)

    def run(begin: int, end: int) -> list[dict[str, Any]]:
        place.input.add(*map(updates_table, batches[begin:end]))
        df = penstock.update_queue(
            place.input.frame(spark, LONGS), key="k", time="t", buckets=2, budget=4, policy=policy,
            cost=cost, state_location=place.state,
        )  # fmt: skip
        if end == len(batches):
            return penstock.metrics(place.run_until_drained(df))
        return penstock.metrics(place.run_until(df, lambda: len(place.batches()) >= end))

    run(0, 2)
    # Without input there would be a varying number of triggers between: as if stopped right in time.
    place.forget(2, planned=False)
    with settings(spark, spark__sql__shuffle__partitions="5"), fresh_workers(spark):
        metrics = run(2, 4)
    assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
    assert sum(entry["loads"] for entry in metrics) >= 2, "new workers read the state"
    assert (99, 10**6 - 1, 2) not in place.sequence()


def test_a_query_goes_from_one_working_copy_to_the_other_at_a_restart_and_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, newest = Place(tmp_path), dict[str, int]()
    asked = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"])
    scratch, known, late = Path(asked.first().split(",")[0]), set[Path](), 0
    for number, copy in enumerate(("rocksdb", "memory", "rocksdb")):
        # Of every key there is a newer tuple than in some runs and an older one than in others.
        rows = [(f"k{n}", number * 10 + n * (5 - number) % 17, float(n)) for n in range(60 - 20 * number)]
        rows += [(f"only {number}", 1, 0.0)]
        fresh = [(k, t, v) for k, t, v in rows if t >= newest.get(k, t)]
        newest |= {k: t for k, t, _ in fresh}
        place.input.add(quotes(rows))
        with fresh_workers(spark):
            query = place.run(place.queue(spark, working_copy=copy))
        assert sorted(place.rows()[number]) == sorted(fresh)
        (metrics,) = penstock.metrics(query)
        assert (metrics["keys"], metrics["late"]) == (len(newest), len(rows) - len(fresh))
        late += metrics["late"]
        assert metrics["loads"] == (0 if number == 0 else 2)
        # Those of earlier runs' workers go when these do.
        made = {*scratch.glob(f"{PREFIX}*")} - known
        assert len(made) == (0 if copy == "memory" else 2)
        known |= made
    assert late > 0
    state = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    assert {row["k"]: row["emitted"] for row in state.collect()} == newest


def test_a_batch_that_the_sink_has_serves_the_same_keys_when_it_runs_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def query(rows: pa.Table) -> pa.Table:
        pause(rows.num_rows * float(os.environ.get("SECONDS_A_TUPLE", "0")))
        return rows

    place, keys = Place(tmp_path), [f"k{number}" for number in range(30)]
    place.input.add(quotes([(key, 1, 1.0) for key in keys]))
    sink: dict[int, list[str]] = {}

    def run(*, fails: bool = False) -> None:
        def take(batch: DataFrame, number: int) -> None:
            sink.setdefault(number, [row.k for row in batch.collect()])
            assert not fails, "the sink has the batch, and Spark does not know"

        df = place.queue(
            spark, buckets=2, budget="40ms", apply=query, output_schema="k string, t long, v double"
        )
        running = (
            df.writeStream.option("checkpointLocation", str(place.checkpoint)).foreachBatch(take).start()
        )
        try:
            wait(running, lambda: len(sink) > 1 and not sink[max(sink)])
        finally:
            running.stop()

    with fresh_workers(spark, SECONDS_A_TUPLE="0.01"), pytest.raises(StreamingQueryException):
        run(fails=True)
    assert 0 < len(sink[0]) < len(keys)
    # Now there is time for all keys.
    with fresh_workers(spark):
        run()
    assert sorted(key for served in sink.values() for key in served) == sorted(keys)


def test_an_operator_is_known_as_long_as_a_plan_has_it(spark: SparkSession, tmp_path: Path) -> None:
    def known() -> set[str]:
        return {one.task.name for name, one in restart._planned.items() if name not in before}

    before = set(restart._planned)
    place = Place(tmp_path)
    kept = place.queue(spark, name="kept").select("k", "v")
    for number in range(5):
        place.queue(spark, name=f"gone-{number}")
    end = monotonic() + PATIENCE_S
    while any(name.startswith("gone") for name in known()) and monotonic() < end:
        gc.collect()
        if not is_connect(spark):
            jvm: Any = spark._jvm
            jvm.System.gc()
        restart.drop_unused()
    assert known() == {"kept"}
    with pytest.raises(InvalidUsageError, match="only the output mode append"):
        kept.writeStream.format("noop").outputMode("update").start()


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"buckets": 3}, "another number of buckets: operator=update_queue was=2 now=3"),
    ({"key": ["k", "v"]}, "another key: operator=update_queue was=['k'] now=['k', 'v']"),
    ({"time": "v"}, "another time: operator=update_queue was='t' now='v'"),
    ({"policy": "fifo"}, "another policy: operator=update_queue was='in_place' now='fifo'"),
    ({"schema": "k string, t long, v string"}, "another schema: operator=update_queue was=["),
    ({"schema": "k string, t long"}, "another schema: operator=update_queue was=["),
    ({"arrival": "at"}, "another "),
]


@pytest.mark.parametrize(
    ("change", "text"), long_but(CHANGES, *CHANGES[:2]), ids=[str(change) for change, _ in CHANGES]
)
def test_a_restart_with_another_setting_is_refused_and_nothing_is_lost(
    spark: SparkSession, ran: Callable[[Path], Place], tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    place = ran(tmp_path)
    place.input.add(quotes([("z", 9, 9.0)]))
    df = place.input.frame(spark, change.get("schema", "k string, t long, v double"))
    if "arrival" in change:
        df = df.withColumn("at", sf.current_timestamp())
    options: dict[str, Any] = {"key": "k", "time": "t", "buckets": 2, "state_location": place.state}
    options |= {name: value for name, value in change.items() if name != "schema"}
    with pytest.raises(InvalidUsageError) as refused:
        place.start(penstock.update_queue(df, **options))
    assert f"the checkpoint was made with {text}" in str(refused.value).replace('"', "'")
    copied = str(refused.value).endswith("or with a copy that penstock state rescale makes.")
    assert copied == ("buckets" in change)
    assert not spark.streams.active
    place.run(queue(spark, place))
    assert place.sequence() == [("a", 1, 1.0), ("z", 9, 9.0)]


def queue(spark: SparkSession, place: Place, **options: Any) -> Any:
    """Return the update queue that `ran` ran."""
    source = place.input.frame(spark)
    return penstock.update_queue(source, key="k", time="t", buckets=2, state_location=place.state, **options)


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Place]:
    """Give copies of a query that ran one micro-batch and stopped."""
    original = Place(tmp_path_factory.mktemp("ran"))
    original.input.add(quotes([("a", 1, 1.0)]))
    original.run(queue(spark, original))

    return original.copy_to


def _flip(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def _state_file(place: Place) -> Path:
    (path,) = place.state_files()
    return path


def _settings_file(place: Place) -> Path:
    return next(place.state.glob("*/*/operator.punit"))


DAMAGES: list[tuple[str, Callable[[Place], Path], str]] = [
    ("the state location is gone", lambda p: _removed(p.state, "*/*/operator.punit"), "state of this"),
    ("a state file is gone", lambda p: _removed(_state_file(p)), "a state file is missing"),
    ("a state file is empty", lambda p: _cut(_state_file(p), 0), "the file is too short for a p-unit"),
    ("a state file is torn", lambda p: _cut(_state_file(p), 0.6), "the file is cut"),
    ("a bit of the header flipped", lambda p: _flipped(_state_file(p), 0.1), "checksum is wrong"),
    ("a bit in the middle flipped", lambda p: _flipped(_state_file(p), 0.5), ""),
    ("a bit at the end flipped", lambda p: _flipped(_state_file(p), 1.0), ""),
    ("the settings are gone", lambda p: _removed(_settings_file(p)), "is missing"),
    ("the settings are torn", lambda p: _cut(_settings_file(p), 0.5), "the file is cut"),
    ("the settings are no object", lambda p: _written(_settings_file(p)), "too short for a p-unit"),
]  # fmt: skip


def _removed(path: Path, named: str = "") -> Path:
    named_path = next(path.glob(named)) if named else path
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return named_path


def _cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


def _flipped(path: Path, at: float) -> Path:
    _flip(path, at)
    return path


def _written(path: Path) -> Path:
    path.write_text(json.dumps([1]))
    return path


def test_a_new_checkpoint_does_not_write_where_another_has_results(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]))
    place.run_until_drained(place.queue(spark))
    shutil.move(place.checkpoint, tmp_path / "other")
    with pytest.raises(InvalidUsageError, match="the sink's directory has results of another checkpoint"):
        place.start(place.queue(spark))
    shutil.rmtree(place.checkpoint, ignore_errors=True)
    shutil.move(tmp_path / "other", place.checkpoint)
    place.input.add(quotes([("b", 2, 2.0)]))
    place.run_until_drained(place.queue(spark))
    assert sorted(row for rows in place.rows("k").values() for row in rows) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("damage", "text"),
    long_but([d[1:] for d in DAMAGES], *(d[1:] for d in DAMAGES if d[0].endswith(("gone", "torn")))),
    ids=[d[0] for d in DAMAGES],
)
def test_damaged_state_fails_the_query_with_the_name_of_the_file(
    spark: SparkSession,
    ran: Callable[[Path], Place],
    tmp_path: Path,
    damage: Callable[[Place], Path],
    text: str,
) -> None:
    place = ran(tmp_path)
    place.input.add(quotes([("a", 9, 9.0)]))
    before = place.rows()
    path = damage(place)
    error = failure(queue(spark, place), place)
    assert "penstock.errors.CorruptDataError: " in error
    assert text in error
    assert str(path) in error
    assert place.rows() == before


def test_waiting_keys_survive_the_deletion_of_old_versions(spark: SparkSession, tmp_path: Path) -> None:
    """If the deltas outgrow the first version, a snapshot is written; superseded files are deleted."""
    place = Place(tmp_path)
    batches = [[Update(key, batch, batch) for key in range(100)] for batch in range(7)]
    place.input.add(*map(updates_table, batches))
    model = Model(buckets=1, budget=30)
    expected = model.run_all(batches)

    def wide() -> DataFrame:
        text = sf.array_join(
            sf.transform(sf.sequence(sf.lit(1), sf.lit(40)), lambda i: sf.sha2(sf.concat("k", "t", i), 256)),
            "",
        )
        df = place.input.frame(spark, LONGS).withColumn("text", text)
        return penstock.update_queue(df, key="k", time="t", buckets=1, budget=30, state_location=place.state)

    query = place.run_until_drained(wide())
    assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
    committed = len(penstock.metrics(query))
    numbers = {path: int(path.name.split("-")[0]) for path in place.state_files()}
    (newest,) = [path for path, number in numbers.items() if number == committed]
    store = BucketStore(LocalFiles(newest.parent))
    file_id = newest.name.removesuffix(".punit").split("-")[1]
    handle, _ = store.read_version(Pointer(Version(committed), FileId(file_id)))
    assert {link.pointer.file_name for link in handle.links} <= {path.name for path in numbers}
    assert 1 not in numbers.values(), "the first version is gone"
    place.input.add(updates_table([Update(0, -1, 1), Update(7, 9, 1)]))
    with fresh_workers(spark):
        query = place.run_until_drained(wide())
    assert place.sequence()[-1] == (7, 9, 1)
    assert sum(entry["late"] for entry in penstock.metrics(query)) == 1
    assert penstock.metrics(query)[0]["loads"] == 1


@pytest.mark.parametrize("policy", long_but(["in_place", "fifo", "linecutting"], "linecutting"))
def test_a_replayed_micro_batch_emits_what_it_emitted_before(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    """A sink drops the second output of a micro-batch, so the second output must equal the first."""
    place = Place(tmp_path)
    batches = random_batches(seed=6, batches=3, rows=40, keys=30)
    place.input.add(*map(updates_table, batches))

    def run() -> dict[int, list[Any]]:
        df = penstock.update_queue(
            place.input.frame(spark, LONGS), key="k", time="t", buckets=2, budget=5, policy=policy,
            cost="1us", state_location=place.state,
        )  # fmt: skip
        place.run_until(df, lambda: len(place.batches()) >= 3)
        return {batch: rows for batch, rows in place.rows().items() if batch < 3}

    first = run()
    place.forget(2)
    assert sorted(place.rows()) == [0, 1]
    assert run() == first
