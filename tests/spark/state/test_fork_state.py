"""A forked query continues as the old query would have, even if the fork was interrupted at any step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import penstock
from penstock import _durable
from penstock.checkpointing.files import LocalFiles
from penstock.cli import app
from penstock.errors import CorruptDataError, InvalidUsageError
from tests.long_tests import long_but
from tests.spark.queries import Place, Row, quotes

pytestmark = pytest.mark.spark

BUDGET: dict[str, Any] = {"buckets": 3, "budget": 4}


class _KilledError(BaseException):
    """Simulates SIGKILL: no code catches it."""


def _feed(place: Place, first: int) -> None:
    place.input.add(
        *(quotes([(f"k{n}", t * 100 + n, float(n)) for n in range(12)]) for t in range(first, first + 3))
    )


@pytest.fixture(scope="module")
def old(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Give a query that stopped while keys wait."""
    place = Place(tmp_path_factory.mktemp("old"))
    _feed(place, 1)
    place.run_until(place.queue(spark, **BUDGET), lambda: len(place.batches()) >= 4)
    return place


def _newest(place: Place) -> int:
    return max(int(path.name) for path in (place.checkpoint / "commits").glob("[0-9]*"))


def _tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def _continued(spark: SparkSession, place: Place, checkpoint: Path, sink: Path) -> list[Row]:
    place.checkpoint, place.sink = checkpoint, sink
    place.run_until_drained(place.queue(spark, **BUDGET))
    return place.sequence()


def _state(spark: SparkSession, place: Place, checkpoint: Path) -> list[Any]:
    shown = penstock.read_state(spark, place.state, checkpoint=checkpoint)
    return sorted(map(tuple, shown.collect()), key=repr)


@pytest.mark.parametrize("back", long_but([0, 1], 1))
def test_a_fork_continues_as_the_old_query_does(
    spark: SparkSession, old: Place, tmp_path: Path, back: int
) -> None:
    place = old.copy_to(tmp_path)
    at = _newest(place) - back
    before = _tree(place.checkpoint)
    made = penstock.fork_state(place.checkpoint, place.state, tmp_path / "fork", at=at)
    assert (made.batch, made.buckets) == (at, 3)
    assert _tree(place.checkpoint) == before
    if not back:
        assert _state(spark, place, tmp_path / "fork") == _state(spark, place, place.checkpoint)
    # The old query may have planned a micro-batch when it stopped; the fork plans it anew.
    place.forget(at + 1, planned=False)
    _feed(place, 4)
    emitted = len(place.sequence())
    forked = _continued(spark, place, tmp_path / "fork", tmp_path / "fork_sink")
    expected = _continued(spark, place, tmp_path / "checkpoint", tmp_path / "sink")[emitted:]
    assert forked == expected
    assert forked
    assert _state(spark, place, tmp_path / "fork") == _state(spark, place, tmp_path / "checkpoint")


def test_a_fork_that_was_killed_at_any_step_continues(
    old: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = old.copy_to(tmp_path)
    left = 0

    def dies(step: Any) -> Any:
        def stepped(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _KilledError
            return step(*arguments)

        return stepped

    for owner, name in ((LocalFiles, "publish"), (_durable, "replace"), (_durable, "sync_directory")):
        monkeypatch.setattr(owner, name, dies(getattr(owner, name)))
    to, kills = tmp_path / "fork", 0
    while not to.exists():
        # Attempt n dies at its step n + 1.
        left = kills
        try:
            penstock.fork_state(place.checkpoint, place.state, to)
        except _KilledError:
            kills += 1
    monkeypatch.undo()
    whole = penstock.fork_state(place.checkpoint, place.state, tmp_path / "whole")
    assert kills > 10
    same = {"metadata", "penstock_fork.json"}
    one, other = _tree(to), _tree(tmp_path / "whole")
    assert {
        name: content for name, content in one.items() if name not in same and not name.endswith(".tmp")
    } == {name: content for name, content in other.items() if name not in same}
    own = json.loads(one["metadata"])["id"]
    assert _tree(place.state / own) == _tree(place.state / whole.query)


def test_a_fork_is_refused_with_the_reason(old: Place, tmp_path: Path) -> None:
    place = old.copy_to(tmp_path)
    to, newest = tmp_path / "fork", _newest(place)
    with pytest.raises(InvalidUsageError, match=f"no such committed micro-batch.*newest={newest}"):
        penstock.fork_state(place.checkpoint, place.state, to, at=newest + 1)
    with pytest.raises(InvalidUsageError, match="not the checkpoint of a streaming query"):
        penstock.fork_state(tmp_path / "none", place.state, to)
    with pytest.raises(InvalidUsageError, match="the new checkpoint exists"):
        penstock.fork_state(place.checkpoint, place.state, place.checkpoint)
    with pytest.raises(InvalidUsageError, match="the new checkpoint is inside the old checkpoint"):
        penstock.fork_state(place.checkpoint, place.state, place.checkpoint / "fork")
    with pytest.raises(InvalidUsageError, match="no state of this query"):
        penstock.fork_state(place.checkpoint, next(place.state.iterdir()), to)
    oldest = [file for file in place.state_files() if file.name.startswith(f"{1:012d}-")]
    assert len(oldest) == 3
    for file in oldest:
        file.unlink()  # First one bucket's state is gone, then the state of all.
        with pytest.raises(CorruptDataError, match="state of this micro-batch is gone"):
            penstock.fork_state(place.checkpoint, place.state, to, at=0)
        assert not to.exists()
    with pytest.raises(InvalidUsageError, match="has other arguments"):
        penstock.fork_state(place.checkpoint, place.state, to, at=newest)
    shutil.rmtree(tmp_path / "fork.fork")
    (place.checkpoint / "queries").mkdir()
    with pytest.raises(InvalidUsageError, match="checkpoint of a graph"):
        penstock.fork_state(place.checkpoint, place.state, to)
    assert not to.exists()


def test_the_command_forks(old: Place, tmp_path: Path) -> None:
    place = old.copy_to(tmp_path)
    given = [str(place.checkpoint), "--state", str(place.state), "--to", str(tmp_path / "fork")]
    done = CliRunner().invoke(app, ["state", "fork", *given])
    assert done.exit_code == 0, done.output
    assert f"continues after micro-batch {_newest(place)}" in done.output
    assert CliRunner().invoke(app, ["state", "fork", *given]).exit_code == 2
