"""A micro-batch that runs again serves the same rows as its first attempt, at any later time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from penstock import _durable
from penstock._clock import Clock
from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import LocalFiles, open_files, stores
from penstock.checkpointing.releases import Releases
from penstock.errors import CorruptDataError, UnavailableError
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Query
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.operators.update_stream.options import Budget
from penstock.spark_ext.worker import bucket_task
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel, TaskShare
from penstock.spark_ext.worker.queue_operator import QueueOperator, share
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from penstock.state_store.cache import StateCache
from penstock.state_store.clock_record import ClockRecord, RecordedClock
from penstock.state_store.survey import survey_bucket
from penstock.state_store.tables.working_copy import WorkingCopy
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, arrivals_of
from tests.unit.spark_ext.worker.test_window_operator import of_update_window, parcels_of

MS = 1000
TIMED = Budget(duration_us=20 * MS)
ROWS = Budget(rows=3)
CONTRACT = {"p95": "20 ms"}


class Ticking:
    """A clock that moves on by itself: by `steps` in turn, each time it is asked."""

    def __init__(self, *steps: int, start: int = 0) -> None:
        self._steps = steps
        self._now = start
        self.asked = 0

    def __call__(self) -> int:
        self._now += self._steps[self.asked % len(self._steps)]
        self.asked += 1
        return self._now


def options_of(policy: Policy, budget: Budget | dict[str, str]) -> QueueOptions:
    if isinstance(budget, dict):
        return QueueOptions(policy=policy, freshness=budget)
    if budget.duration_us is None:
        return QueueOptions(policy=policy, budget=budget.rows)
    return QueueOptions(
        policy=policy, budget=f"{budget.duration_us} us", apply=lambda rows: rows, output_schema="k string"
    )


def queue_task(
    place: Path | str, policy: Policy, budget: Budget | dict[str, str], buckets: int = 1, **given: Any
) -> BucketTask[Any]:
    query = Query(None, STREAM.schema, STREAM.key)
    operator = QueueOperator(STREAM, options_of(policy, budget), query, ())
    return BucketTask("queue", str(place), operator, buckets=buckets, parallel=buckets, **given)


def parcel(updates: list[Update]) -> list[Parcel]:
    return [Parcel(0, arrivals_of(STREAM, updates).to_batch())]


def written(task: BucketTask[Any], pointer: Pointer | None) -> tuple[Any, dict[str, Any]]:
    """Return what an attempt added to the state."""
    assert pointer is not None
    files = open_files(task.state_location).child("q").child(task.name).child("00000")
    _, unit = BucketStore(files).read_version(pointer)
    return unit.meta, {name: block.to_pydict() for name, block in unit.blocks.items()}


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture(autouse=True)
def _other_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget(monkeypatch)
    yield


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_task, "_CACHE", StateCache(1 << 24))
    monkeypatch.setattr(bucket_task, "_CHECKED", set())


UPDATES = [Update(key, 1 + key % 7, key) for key in range(40)]


def test_a_batch_that_runs_again_on_more_processors_serves_as_much_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(place: Path, processors: int | None) -> list[dict[str, Any]]:
        forget(monkeypatch)
        task = queue_task(place, Policy.FIFO, TIMED, 8, processors=processors)
        return rows(task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))[1])

    one, four = served(tmp_path / "one", 1), served(tmp_path / "four", 4)
    assert len(one) < len(four) < len(UPDATES)
    assert served(tmp_path / "one", 4) == one
    assert served(tmp_path / "four", 1) == four
    assert served(tmp_path / "unknown", None) == served(tmp_path / "eight", 8)


@pytest.mark.parametrize("buckets", [8, 10, 17])
def test_a_record_of_an_earlier_version_gives_each_partition_the_whole_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    task = replace(queue_task(tmp_path, Policy.FIFO, TIMED, buckets), parallel=8)
    assert share(TIMED, TaskShare(0, buckets, 0, 8)).duration_us == 20 * MS * 8 // buckets
    all_partitions = rows(task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))[1])
    (file,) = tmp_path.rglob("*.clock")
    unit = decode(file.read_bytes(), str(file))
    file.write_bytes(encode(PUnit(unit.kind, {"times_us": unit.meta["times_us"]})))
    forget(monkeypatch)
    task = replace(task, processors=1)
    assert rows(task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))[1]) == all_partitions


@given(
    served=st.sampled_from(
        [
            (Policy.FIFO, TIMED),
            (Policy.IN_PLACE, TIMED),
            (Policy.LINECUTTING, TIMED),
            (Policy.LINECUTTING, ROWS),
            (Policy.FRESHEST, CONTRACT),
        ]
    ),
    clocks=st.lists(st.tuples(st.integers(1, 9 * MS), st.integers(1, 30 * MS)), min_size=2, max_size=4),
)
def test_all_attempts_of_a_turn_serve_the_same_keys_and_leave_the_same_state(
    tmp_path_factory: pytest.TempPathFactory,
    served: tuple[Policy, Budget | dict[str, str]],
    clocks: list[tuple[int, int]],
) -> None:
    task = queue_task(tmp_path_factory.mktemp("state"), *served)
    first, *others = [Ticking(*steps, start=number * 10**9) for number, steps in enumerate(clocks)]
    begin, _, _ = task.run("q", 0, 0, None, parcel(UPDATES), first)
    more = [Update(key, 9, key) for key in range(0, 40, 3)]
    pointer, batches, metrics = task.run("q", 1, 0, begin, parcel(more), first)
    pointers = [pointer]
    for clock in others:
        again, repeated, measured = task.run("q", 1, 0, begin, parcel(more), clock)
        pointers.append(again)
        assert rows(repeated) == rows(batches)
        assert measured.queue_staleness == metrics.queue_staleness
        assert clock.asked == 0
    wrote = [written(task, one) for one in pointers]
    assert wrote.count(wrote[0]) == len(wrote)


def test_without_the_record_attempts_would_differ(tmp_path: Path) -> None:
    # So the test above can fail.
    served = []
    for number, step in enumerate((1 * MS, 15 * MS)):
        task = queue_task(tmp_path / str(number), Policy.FIFO, TIMED)
        pointer, _, _ = task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))
        served.append(rows(task.run("q", 1, 0, pointer, [], Ticking(step))[1]))
    assert served[0] != served[1]


@pytest.mark.parametrize("budget", [Budget(), Budget(rows=2)])
def test_what_does_not_follow_the_clock_leaves_no_record(tmp_path: Path, budget: Budget) -> None:
    task = queue_task(tmp_path, Policy.IN_PLACE, budget)
    task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))
    assert list(tmp_path.rglob("*.clock")) == []


def test_the_working_copy_of_an_attempt_that_fails_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(scratch))
    task = queue_task(tmp_path / "state", Policy.FIFO, TIMED)
    assert isinstance(task.operator, QueueOperator)
    options = replace(task.operator.options, working_copy=WorkingCopy.ROCKSDB)
    object.__setattr__(task.operator, "options", options)
    first, _, _ = task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))
    assert len(list(scratch.iterdir())) == 1

    def failing() -> Iterator[Parcel]:
        raise UnavailableError("no parcels")
        yield

    def refuse(*_: object) -> None:
        raise UnavailableError("no space")

    for fails in ("parcels", "commit"):
        with monkeypatch.context() as patch, pytest.raises(UnavailableError) as caught:
            if fails == "commit":
                patch.setattr(BucketStore, "commit", refuse)
            task.run("q", 1, 0, first, failing() if fails == "parcels" else parcel(UPDATES), Ticking(MS))
        # What was raised still holds all that the attempt had.
        assert caught.tb is not None
        assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "limits", [{"budget": f"{2 * MS} us"}, {"budget": None, "freshness": {"p95": "2 ms"}}]
)
def test_windows_that_are_served_by_time_are_repeated(tmp_path: Path, limits: dict[str, Any]) -> None:
    plan = of_update_window(None)
    operator = plan.operator(())
    operator = replace(operator, options=replace(operator.options, **limits))
    task = BucketTask("windows", str(tmp_path), operator, buckets=1, parallel=1)
    pointer, batches, metrics = task.run("q", 0, 0, None, parcels_of(plan), Ticking(MS))
    again, repeated, _ = task.run("q", 0, 0, None, parcels_of(plan), Ticking(1))
    assert 0 < len(rows(batches)) < 4, "the budget ended before the windows did"
    assert rows(repeated) == rows(batches)
    assert written(task, again) == written(task, pointer)
    assert list(metrics.freshness) == (["all"] if "freshness" in limits else [])
    # The next micro-batch goes on from the stored state of the controller.
    _, rest, _ = task.run("q", 1, 0, pointer, [], Ticking(MS, start=10**6))
    _, repeated, _ = task.run("q", 1, 0, pointer, [], Ticking(1))
    assert rows(repeated) == rows(rest)


def test_an_attempt_that_ends_when_the_next_micro_batch_runs_serves_the_same(tmp_path: Path) -> None:
    """Spark may store this attempt's pointer, although the sink took the rows of another attempt."""
    task = queue_task(tmp_path, Policy.FIFO, TIMED)
    pointers: list[Pointer | None] = [None]
    for batch in range(5):
        before = pointers[-1]
        arriving = [Update(key, batch, key) for key in range(100 * batch, 100 * batch + 40)]
        pointer, batches, _ = task.run("q", batch, 0, before, parcel(arriving), Ticking(MS))
        task.run("q", batch + 1, 0, pointer, [], Ticking(2 * MS))
        late, repeated, _ = task.run("q", batch, 0, before, parcel(arriving), Ticking(7 * MS, start=10**9))
        assert rows(repeated) == rows(batches)
        pointers.append(late)


