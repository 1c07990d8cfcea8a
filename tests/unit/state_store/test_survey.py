"""A survey of a bucket says only what its files prove, and garbage collection deletes nothing else."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import Content, FileFacts, Files, LocalFiles, open_files
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.state_store.bucket_store import (
    RETAIN_VERSIONS,
    BucketStore,
    FileId,
    Handle,
    Pointer,
    Version,
    number_of,
)
from penstock.state_store.location import find_operators
from penstock.state_store.snapshot_rule import SnapshotRule
from penstock.state_store.survey import BucketSurvey, Chain, delete_garbage, likely_pointer, survey_bucket
from tests.checkpoints.states import DictState, Later, content_of, links_of, names_of
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, enqueue
from tests.servers.s3 import SECRET, S3Server

pytestmark = pytest.mark.usefixtures("unsynced")

_SEEDS = range(int(os.environ.get("PENSTOCK_STATE_EXAMPLES") or 3))
"""Of random histories."""


@pytest.fixture
def store(tmp_path: Path) -> BucketStore:
    return _store(tmp_path)


def _store(location: Path, bucket: int = 0, operator: str = "operator") -> BucketStore:
    return BucketStore(LocalFiles(location / "query" / operator / f"{bucket:05d}"))


def _path(store: BucketStore, name: str) -> Path:
    return Path(store.files.path_of(name))


def _commits(store: BucketStore, count: int) -> tuple[DictState, list[Handle]]:
    state, handles = DictState(), [Handle()]
    for number in range(count):
        state[number] = bytes([number])
        handles.append(store.commit(state, handles[-1]))
    return state, handles[1:]


def _attempt(store: BucketStore, held: Handle) -> str:
    """Let another attempt commit upon `held`; return the name of its file."""
    return links_of(store.commit(DictState({99: b"another attempt"}), held))[-1]


def _garbage(found: BucketSurvey) -> set[str]:
    return {facts.name for facts in found.garbage}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("below", ["", "query", "query/operator", "query/operator/00001"])
def test_a_path_may_be_a_location_or_a_directory_at_any_level_in_it(tmp_path: Path, below: str) -> None:
    for bucket in (0, 1):
        _commits(_store(tmp_path, bucket), 2)
    _commits(_store(tmp_path, 0, "another"), 1)
    (tmp_path / "query" / "operator" / "operator.punit").write_bytes(encode(PUnit("operator", {})))
    (tmp_path / "README").write_text("not state")
    operators = find_operators(open_files(tmp_path / below))
    buckets = {(one.query, one.name): [files.location for files in one.buckets] for one in operators}
    expected = [str(tmp_path / "query" / "operator" / f"{bucket:05d}") for bucket in (0, 1)]
    if below.endswith("00001"):
        del expected[0]
    assert buckets.pop(("query", "operator")) == expected
    assert [one.location for one in operators if one.name == "operator"] == [
        str(tmp_path / "query" / "operator")
    ]
    assert list(buckets) == ([("query", "another")] if below in {"", "query"} else [])


def test_a_path_without_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state" / "0" / "00000").mkdir(parents=True)
    (tmp_path / "state" / "0" / "00000" / "1.delta").write_bytes(b"of Spark")
    _commits(_store(tmp_path / "far" / "too" / "high"), 1)
    for place in (tmp_path, tmp_path / "state", tmp_path / "nothing"):
        with pytest.raises(InvalidUsageError, match=r"there is no state.*Hint: give a state_location"):
            find_operators(open_files(place))


def test_the_parent_of_the_newest_file_is_the_newest_proven_pointer(store: BucketStore) -> None:
    _, handles = _commits(store, 4)
    found = survey_bucket(store.files)
    links = handles[-1].links
    assert found == BucketSurvey(
        location=store.files.location,
        files=4,
        size_bytes=handles[-1].size_bytes,
        newest=(links[3].pointer,),
        proven=links[2].pointer,
        likely=links[3].pointer,
        chain=Chain(1, links[0].size_bytes, 3, sum(link.size_bytes for link in links[1:])),
        versions=(Version(1), Version(2), Version(3)),
        written_us=max(facts.written_us or 0 for facts in store.files.list()),
    )
    assert (found.name, found.garbage_bytes) == ("00000", 0)
    assert likely_pointer(store.files) == links[3].pointer


def test_a_first_version_proves_nothing(store: BucketStore) -> None:
    assert survey_bucket(store.files) == BucketSurvey(location=store.files.location)
    assert likely_pointer(store.files) is None
    _, handles = _commits(store, 1)
    found = survey_bucket(store.files)
    assert (found.proven, found.likely) == (None, handles[0].pointer)
    _attempt(store, Handle())
    found = survey_bucket(store.files)
    assert (len(found.newest), found.proven, found.likely) == (2, None, None)
    assert (found.garbage, found.withheld, found.versions) == ((), None, ())
    assert likely_pointer(store.files) is None


def test_of_several_attempts_the_parent_is_what_is_known(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    names = {_attempt(store, handles[1]), links_of(handles[2])[-1]}
    found = survey_bucket(store.files)
    assert {pointer.file_name for pointer in found.newest} == names
    assert found.proven == found.likely == handles[1].pointer == likely_pointer(store.files)
    assert found.chain is not None
    assert found.chain.deltas == 1
    assert found.garbage == (), "each of them may be committed"


def test_rows_and_waiting_keys_are_what_the_queue_says(store: BucketStore) -> None:
    queue = UpdateQueue(STREAM, Policy.IN_PLACE)
    enqueue(queue, [Update(key, 1, 0) for key in range(5)], 0)
    handle = store.commit(queue, Handle())
    queue.dequeue(2, 1)
    store.commit(queue, handle)
    found = survey_bucket(store.files)
    assert (found.rows, found.waiting) == (5, 3)
    store.commit(queue, handle)
    found = survey_bucket(store.files)
    assert (found.rows, found.waiting) == (5, 5), "what is proven is the version before"


def test_parts_of_snapshots_are_no_versions(store: BucketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DictState, "part", 2)
    later = Later()
    store = BucketStore(store.files, background=later, snapshots=SnapshotRule(max_deltas=3))
    state, handles = _commits(store, 5)
    later.run()
    found = survey_bucket(store.files)
    assert (found.files, found.proven) == (5 + 3 + 1, handles[3].pointer)
    assert found.garbage == (), "the snapshot may yet be adopted"
    assert likely_pointer(store.files) == handles[4].pointer
    handle = store.commit(state, handles[4])
    found = survey_bucket(store.files)
    assert found.chain is not None
    assert (found.chain.base_files, found.chain.deltas) == (3, 1)
    assert found.chain.base_bytes == sum(link.size_bytes for link in handle.links[:3])
    for _ in range(3):
        handle = store.commit(state, handle)
    found = survey_bucket(store.files)
    assert found.garbage == (), "the checkpoint may have been set back"
    assert found.versions == (1, 2, 3, 4, 5, 6, 7, 8)
    assert found.proven is not None
    assert found.proven.version == 8
    # What the snapshot replaced is needed neither for the retained versions nor for the one before these.
    found = survey_bucket(store.files, committed=found.proven)
    assert handles[4].snapshot is not None
    own = handles[4].snapshot.pointer.file_name
    assert _garbage(found) == {*links_of(handles[4]), own}
    assert found.versions == (6, 7, 8)
    less = survey_bucket(store.files, committed=found.proven, retain_versions=3)
    assert (less.garbage, less.versions) == ((), (1, 2, 3, 4, 5, 6, 7, 8))


def test_orphans_and_unfinished_files_are_garbage_once_a_pointer_is_committed(store: BucketStore) -> None:
    _, handles = _commits(store, 7)
    old = {_attempt(store, handles[number]) for number in (0, 2)}
    unfinished = {
        f".{number:012d}-{'0' * 32}.punit.{'1' * 32}.tmp": number < 5 for number in (3, 4, 5, 6, 21)
    }
    for name in unfinished:
        _path(store, name).write_bytes(b"begun")
    new = {_attempt(store, handles[3]), _attempt(store, handles[6])}
    _path(store, "notes.txt").write_bytes(b"of somebody else")
    assert (
        survey_bucket(store.files).garbage
        == survey_bucket(store.files, committed=handles[0].pointer).garbage
        == ()
    )
    found = survey_bucket(store.files, committed=handles[6].pointer)
    assert found.proven == handles[6].pointer
    assert found.files == 7 + 2 + 2 + 5 + 1
    assert found.damage == ()
    expected = old | {f".{number:012d}-{'0' * 32}.punit.{'1' * 32}.tmp" for number in (3, 4)}
    assert _garbage(found) == expected
    before = names_of(store)
    assert {facts.name for facts in delete_garbage(store.files, found)} == expected
    assert names_of(store) == before - expected
    assert new <= names_of(store), "the one of version 5 may be committed, too, and the one of 8 in flight"
    assert survey_bucket(store.files, committed=handles[6].pointer).garbage == ()
    assert list(delete_garbage(store.files, found)) == list(found.garbage), "deleting twice is no error"


def test_who_stops_early_has_deleted_what_was_given(store: BucketStore) -> None:
    _, handles = _commits(store, 7)
    for number in range(3):
        _attempt(store, handles[number])
    found = survey_bucket(store.files, committed=handles[6].pointer)
    assert len(found.garbage) == 3
    first = next(delete_garbage(store.files, found))
    assert _garbage(survey_bucket(store.files, committed=handles[6].pointer)) == _garbage(found) - {
        first.name
    }


def test_of_attempts_that_contradict_each_other_only_the_checkpoint_knows_which_is_committed(
    store: BucketStore,
) -> None:
    _, handles = _commits(store, 3)
    set_back = store.commit(DictState({99: b"set back"}), handles[0])
    on = store.commit(DictState({98: b"and on"}), set_back)
    found = survey_bucket(store.files)
    assert (found.proven, found.likely, found.chain, found.rows) == (None, None, None, None)
    assert (found.garbage, found.withheld) == ((), None)
    assert len(found.newest) == 2
    with pytest.raises(InvalidUsageError, match="Hint: pass the checkpoint"):
        likely_pointer(store.files)
    for committed in (on, handles[2]):
        found = survey_bucket(store.files, committed=committed.pointer)
        assert found.proven == found.likely == committed.pointer
        assert found.versions == (1, 2, 3)
        assert _garbage(found) == set(), "Spark may have both"
    for _ in range(3):
        on = store.commit(DictState(), on)
    found = survey_bucket(store.files, committed=on.pointer)
    assert _garbage(found) == {links_of(handle)[-1] for handle in handles[1:]}


def test_the_newly_committed_version_after_a_checkpoint_was_set_back_stays(store: BucketStore) -> None:
    """The file looks like a lost attempt: it has an older number, and no version follows it."""
    _, handles = _commits(store, 6)
    state = DictState()
    again = store.commit(state, store.load(handles[2].links[-1].pointer, state))
    found = survey_bucket(store.files)
    assert found.proven == handles[4].pointer
    assert (found.garbage, found.withheld) == ((), None)
    found = survey_bucket(store.files, committed=again.pointer)
    assert (found.newest, found.likely) == ((handles[5].pointer,), again.pointer)
    assert _garbage(found) == set()
    for _ in range(5):
        again = store.commit(state, again)
    found = survey_bucket(store.files, committed=again.pointer)
    assert _garbage(found) == {links_of(handle)[-1] for handle in handles[3:]}


def test_what_no_version_needs_that_can_be_loaded_is_garbage_without_the_checkpoint(
    store: BucketStore,
) -> None:
    store = BucketStore(store.files, snapshots=SnapshotRule(max_deltas=3))
    state, handles = _commits(store, 6)
    garbage = {_attempt(store, handles[number]) for number in (0, 2)}
    before = names_of(store)
    store._write_snapshot(Pointer(Version(6), FileId("0" * 32)), state.snapshot())
    garbage |= names_of(store) - before
    assert len(garbage) == 2 + 2, "a snapshot that nothing took has a part and its own file"
    for number in (6, 7):
        name = f".{number:012d}-{'0' * 32}.punit.{'1' * 32}.tmp"
        _path(store, name).write_bytes(b"begun")
        garbage |= {name} if number == 6 else set()
    lost = _attempt(store, handles[5])
    handle = store.commit(state, store.commit(state, handles[5]))
    assert survey_bucket(store.files).garbage == (), "the first version can be loaded"
    for name in handle.releasable_files(RETAIN_VERSIONS):
        store.files.delete(name)
    found = survey_bucket(store.files)
    assert found.versions == (6, 7)
    assert _garbage(found) == garbage
    for _ in delete_garbage(store.files, found):
        pass
    assert survey_bucket(store.files).damage == ()
    assert lost in names_of(store), "it may be what a checkpoint committed that was set back"
    for one in (handles[5], handle):
        assert len(content_of(store, one.links[-1].pointer)) == 6


def test_damage_is_a_finding_and_the_survey_goes_on(store: BucketStore) -> None:
    _, handles = _commits(store, 7)
    orphan = _path(store, _attempt(store, handles[1]))
    newest = _path(store, links_of(handles[6])[-1])
    _flip(orphan)
    found = survey_bucket(store.files)
    assert [damage.file for damage in found.damage] == [str(orphan)]
    assert "checksum" in found.damage[0].fact
    found = survey_bucket(store.files, committed=handles[6].pointer)
    assert [damage.file for damage in found.damage] == [str(orphan)]
    assert _garbage(found) == {orphan.name}
    _flip(newest)
    found = survey_bucket(store.files)
    assert [damage.file for damage in found.damage] == [str(orphan), str(newest)]
    assert found.proven == handles[4].pointer, "version 6, which can be read, proves 5"
    assert found.newest == (handles[5].pointer,)
    with pytest.raises(CorruptDataError, match="checksum"):
        likely_pointer(store.files)


def test_nothing_is_deleted_where_a_sibling_of_a_recent_version_cannot_be_read(store: BucketStore) -> None:
    _, handles = _commits(store, 7)
    orphan, sibling = _attempt(store, handles[0]), _attempt(store, handles[4])
    _flip(_path(store, sibling))
    found = survey_bucket(store.files, committed=handles[6].pointer)
    assert (len(found.damage), found.garbage) == (1, ())
    _path(store, sibling).unlink()
    assert _garbage(survey_bucket(store.files, committed=handles[6].pointer)) == {orphan}


@pytest.mark.parametrize("how", ["flip", "remove", "cut", "empty"])
@pytest.mark.parametrize("version", [1, 3, 4])
def test_nothing_is_deleted_where_damage_hides_what_is_needed(
    store: BucketStore, how: str, version: int
) -> None:
    _, handles = _commits(store, 5)
    orphan = _attempt(store, handles[1])
    path = _path(store, links_of(handles[4])[version - 1])
    if how == "flip":
        _flip(path)
    elif how == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 10 if how == "cut" else 0])
    found = survey_bucket(store.files)
    assert [damage.file for damage in found.damage] == [str(path)]
    assert found.proven == handles[3].pointer
    assert found.garbage == ()
    assert found.withheld == (
        "files are damaged or missing, and only the checkpoint says whether they are needed"
    )
    found = survey_bucket(store.files, committed=handles[3].pointer)
    assert [damage.file for damage in found.damage] == [str(path)]
    assert (found.garbage, found.withheld) == ((), "the committed version, 4, cannot be loaded")
    assert orphan in names_of(store)
    # The orphan follows version 2.
    assert set(found.versions) == set(range(1, version)) | ({3} if version > 2 else set())


def test_leftovers_of_before_a_checkpoint_was_set_back_are_no_damage(store: BucketStore) -> None:
    _, handles = _commits(store, 6)
    state = DictState()
    again = store.load(handles[2].links[-1].pointer, state)
    late = store.commit(DictState(), handles[5])
    for _ in range(7):
        again = store.commit(state, again)
        store.sweep(again)
        found = survey_bucket(store.files, committed=again.pointer)
        assert (found.damage, found.garbage, found.withheld) == ((), (), None)
    assert not set(links_of(late)[3:]) & names_of(store)


def test_a_file_that_does_not_follow_its_parent_is_damaged(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    path = _path(store, links_of(handles[2])[-1])
    unit = decode(path.read_bytes(), path)
    path.write_bytes(encode(PUnit(unit.kind, {**unit.meta, "parent": [1, "0" * 32]}, unit.blocks)))
    found = survey_bucket(store.files)
    assert [damage.file for damage in found.damage] == [str(path)]
    assert found.proven == handles[0].pointer


def test_damage_of_what_all_buckets_share_is_found(tmp_path: Path) -> None:
    _commits(_store(tmp_path), 1)
    path = tmp_path / "query" / "operator" / "operator.punit"
    path.write_bytes(encode(PUnit("operator", {"key": "k"})))
    assert find_operators(open_files(tmp_path))[0].damage == ()
    _flip(path)
    (damage,) = find_operators(open_files(tmp_path))[0].damage
    assert damage.file == str(path)


def test_files_without_parents_prove_nothing(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    for handle in handles:
        path = _path(store, links_of(handle)[-1])
        unit = decode(path.read_bytes(), path)
        meta = {name: value for name, value in unit.meta.items() if name not in {"parent", "base"}}
        path.write_bytes(encode(PUnit(unit.kind, meta, unit.blocks)))
    found = survey_bucket(store.files)
    assert (found.proven, found.garbage, found.withheld) == (None, (), None)
    assert found.likely == handles[2].pointer


class _Running:
    """A query that commits and deletes between any two calls of a survey."""

    def __init__(self, store: BucketStore, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
        self.store = store
        self.state = DictState()
        self.handle = Handle()
        self._steps = self._calls = 0
        self._every, self._busy = every, False
        read, listing = LocalFiles.read, LocalFiles.list

        def slow_read(files: LocalFiles, name: str) -> Content:
            self._go_on()
            return read(files, name)

        def slow_list(files: LocalFiles) -> list[FileFacts]:
            found = listing(files)
            self._go_on()
            return found

        monkeypatch.setattr(LocalFiles, "read", slow_read)
        monkeypatch.setattr(LocalFiles, "list", slow_list)

    def step(self) -> None:
        busy, self._busy = self._busy, True
        self.store.release(self.handle)
        self.store.sweep(self.handle)
        self._steps += 1
        self.state[self._steps % 10] = str(self._steps).encode()
        self.handle = self.store.commit(self.state, self.handle)
        self._busy = busy

    def _go_on(self) -> None:
        if self._busy:
            return
        self._calls += 1
        if self._calls % self._every == 0:
            self.step()


@pytest.mark.parametrize("every", [3, 5, 9, 20])
def test_a_query_that_runs_meanwhile_is_neither_damaged_nor_called_so(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    store = BucketStore(store.files, snapshots=SnapshotRule(max_deltas=3))
    monkeypatch.setattr(DictState, "part", 3)
    running = _Running(store, monkeypatch, every)
    for _ in range(10):
        running.step()
    for _ in range(10):
        found = survey_bucket(store.files)
        assert found.damage == ()
        assert found.withheld is None
        for _ in delete_garbage(store.files, found):
            pass
        fresh = DictState()
        assert running.handle.pointer is not None
        monkeypatch.setattr(running, "_busy", True)
        store.load(running.handle.pointer, fresh)
        assert fresh.content == running.state.content
        monkeypatch.setattr(running, "_busy", False)


def test_a_pointer_is_chosen_while_the_query_runs(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BucketStore(store.files, snapshots=SnapshotRule(max_deltas=3))
    running = _Running(store, monkeypatch, 2)
    for number in range(40):
        running.step()
        pointer = likely_pointer(store.files)
        assert pointer is not None
        assert pointer.version > number


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("retain_versions", [1, 2, 4])
def test_garbage_is_what_the_arrival_of_the_committed_pointer_proves_needless(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, seed: int, retain_versions: int
) -> None:
    history = _History(store, monkeypatch, seed, retain_versions)
    for _ in range(history.draw.randint(1, 30)):
        history.step()
        if history.draw.random() < 0.3:
            history.collect_by_the_checkpoint()
    history.later.run()
    history.collect_by_the_checkpoint()


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("retain_versions", [1, 3])
def test_without_the_checkpoint_it_may_point_at_any_version_that_can_be_loaded(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, seed: int, retain_versions: int
) -> None:
    history = _History(store, monkeypatch, seed, retain_versions)
    for _ in range(history.draw.randint(1, 40)):
        history.step()
        if history.draw.random() < 0.2:
            history.set_back()
        if history.draw.random() < 0.2:
            history.collect_without_the_checkpoint()
    history.go_on_from_everywhere()


class _History:
    """A bucket's attempts, some of which lose; snapshots may come late, and releases may be missing."""

    def __init__(
        self, store: BucketStore, monkeypatch: pytest.MonkeyPatch, seed: int, retain_versions: int
    ) -> None:
        monkeypatch.setattr(DictState, "part", 3)
        self.draw, self.later = random.Random(seed), Later()
        self.store = BucketStore(
            store.files,
            retain_versions=retain_versions,
            background=self.later,
            snapshots=SnapshotRule(max_deltas=3, max_commits=4),
        )
        self.retain_versions = retain_versions
        self.state = DictState()
        self.handles = [Handle()]
        self.contents: dict[Pointer, dict[int, bytes]] = {}
        """Of every attempt."""

    def step(self) -> None:
        """Commit a version, and perhaps others that lose."""
        draw, held = self.draw, self.handles[-1]
        if draw.random() < 0.3:
            self.store.release(held)
        for _ in range(draw.choice([0, 0, 1, 2])):
            self._attempt(DictState, draw.choice(self.handles[-2:]))
        if draw.random() < 0.6:
            self.later.run()
        self.handles.append(self._attempt(lambda: self.state, held))

    def _attempt(self, state: Callable[[], DictState], held: Handle) -> Handle:
        working = state()
        if working is not self.state and held.pointer is not None:
            try:
                held = self.store.load(held.pointer, working)
            except CorruptDataError:  # The version before the committed one need not be retained.
                assert self.retain_versions == 1
                return held
        working[self.draw.randrange(12)] = str(len(self.contents)).encode()
        handle = self.store.commit(working, held)
        assert handle.pointer is not None
        self.contents[handle.pointer] = dict(working.content)
        return handle

    def set_back(self) -> None:
        """Continue from any version that can be loaded, in a new process."""
        pointers = self._loadable()
        self.later.work = []
        self.state = DictState()
        pointer = self.draw.choice(pointers)
        self.handles = [self.store.load(pointer, self.state)]

    def _loadable(self) -> list[Pointer]:
        found = []
        for pointer, content in self.contents.items():
            with contextlib.suppress(CorruptDataError):
                assert content_of(self.store, pointer) == content
                found.append(pointer)
        return found

    def collect_by_the_checkpoint(self) -> None:
        """Check that what is deleted is what the query itself would delete, and nothing that is retained."""
        pointer = self.handles[-1].pointer
        assert pointer is not None
        found = survey_bucket(self.store.files, committed=pointer, retain_versions=self.retain_versions)
        assert (found.damage, found.withheld, found.proven) == ((), None, pointer)
        assert _garbage(found) == set(self.store.garbage(self.store.read_version(pointer)[0]))
        for _ in delete_garbage(self.store.files, found):
            pass
        for handle in self.handles[-self.retain_versions :]:
            if handle.pointer is not None:
                assert content_of(self.store, handle.pointer) == self.contents[handle.pointer]
                assert handle.pointer.version in found.versions

    def collect_without_the_checkpoint(self) -> None:
        """Check that all that could be loaded before can be loaded afterwards."""
        before = self._loadable()
        found = survey_bucket(self.store.files, retain_versions=self.retain_versions)
        for _ in delete_garbage(self.store.files, found):
            pass
        assert self._loadable() == before
        assert found.damage or not survey_bucket(self.store.files).garbage

    def go_on_from_everywhere(self) -> None:
        """Check that each version that can be loaded can be followed by others, whatever they adopt."""
        self.collect_without_the_checkpoint()
        for pointer in self._loadable():
            self.state = DictState()
            handle = self.store.load(pointer, self.state)
            for _ in range(3):
                handle = self._attempt(lambda: self.state, handle)
        self._loadable()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


