"""Garbage collection by hand before and after a checkpoint is set back does not disturb the query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import penstock
from penstock.checkpointing.files import open_files
from penstock.cli import app
from penstock.jobs.inspect.committed import read_committed
from penstock.state_store.location import find_operators
from tests.long_tests import long_but
from tests.spark.queries import Place, fresh_workers, quotes

pytestmark = pytest.mark.spark

BUCKETS = 2


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def versions(place: Place) -> list[int]:
    """Return the version of each file of state."""
    return [int(path.name.partition("-")[0]) for path in place.state_files()]


def inspected(place: Place, *options: object) -> list[dict[str, Any]]:
    result = command("inspect", "state", place.state, "--json", *options)
    assert result.exit_code == 0, result.output
    buckets: list[dict[str, Any]] = json.loads(result.stdout)["buckets"]
    return buckets


def set_back(place: Place, batch: int) -> None:
    """Restore a checkpoint that was kept when `batch` had been planned; each read one file."""
    place.forget(batch)
    for log in place.checkpoint.glob("sources/0/*"):
        number = log.name.strip(".").removesuffix(".crc")
        if number.isdigit() and int(number) > batch:
            log.unlink()


BATCHES = [[(f"k{key}", 10 * batch + key, float(batch)) for key in range(8)] for batch in range(8)]


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Give a query that ran over the first five of `BATCHES`; tests take copies."""
    place = Place(tmp_path_factory.mktemp("ran"))
    place.input.add(*map(quotes, BATCHES[:5]))
    place.run(place.queue(spark, buckets=BUCKETS))
    assert versions(place) == sorted([1, 2, 3, 4, 5] * BUCKETS)
    return place


@pytest.mark.parametrize("exact", long_but([True, False], True))
@pytest.mark.parametrize("anew", long_but([0, 1], 1))
def test_gc_after_a_checkpoint_was_set_back_loses_nothing(
    spark: SparkSession, ran: Place, tmp_path: Path, exact: bool, anew: int
) -> None:
    """Set back by two versions; or by three, and commit one again before garbage collection."""
    place = ran.copy_to(tmp_path)
    expected = ran.rows()
    assert place.rows() == expected
    set_back(place, 3 - anew)
    if anew:
        files = sorted(place.input.directory.glob("*"))[3:]
        for file in files:
            file.rename(file.with_name(f"_{file.name}"))
        place.run(place.queue(spark, buckets=BUCKETS))
        for file in files:
            file.with_name(f"_{file.name}").rename(file)
    assert versions(place) == sorted([1, 2, 3, 4, 5, *[3] * anew] * BUCKETS)
    options = ("--checkpoint", place.checkpoint) if exact else ()
    if exact:
        assert {bucket["proven"]["version"] for bucket in inspected(place, *options)} == {3}
    result = command("gc", place.state, *options)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert versions(place) == sorted([1, 2, 3, 4, 5, *[3] * anew] * BUCKETS), "each may be what Spark has"
    place.input.add(*map(quotes, BATCHES[5:]))
    with fresh_workers(spark):
        place.run(place.queue(spark, buckets=BUCKETS))
    assert {batch: rows for batch, rows in place.rows().items() if batch < 5} == expected
    assert sorted(place.sequence()) == sorted(row for batch in BATCHES for row in batch)
    assert command("gc", place.state, "--checkpoint", place.checkpoint).exit_code == 0
    assert versions(place) == sorted([1, 2, 3, 4, 5, 6, 7, 8] * BUCKETS)
    state = penstock.read_state(spark, place.state, checkpoint=place.checkpoint)
    assert {row["k"]: row["emitted"] for row in state.collect()} == place.newest()


@pytest.mark.long
def test_with_the_checkpoint_only_its_query_is_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    place, other = Place(tmp_path / "one"), Place(tmp_path / "other")
    other.state = place.state
    for one in (place, other):
        one.input.add(quotes([("a", 1, 1.0)]), quotes([("b", 2, 1.0)]))
        one.run(one.queue(spark, buckets=BUCKETS))
    buckets = inspected(place)
    mine = inspected(place, "--checkpoint", place.checkpoint)
    assert len(buckets) == 2 * len(mine)
    (query,) = {bucket["query"] for bucket in mine}
    assert {bucket["query"] for bucket in inspected(place, "--checkpoint", other.checkpoint)} == {
        bucket["query"] for bucket in buckets
    } - {query}
    operators, pointers = read_committed(str(place.checkpoint), find_operators(open_files(place.state)))
    assert [operator.query for operator in operators] == [query]
    assert {(location, pointer.file_id) for location, pointer in pointers.items()} == {
        (bucket["location"], bucket["proven"]["file_id"]) for bucket in mine if bucket["proven"]
    }
    for arguments, text in (
        ((place.state / query, "--checkpoint", other.checkpoint), "the checkpoint belongs to another query"),
        ((place.state, "--checkpoint", tmp_path), "this is not the checkpoint of a streaming query"),
        ((mine[0]["location"], "--checkpoint", place.checkpoint), "the path is the directory of one bucket"),
    ):
        result = command("gc", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert text in result.stderr


def test_a_checkpoint_that_was_set_back_to_its_beginning_proves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]), quotes([("b", 2, 1.0)]))
    place.run(place.queue(spark, buckets=BUCKETS))
    place.forget(0)
    before = versions(place)
    result = command("gc", place.state, "--checkpoint", place.checkpoint)
    assert (result.exit_code, result.stderr) == (0, "")
    assert versions(place) == before
    assert penstock.read_state(spark, place.state, checkpoint=place.checkpoint).count() == 0


@pytest.mark.usefixtures("spark")
def test_a_checkpoint_that_holds_its_state_says_what_is_committed(ran: Place, tmp_path: Path) -> None:
    place = ran.copy_to(tmp_path)
    place.state = place.state.rename(place.checkpoint / "what the query keeps")
    unfinished = place.state_files()[0].parent / f".{1:012d}-{'0' * 32}.punit.{'1' * 32}.tmp"
    unfinished.write_bytes(b"half")
    before = versions(place)
    result = command("gc", place.checkpoint, "--orphans", "--delete")
    assert result.exit_code == 0, result.output
    assert "kept" not in result.stdout
    assert not unfinished.exists()
    assert versions(place) == before