def test_records_go_in_bulk_once_it_is_durable_that_later_pointers_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[int] = []
    monkeypatch.setattr(_durable, "sync_everything", lambda: there.append(len(records())))
    monkeypatch.setattr(bucket_task, "_RELEASES", Releases(clock=lambda: 0.0))  # no sync is too soon

    def records() -> list[str]:
        return sorted(path.name for path in tmp_path.rglob("*.clock"))

    task, clock = queue_task(tmp_path, Policy.LINECUTTING, ROWS), Ticking(MS)
    pointer: Pointer | None = None
    for batch in range(17):
        pointer, _, _ = task.run("q", batch, 0, pointer, parcel(UPDATES), clock)
        for _ in range(2):  # a release, and the sweep that it asks for
            bucket_task._background().submit(int).result()
        assert len(records()) == (4 if batch == 16 else batch + 1), "but those of recent versions"
    assert there[-1] >= 16, "all were there when the disks were synced"
    assert records()[0].startswith(f"{14:012d}-")


def test_a_record_that_nothing_ended_is_garbage_once_a_later_pointer_arrives(tmp_path: Path) -> None:
    task, clock = queue_task(tmp_path, Policy.LINECUTTING, ROWS), Ticking(MS)
    pointer, _, _ = task.run("q", 0, 0, None, parcel(UPDATES), clock)
    (record,) = tmp_path.rglob("*.clock")
    late = record.with_name(record.name.replace("first", "lost"))
    late.write_bytes(record.read_bytes())
    for batch in range(1, 4):
        pointer, _, _ = task.run("q", batch, 0, pointer, [], clock)
    assert pointer is not None
    store = BucketStore(open_files(record.parent))
    handle, _ = store.read_version(pointer)
    assert late.name in store.garbage(handle)
    found = survey_bucket(open_files(record.parent))
    assert found.damage == ()
    assert found.newest == (pointer,)


