"""A query that gets another number of buckets continues as if it had had it from the start."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock import _durable
from penstock.checkpointing import PUnit
from penstock.checkpointing.files import LocalFiles
from penstock.cli import app
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.queues.repartition import read_state
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_copy.fork import fork_state
from penstock.spark_ext.state_copy.rescale import rescale_state
from penstock.state_store.bucket_store import BucketStore, FileId
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.graph_directories import write_pointers
from tests.checkpoints.stopped_queries import Buckets, Made, draw_updates, tree
from tests.long_tests import long_but
from tests.oracles.naive import Update
from tests.samples.streams import (
    ARRIVAL_STREAM,
    STREAM,
    TEXT_STREAM,
    WEIGHTED_STREAM,
    served_of,
)

pytestmark = pytest.mark.usefixtures("unsynced")

STREAMS = {"arrival": ARRIVAL_STREAM, "text": TEXT_STREAM, "weight": WEIGHTED_STREAM}
NUMBERS = [(3, 7), (7, 3)]


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(("old", "new"), long_but(NUMBERS, (3, 7)))
@pytest.mark.parametrize("kind", STREAMS)
def test_after_a_drain_a_rescaled_queue_goes_on_exactly(
    kind: str, old: int, new: int, policy: Policy
) -> None:
    stream, draw = STREAMS[kind], Random(f"{kind} {old} {new} {policy}")
    one, other = Buckets(stream, policy, old), Buckets(stream, policy, new)
    # Every bucket's first update is of the same moment.
    first = [Update(key, 0, key, 0) for key in range(100)]
    for moment in range(5):
        updates = draw_updates(draw, 40, moment) if moment else first
        for each in (one, other):
            each.enqueue(updates, 1000 * moment)
            each.serve(1000, 1000 * moment + 10)
    assert one.records() == other.records()
    one = one.rescale(new)
    assert one.records() == other.records()
    for moment in range(5, 9):
        updates = draw_updates(draw, 40, moment)
        for each in (one, other):
            each.enqueue(updates, 1000 * moment)
        assert one.serve(3, 1000 * moment + 10) == other.serve(3, 1000 * moment + 10)
    assert one.records() == other.records()
    assert any(one.order())


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(("old", "new"), long_but(NUMBERS, (3, 7)))
@pytest.mark.parametrize("kind", STREAMS)
def test_nothing_that_waits_is_lost_and_each_bucket_keeps_its_order(
    kind: str, old: int, new: int, policy: Policy
) -> None:
    stream, draw = STREAMS[kind], Random(f"{kind} {old} {new} {policy}")
    one = Buckets(stream, policy, old)
    seen: list[Update] = []
    for moment in range(6):
        seen += (updates := draw_updates(draw, 40, moment))
        one.enqueue(updates, 1000 * moment)
        one.serve(2, 1000 * moment + 10)
    before, order = one.records(), one.order()
    assert sum(map(len, order)) > 10
    rescaled = one.rescale(new)
    assert rescaled.records() == before
    for line in order:
        for found in rescaled.order():
            assert [key for key in found if key in line] == [key for key in line if key in found]
    staleness = [queue.accounts.accounted_until_us for queue in rescaled.queues if queue.keys]
    assert set(staleness) == {5010}
    served = [update for line in rescaled.serve(1000, 20_000) for update in line]
    newest: dict[Any, int] = {}
    for update in seen:
        newest[one.key_of(update)] = max(update.time, newest.get(one.key_of(update), update.time))
    assert [update.time for update in served] == [newest[one.key_of(update)] for update in served]


@pytest.mark.parametrize("policy", [Policy.IN_PLACE, Policy.FIFO])
def test_a_queue_of_one_bucket_splits_into_the_queues_there_would_have_been(policy: Policy) -> None:
    draw = Random(str(policy))
    one, other = Buckets(STREAM, policy, 1), Buckets(STREAM, policy, 6)
    for moment in range(5):
        updates = draw_updates(draw, 30, moment)
        for each in (one, other):
            each.enqueue(updates, 1000 * moment)
            each.serve(0, 1000 * moment)
    assert one.rescale(6).order() == other.order()
    assert one.rescale(6).records() == other.records()


def test_merged_queues_serve_first_what_arrived_first() -> None:
    draw = Random(1)
    many, one = Buckets(STREAM, Policy.IN_PLACE, 6), Buckets(STREAM, Policy.IN_PLACE, 1)
    arrived: dict[int, int] = {}
    for moment in range(5):
        updates = draw_updates(draw, 30, moment)
        for update in updates:
            arrived.setdefault(update.key, moment)
        for each in (many, one):
            each.enqueue(updates, 1000 * moment)
            each.serve(0, 1000 * moment)
    merged = many.rescale(1)
    # Within a micro-batch, state does not tell the order of several buckets.
    assert [arrived[key] for key in merged.order()[0]] == [arrived[key] for key in one.order()[0]]
    assert merged.records() == one.records()


def test_keys_that_cut_the_line_stay_before_all_others() -> None:
    many = Buckets(STREAM, Policy.LINECUTTING, 4)
    many.enqueue([Update(key, 0, 0) for key in range(40)], 0)
    many.serve(1000, 0)
    for moment in range(1, 15):
        many.enqueue([Update(key, moment, 0) for key in range(20)], 10 * moment)
        many.serve(1, 10 * moment)
    many.enqueue([Update(key, 1000, 0) for key in range(20, 40)], 10_000)
    many.serve(0, 10_000)
    cuts = {
        row["__penstock_rank"] < 0: None
        for queue in many.queues
        for unit in queue.snapshot()
        for row in unit.blocks["rows"].to_pylist()
    }
    assert len(cuts) == 2
    (line,) = many.rescale(1).order()
    assert set(line[:20]) == set(range(20, 40))
    (other,) = many.rescale(2).rescale(1).order()
    assert set(other[:20]) == set(range(20, 40))


def test_virtual_times_and_costs_of_merged_queues_are_on_one_scale() -> None:
    many = Buckets(WEIGHTED_STREAM, Policy.IN_PLACE, 2)
    updates = [Update(key, 0, 7 * key) for key in range(40)]
    many.enqueue(updates, 0)
    # One bucket has served more than the other, so its clock is ahead.
    served_of(many.queues[0], 8, 1)
    for queue, cost in zip(many.queues, (10.0, 30.0), strict=True):
        queue.measured_cost_us = cost
    many.enqueue([Update(100 + key, 0, 0) for key in range(20)], 2)
    many.serve(0, 2)

    def waits(units: list[PUnit]) -> dict[int, float]:
        """Return the virtual time from now until each key is due."""
        state = read_state(units, WEIGHTED_STREAM.key)
        keys = state.records.column("key").to_numpy()[state.places].tolist()
        starts = state.waiting.column("__penstock_start").to_numpy() - state.meta["virtual_time"]
        return dict(zip(keys, starts.tolist(), strict=True))

    clocks = {units[-1].meta["virtual_time"] for units in many.units}
    assert len(clocks) == 2
    expected = waits(many.units[0]) | waits(many.units[1])
    one = many.rescale(1)
    assert waits(one.units[0]) == pytest.approx(expected)
    # One bucket instead of two is served twice as often.
    assert one.queues[0].measured_cost_us == 10.0


def test_costs_by_key_are_on_the_scale_of_the_mean_cost() -> None:
    stream = UpdateStream(STREAM.schema, STREAM.key, STREAM.time, costs_by_key=True)
    many = Buckets(stream, Policy.FRESHEST, 4)
    many.enqueue([Update(key, 0, key) for key in range(40)], 0)
    for queue in many.queues:
        queue.measured_cost_us = 80.0
        served = queue.dequeue(5, 1)
        queue.accounts.observe_costs(served.ids, 80.0 * len(served.ids), 80.0)
        queue.deliver(served, 1)
    many.serve(0, 1)
    (one,) = many.rescale(1).queues
    costs = one.accounts.records["cost_us"][: one.keys]
    # One bucket instead of four waits for no other bucket; 0 is unknown.
    assert one.measured_cost_us == 20.0
    assert sorted(costs) == pytest.approx([0.0] * 20 + [20.0] * 20)


def test_a_large_bucket_is_written_in_parts(tmp_path: Path) -> None:
    one = Buckets(STREAM, Policy.FIFO, 1)
    one.enqueue([Update(key, 0, key) for key in range(100)], 0)
    one.serve(30, 0)
    state = read_state(one.units[0], STREAM.key)
    store = BucketStore(LocalFiles(tmp_path), snapshots=SnapshotRule(max_deltas=2))
    pointer = store.publish_first(FileId("first"), state.units(most_keys=16))
    queue = one.new(1)
    handle = store.load(pointer, queue)
    assert (len(handle.links), handle.base) == (7, 7)
    assert [update.key for update, _ in served_of(queue, 100, 1)] == list(range(30, 100))
    for _ in range(8):
        handle = store.commit(queue, handle)
    store.sweep(handle)
    again = one.new(1)
    assert handle.pointer is not None
    store.load(handle.pointer, again)
    assert again.keys == 100
    assert len(list(tmp_path.iterdir())) < 10, "a snapshot has replaced the first parts"


@pytest.mark.parametrize("buckets", [1, 2, 7])
def test_a_copy_with_other_buckets_has_all_records_and_the_old_query_is_unchanged(
    tmp_path: Path, buckets: int
) -> None:
    made = Made(tmp_path)
    before = tree(tmp_path)
    parts: list[tuple[int, int]] = []
    done = rescale_state(
        made.checkpoint, made.state, made.to, buckets=buckets, progress=lambda *part: parts.append(part)
    )
    found = made.read(made.to, buckets)
    assert found.records() == made.buckets.records()
    assert (done.old_buckets, done.buckets, done.keys, done.batch) == (3, buckets, len(found.records()), 3)
    assert parts == [(part, buckets + 1) for part in range(1, buckets + 2)]
    assert tree(tmp_path).items() >= before.items()
    assert not list((made.to / "state" / "0").rglob("*.delta"))
    assert any(found.order())


def test_a_rescaling_that_was_killed_at_any_step_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path)
    before, left, kills = tree(made.checkpoint), 0, 0

    class KilledError(BaseException):
        pass

    def dies(step: Any) -> Any:
        def stepped(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return step(*arguments)

        return stepped

    for owner, name in ((LocalFiles, "publish"), (_durable, "replace")):
        monkeypatch.setattr(owner, name, dies(getattr(owner, name)))
    while not made.to.exists():
        left = kills
        try:
            rescale_state(made.checkpoint, made.state, made.to, buckets=5)
        except KilledError:
            kills += 1
            assert tree(made.checkpoint) == before
    monkeypatch.undo()
    assert kills > 5
    assert made.read(made.to, 5).records() == made.buckets.records()
    assert len([path for path in made.state.iterdir() if path.name != "old"]) == 1


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [
        ("semantics", "append", "a queue of these semantics cannot"),
        ("mode", "lazy", "only the state of update queues, unions, joins"),
    ],
)
def test_what_cannot_be_rescaled_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, value: str, fact: str
) -> None:
    specification: dict[str, Any] = {name: value}
    made = Made(tmp_path, **specification)
    before = tree(tmp_path)
    for buckets, told in ((5, fact), (0, "the number of buckets is less than 1")):
        with pytest.raises(InvalidUsageError, match=told):
            rescale_state(made.checkpoint, made.state, made.to, buckets=buckets)
    assert tree(tmp_path) == before


def test_a_query_of_a_graph_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path)
    inside = tmp_path / "graph" / "queries" / "results"
    inside.parent.mkdir(parents=True)
    made.checkpoint.rename(inside)
    # Only a graph's file makes the difference. A query's checkpoint may be in any directory.
    rescale_state(inside, made.state, tmp_path / "other", buckets=5)
    (tmp_path / "graph" / "graph-000000000000.json").write_text("{}")
    before = tree(tmp_path)
    monkeypatch.chdir(inside)
    for place in (inside, Path(), Path("..", "results")):
        for copy in (fork_state, partial(rescale_state, buckets=5)):
            with pytest.raises(InvalidUsageError, match="checkpoint of a query of a graph or pipeline"):
                copy(place, made.state, made.to)
    with pytest.raises(InvalidUsageError, match="checkpoint of a graph or pipeline, which cannot be copied"):
        fork_state(tmp_path / "graph", made.state, made.to)
    assert tree(tmp_path) == before


def test_an_unfinished_copy_is_not_continued_with_other_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path)
    monkeypatch.setattr(_durable, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rescale_state(made.checkpoint, made.state, made.to, buckets=5)
    monkeypatch.undo()
    with pytest.raises(InvalidUsageError, match="an unfinished copy to this place has other arguments"):
        rescale_state(made.checkpoint, made.state, made.to, buckets=6)
    rescale_state(made.checkpoint, made.state, made.to, buckets=5)


def test_a_bucket_with_keys_of_others_is_damage(tmp_path: Path) -> None:
    made = Made(tmp_path, 2)
    one, other = (made.state / "old" / "queue" / name for name in ("00000", "00001"))
    for file in other.iterdir():
        file.unlink()
    for file in one.iterdir():
        shutil.copy(file, other)
    handle = made.buckets.handles[0]
    assert handle.pointer is not None
    labels = bucket_labels(2)
    shutil.rmtree(made.checkpoint / "state")
    home = write_pointers(tmp_path / "again", "one", [dict.fromkeys(labels, handle.pointer)] * 4)
    shutil.move(home.parent, made.checkpoint / "state")
    with pytest.raises(CorruptDataError, match="a bucket has keys of other buckets"):
        rescale_state(made.checkpoint, made.state, made.to, buckets=5)
    assert not made.to.exists()


def test_rows_of_a_later_micro_batch_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Made(tmp_path)
    rescale_state(made.checkpoint, made.state, tmp_path / "one", buckets=2)
    assert not caplog.records
    (made.checkpoint / "offsets" / "4").write_text("offsets 4")
    rescale_state(made.checkpoint, made.state, tmp_path / "other", buckets=2)
    (warning,) = caplog.records
    assert "the old query planned later micro-batches" in warning.message


def test_the_command_rescales(tmp_path: Path) -> None:
    made = Made(tmp_path)
    given = [str(made.checkpoint), "--state", str(made.state), "--to", str(made.to), "--buckets", "4"]
    done = CliRunner().invoke(app, ["state", "rescale", *given])
    assert done.exit_code == 0, done.output
    keys = len(made.buckets.records())
    assert f"{keys} keys, buckets=4, continues after micro-batch 3" in done.output
    assert "copied" not in done.output, "progress is for terminals"
    assert CliRunner().invoke(app, ["state", "rescale", *given]).exit_code == 2
