"""Before any task starts, a recovery reports exactly the state files that are missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import open_files
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.errors import CorruptDataError, PenstockError
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.graph.recovery import GraphRecovery, QueryStreams
from penstock.spark_ext.graph.state import FoundState, HeldBySpark, StatePlace, find_state
from penstock.spark_ext.state_reader.spark_state import Held, read_pointer_files
from penstock.state_store.bucket_store import BucketStore, FileId, Handle, Pointer, Version
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.graph_directories import write_delta, write_graph, write_logs, write_pointers
from tests.checkpoints.states import DictState
from tests.servers.s3 import SECRET, S3Server

pytestmark = pytest.mark.usefixtures("unsynced")

BUCKETS = 4
LABELS = bucket_labels(BUCKETS)


class Checkpoint:
    """A query with an operator of four buckets, of which the last was never written."""

    def __init__(self, place: Path, location: str | None = None) -> None:
        self.place = place
        self.state = StatePlace(location or str(place / "state"), "queue")
        self.home = place / "state" / "id of results" / "queue"
        self.files = open_files(self.state.location).child("id of results").child("queue")
        self.files.publish("operator.punit", encode(PUnit("operator", {"buckets": BUCKETS})))
        self.handles = [[Handle()] for _ in range(3)]
        self.states = [DictState() for _ in self.handles]
        self.versions: list[dict[int, Pointer | None]] = []
        for _ in range(7):
            self.batch()
        self.write()

    def store(self, bucket: int) -> BucketStore:
        return BucketStore(self.files.child(f"{bucket:05d}"), snapshots=SnapshotRule(max_deltas=3))

    def batch(self, *buckets: int) -> None:
        """Commit a micro-batch in some buckets, or all."""
        put: dict[int, Pointer | None] = {}
        for bucket in buckets or (0, 1, 2):
            handles, state, store = self.handles[bucket], self.states[bucket], self.store(bucket)
            store.release(handles[-1])
            store.sweep(handles[-1])
            state[len(handles)] = bytes(100)
            handles.append(store.commit(state, handles[-1]))
            put[LABELS[bucket]] = handles[-1].pointer
        self.versions.append(put)

    def write(self, *, committed: int | None = None, **options: Any) -> None:
        """Let Spark have written the micro-batches."""
        count = len(self.versions)
        write_logs(
            self.place,
            "results",
            planned=[[]] * count,
            committed=count - 1 if committed is None else committed,
        )
        write_pointers(self.place, "results", self.versions, **options)

    def path(self, bucket: int, link: int = -1) -> Path:
        """Return a file that the committed version of a bucket needs."""
        return self.home / f"{bucket:05d}" / self.handles[bucket][-1].links[link].pointer.file_name

    def find(self, held_by_spark: HeldBySpark | None = None) -> FoundState:
        directory = GraphDirectory(self.place)
        return find_state(directory, "results", directory.progress("results"), self.state, held_by_spark)

    def loaded(self, bucket: int) -> str | None:
        """Return the error of a task that loads a bucket."""
        try:
            self.store(bucket).load(self.handles[bucket][-1].links[-1].pointer, DictState())
        except PenstockError as error:
            return str(error)
        return None


@pytest.fixture
def made(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


@pytest.mark.parametrize("options", [{}, {"waits": True}, {"partitions": 1}, {"partitions": 4}])
def test_all_buckets_and_files_of_the_last_commit_are_found(
    made: Checkpoint, options: dict[str, Any]
) -> None:
    made.batch(1)
    made.write(**options)
    newest = [handles[-1] for handles in made.handles]
    assert {handle.base for handle in newest} == {1}
    assert made.find() == FoundState(
        3, sum(len(handle.links) for handle in newest), sum(handle.size_bytes for handle in newest)
    )


def test_state_elsewhere_is_found_and_missed(tmp_path: Path) -> None:
    with S3Server() as server:
        made = Checkpoint(tmp_path, server.uri("prefix/state"))
        found = made.find()
        assert (found.buckets, found.files) == (3, sum(len(handles[-1].links) for handles in made.handles))
        made.store(2).files.delete(made.handles[2][-1].links[0].pointer.file_name)
        with pytest.raises(CorruptDataError, match=r"a state file is missing: file=s3://.*/00002/") as caught:
            made.find()
        assert str(caught.value) == made.loaded(2)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("link", [0, 1, -1])
@pytest.mark.parametrize("bytes_left", [None, 0, 10, 60, -1])
def test_what_is_missing_or_cut_is_told_as_a_task_would(
    made: Checkpoint, link: int, bytes_left: int | None
) -> None:
    path = made.path(1, link)
    content = path.read_bytes()
    path.unlink()
    if bytes_left is not None:
        path.write_bytes(content[:bytes_left])
    with pytest.raises(CorruptDataError) as caught:
        made.find()
    assert str(caught.value) == made.loaded(1)
    assert caught.value.context["file"] == str(path)


def test_what_the_last_commit_does_not_need_may_be_damaged_or_gone(made: Checkpoint) -> None:
    found = made.find()
    for bucket in range(3):
        # Files of retained versions, an attempt that lost, one of a batch that is not committed.
        store = made.store(bucket)
        store.commit(DictState({7: b"lost"}), made.handles[bucket][-2])
        store.commit(DictState({7: b"ahead"}), made.handles[bucket][-1])
        needed = {link.pointer.file_name for link in made.handles[bucket][-1].links}
        others = [path for path in (made.home / f"{bucket:05d}").iterdir() if path.name not in needed]
        assert others
        for number, path in enumerate(others):
            path.unlink() if number % 2 else path.write_bytes(b"cut")
    (made.home / "00003").mkdir()
    (made.home / "00003" / "000000000001-orphan.punit").write_bytes(b"of no commit")
    assert made.find() == found


def test_a_batch_that_is_not_committed_is_not_looked_at(made: Checkpoint) -> None:
    found = made.find()
    committed = len(made.versions) - 1
    made.batch()
    made.write(committed=committed)
    newest = [made.path(bucket) for bucket in range(3)]
    for path in newest:
        path.unlink()
    assert made.find() == found
    made.write()
    with pytest.raises(CorruptDataError, match="a state file is missing"):
        made.find()
    made.write(committed=-1)
    shutil.rmtree(made.place / "queries" / "results" / "commits")
    assert made.find() == FoundState()
    shutil.rmtree(made.place / "queries" / "results")
    assert made.find() == FoundState()


def test_a_state_that_is_gone_as_a_whole_is_told(made: Checkpoint) -> None:
    (made.home / "operator.punit").unlink()
    with pytest.raises(CorruptDataError, match=r"the state of this checkpoint is missing.*operator\.punit"):
        made.find()
    shutil.rmtree(made.home)
    with pytest.raises(CorruptDataError, match=r"the state of this checkpoint is missing.*operator\.punit"):
        made.find()
    made.files.publish("operator.punit", encode(PUnit("operator", {"buckets": BUCKETS})))
    with pytest.raises(CorruptDataError, match=r"a state file is missing: file=.*/00000/"):
        made.find()


def test_what_all_buckets_share_is_looked_at_before_anything_is_committed(made: Checkpoint) -> None:
    shutil.rmtree(made.place / "queries" / "results" / "commits")
    (made.home / "operator.punit").write_bytes(b"cut")
    with pytest.raises(CorruptDataError, match=r"too short for a p-unit: file=.*operator\.punit"):
        made.find()


def test_operators_that_are_not_ours_are_left_alone(made: Checkpoint) -> None:
    found = made.find()
    theirs: list[dict[int, Pointer | None]] = [{0: Pointer(Version(3), FileId("theirs"))}]
    write_pointers(made.place, "results", theirs, operator=1, fields=[("count", "long"), ("name", "string")])
    assert made.find() == found
    # Of another update queue, before the graph, that has its state elsewhere.
    write_pointers(made.place, "results", [*[{}] * 6, *theirs], operator=1)
    assert made.find() == found
    for path in made.home.glob("0000?/*.punit"):
        path.unlink()
    assert made.find() == FoundState(), "whose pointers they are is not certain"


@pytest.mark.parametrize("damage", ["codec", "schema", "metadata", "gone"])
def test_what_only_spark_can_read_it_is_asked(made: Checkpoint, damage: str) -> None:
    found, home = made.find(), made.place / "queries" / "results" / "state" / "0"
    name = {"codec": "1/7.delta", "schema": "0/_metadata/schema", "metadata": "_metadata/metadata"}
    if damage == "gone":
        (home / "0" / "7.delta").unlink()
    else:
        content = bytearray((home / name[damage]).read_bytes())
        content[1] ^= 1
        (home / name[damage]).write_bytes(content)
    asked: list[str] = []

    def spark(checkpoint: str) -> Held:
        asked.append(checkpoint)
        return {0: {LABELS[b]: handles[-1].links[-1].pointer for b, handles in enumerate(made.handles)}}

    assert made.find() == FoundState(), "left to the tasks"
    for error in (PySparkException("it cannot"), Py4JError("nor can it")):
        assert made.find(Mock(side_effect=error)) == FoundState()
    assert made.find(spark) == found
    assert asked == [str(made.place / "queries" / "results")]


def test_pointers_are_those_of_the_newest_version_that_put_or_removed_them(tmp_path: Path) -> None:
    def at(number: int) -> Pointer:
        return Pointer(Version(number), FileId(f"file-{number}" * number))

    versions: list[dict[int, Pointer | None]] = [
        {LABELS[0]: at(1), LABELS[1]: at(1), LABELS[2]: at(1)}, {}, {LABELS[0]: at(2)}, {LABELS[2]: None}
    ]  # fmt: skip
    home = write_pointers(tmp_path, "q", versions, waits=True)
    state = open_files(tmp_path / "queries" / "q" / "state")
    expected = {LABELS[0]: at(2), LABELS[1]: at(1)}
    for labels in ((), LABELS, LABELS[:2]):
        assert read_pointer_files(state, 3, labels) == {0: expected}
        assert read_pointer_files(state, 0, labels) == {0: {label: at(1) for label in LABELS[:3]}}
    # Spark keeps no delta that a snapshot holds for ever.
    for partition in ("0", "1"):
        (home / partition / "3.delta").rename(home / partition / "3.snapshot")
        (home / partition / "2.delta").unlink()
    assert read_pointer_files(state, 3, []) == {0: {LABELS[0]: at(2)}}
    (home / "0" / "4.delta").rename(home / "0" / "4.snapshot")
    assert read_pointer_files(state, 3, []) is not None
    assert read_pointer_files(state, 4, []) is None


def test_of_one_version_the_last_pointer_counts(tmp_path: Path) -> None:
    first, last = (Pointer(Version(3), FileId(name)) for name in ("first", "last"))
    home = write_pointers(tmp_path, "q", [{}], partitions=1)
    write_delta(home / "0" / "1.delta", [(7, first), (8, first), (7, last), (8, None), (9, None), (9, last)])
    state = open_files(tmp_path / "queries" / "q" / "state")
    assert read_pointer_files(state, 0, []) == {0: {7: last, 9: last}}


@pytest.mark.parametrize("pointer", [Pointer(Version(7), FileId("f" * 32)), None])
def test_rows_with_checksums_are_left_to_spark(tmp_path: Path, pointer: Pointer | None) -> None:
    home = write_pointers(tmp_path, "q", [{}], partitions=1)
    write_delta(home / "0" / "1.delta", [(LABELS[0], pointer)], checksums=True)
    assert read_pointer_files(open_files(tmp_path / "queries" / "q" / "state"), 0, []) is None


def test_damage_of_sparks_state_is_left_to_spark(tmp_path: Path) -> None:
    pointers = {label: Pointer(Version(7), FileId("f" * 32)) for label in LABELS}
    home = write_pointers(tmp_path, "q", [pointers], partitions=1)
    state, path = open_files(tmp_path / "queries" / "q" / "state"), home / "0" / "1.delta"
    content = path.read_bytes()
    left = 0
    for at in range(len(content)):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]):
            path.write_bytes(damaged)
            found = read_pointer_files(state, 0, LABELS)
            assert found in (None, {0: pointers})
            left += found is None
    assert left > len(content)


def test_what_spark_itself_wrote_is_read(tmp_path: Path) -> None:
    home = write_pointers(tmp_path, "q", [{}], partitions=1)
    # By Spark 4.3.0, of a bucket's first version.
    written = (
        "4c5a34426c6f636b25510000006400000020434a0453000000100001001326080041000000480600"
        "4800000038210041000000010600f01f000020000000180000006632636265306138326632343461"
        "663438343662363362326365383833613035ffffffff4c5a34426c6f636b15000000000000000000"
        "000000"
    )
    (home / "0" / "1.delta").write_bytes(bytes.fromhex(written))
    field = '{"name":"%s","type":%s,"nullable":true,"metadata":{}}'
    group = ",".join([field % ("version", '"long"'), field % ("file_id", '"string"')])
    group = field % ("groupState", f'{{"type":"struct","fields":[{group}]}}')
    key = field % ("bucket", '"integer"')
    texts = [f'{{"type":"struct","fields":[{fields}]}}'.encode() for fields in (key, group)]
    assert [len(text) for text in texts] == [93, 244]
    schema = b"\0\2v2" + b"".join(b"\0\0\0\1" + bytes([0, len(text)]) + text for text in texts)
    (home / "0" / "_metadata" / "schema").write_bytes(schema)
    pointer = Pointer(Version(1), FileId("f2cbe0a82f244af4846b63b2ce883a05"))
    assert read_pointer_files(open_files(tmp_path / "queries" / "q" / "state"), 0, []) == {0: {38: pointer}}


def test_the_recovery_of_a_graph_tells_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_graph(tmp_path, commits=7, planned=6, committed=6)
    made = Checkpoint(tmp_path)
    place = str(tmp_path / "p-streams" / "numbers")
    queries = [QueryStreams("ingest-numbers", ()), QueryStreams("results", (place,), made.state)]
    with caplog.at_level("INFO"):
        recovery = GraphRecovery("sums", GraphDirectory(tmp_path), queries)
    recovery.record_commit(7)
    report = recovery.report
    assert report is not None
    found = made.find()
    assert (report.buckets, report.state_files, report.state_bytes) == (3, found.files, found.size_bytes)
    assert f"buckets=3 state_files={found.files} state_bytes={found.size_bytes}" in caplog.text
    document = GraphDirectory(tmp_path).newest("recovery")
    assert document is not None
    assert (document["buckets"], document["state_files"]) == (3, found.files)
    made.path(2, 0).unlink()
    with pytest.raises(CorruptDataError, match="a state file is missing"):
        GraphRecovery("sums", GraphDirectory(tmp_path), queries)