class Overtaken(QueueOperator):
    """Another attempt runs at the same time, and is faster."""

    other: Callable[[], object]
    done: list[object]

    def run(self, state: Any, parcels: Any, task_share: Any, clock: Clock) -> Any:
        done = super().run(state, parcels, task_share, clock)
        if not self.done:
            self.done.append(self.other())
        return done


@pytest.mark.parametrize("in_store", [False, True], ids=["a disk", "an object store"])
def test_an_attempt_that_was_overtaken_does_what_the_faster_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_store: bool
) -> None:
    place = str(tmp_path)
    if in_store:
        memory = MemoryStore()
        monkeypatch.setattr(stores, "_connect", lambda _: (memory, "state"))
        place = f"s3://{tmp_path.name}/state"
    fast = queue_task(place, Policy.FIFO, TIMED)
    begin, _, _ = fast.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))
    more = [Update(key, 9, key) for key in range(100, 140)]
    seen: list[list[dict[str, Any]]] = []

    def overtake() -> None:
        forget(monkeypatch)
        seen.append(rows(fast.run("q", 1, 0, begin, iter(parcel(more)), Ticking(2 * MS))[1]))

    given = {name: getattr(fast.operator, name) for name in QueueOperator.__dataclass_fields__}
    operator = Overtaken(**given)
    object.__setattr__(operator, "other", overtake)
    object.__setattr__(operator, "done", [])
    slow = BucketTask("queue", place, operator, buckets=1, parallel=1)
    forget(monkeypatch)
    pointer, batches, metrics = slow.run("q", 1, 0, begin, iter(parcel(more)), Ticking(9 * MS))
    assert rows(batches) == seen[0]
    assert metrics.rows_in == len(more), "they came in once"
    assert pointer is not None and pointer.version == 2
    forget(monkeypatch)
    assert rows(fast.run("q", 1, 0, begin, iter(parcel(more)), Ticking(9 * MS))[1]) == seen[0]