def test_state_on_s3_is_surveyed_and_swept(server: S3Server) -> None:
    place = open_files(server.uri("prefix/state"))
    with pytest.raises(InvalidUsageError, match="no state"):
        find_operators(place)
    operator: Files = place.child("query").child("operator")
    store = BucketStore(operator.child("00000"))
    _, handles = _commits(store, 5)
    _commits(BucketStore(operator.child("00001")), 1)
    orphan = _attempt(store, handles[0])
    (one,) = find_operators(place)
    assert (one.query, one.name, len(one.buckets)) == ("query", "operator", 2)
    found = survey_bucket(one.buckets[0])
    assert (found.proven, found.garbage) == (handles[3].pointer, ())
    found = survey_bucket(one.buckets[0], committed=handles[4].pointer)
    assert _garbage(found) == {orphan}
    assert SECRET not in found.location
    assert found.location.startswith("s3://")
    assert found.name == "00000"
    assert [facts.name for facts in delete_garbage(one.buckets[0], found)] == [orphan]
    assert names_of(store) == set(links_of(handles[4]))
    (bucket,) = find_operators(one.buckets[1])
    assert (bucket.query, bucket.name) == ("query", "operator")


def test_a_pointer_names_its_file() -> None:
    """Names of other forms are no state: they are never read, and never garbage."""
    pointer = Pointer(Version(7), FileId("a-b"))
    assert number_of(pointer.file_name) == 7