def test_a_damaged_record_is_an_error_that_names_it(tmp_path: Path) -> None:
    task = queue_task(tmp_path, Policy.FIFO, TIMED)
    task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))
    (record,) = tmp_path.rglob("*.clock")
    content = bytearray(record.read_bytes())
    content[len(content) // 2] ^= 1
    record.write_bytes(content)
    with pytest.raises(CorruptDataError, match=record.name):
        task.run("q", 0, 0, None, parcel(UPDATES), Ticking(MS))


@pytest.mark.parametrize("times", [["x"], [None], [1.5], [True], "12", None])
def test_a_record_that_nothing_writes_is_damage(tmp_path: Path, times: object) -> None:
    record = ClockRecord(open_files(tmp_path), Handle())
    record.files.publish("000000000001-first.clock", encode(PUnit("clock", {"times_us": times})))
    with pytest.raises(CorruptDataError, match="000000000001-first"):
        record.read()


def test_a_record_that_cannot_be_deleted_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalFiles, name: str) -> None:
        raise UnavailableError("the disk refuses", file=name)

    task, clock = queue_task(tmp_path, Policy.FIFO, TIMED), Ticking(MS)
    pointer, _, _ = task.run("q", 0, 0, None, parcel(UPDATES), clock)
    monkeypatch.setattr(LocalFiles, "delete", refuse)
    pointer, _, _ = task.run("q", 1, 0, pointer, [], clock)
    assert pointer is not None and pointer.version == 2
    assert len(list(tmp_path.rglob("*.clock"))) == 2


def test_where_a_source_gives_more_than_before_the_clock_goes_on() -> None:
    clock = RecordedClock(Ticking(7, start=100), [1, 2])
    assert [clock(), clock(), clock(), clock()] == [1, 2, 107, 114]
    assert clock.readings == [1, 2, 107, 114]
