"""What a survey says of a bucket is what the files prove, and garbage collection deletes nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import Content, FileFacts, Files, LocalFiles, open_files
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.key_queue import Policy
from penstock.operators.update_queue import UpdateQueue
from penstock.state_store import bucket_store
from penstock.state_store.bucket_store import BucketStore, FileId, Handle, Pointer, Version
from penstock.state_store.survey import (
    BucketSurvey,
    Chain,
    delete_garbage,
    find_operators,
    likely_pointer,
    survey,
)
from tests.naive import Update
from tests.s3 import SECRET, S3Server
from tests.states import DictState, Later, content_of, links_of, names_of
from tests.streams import STREAM, enqueue


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
    found = survey(store.files)
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
    )
    assert (found.name, found.garbage_bytes) == ("00000", 0)
    assert likely_pointer(store.files) == links[3].pointer


def test_a_first_version_proves_nothing(store: BucketStore) -> None:
    assert survey(store.files) == BucketSurvey(location=store.files.location)
    assert likely_pointer(store.files) is None
    _, handles = _commits(store, 1)
    found = survey(store.files)
    assert (found.proven, found.likely) == (None, handles[0].pointer)
    _attempt(store, Handle())
    found = survey(store.files)
    assert (len(found.newest), found.proven, found.likely) == (2, None, None)
    assert (found.garbage, found.withheld, found.versions) == ((), None, ())
    assert likely_pointer(store.files) is None


def test_of_several_attempts_the_parent_is_what_is_known(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    names = {_attempt(store, handles[1]), links_of(handles[2])[-1]}
    found = survey(store.files)
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
    found = survey(store.files)
    assert (found.rows, found.waiting) == (5, 3)
    store.commit(queue, handle)
    found = survey(store.files)
    assert (found.rows, found.waiting) == (5, 5), "what is proven is the version before"


def test_parts_of_snapshots_are_no_versions(store: BucketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 3)
    monkeypatch.setattr(DictState, "part", 2)
    later = Later()
    store = BucketStore(store.files, background=later)
    state, handles = _commits(store, 5)
    later.run()
    found = survey(store.files)
    assert (found.files, found.proven) == (5 + 3 + 1, handles[3].pointer)
    assert found.garbage == (), "the snapshot may yet be adopted"
    assert likely_pointer(store.files) == handles[4].pointer
    handle = store.commit(state, handles[4])
    found = survey(store.files)
    assert found.chain is not None
    assert (found.chain.base_files, found.chain.deltas) == (3, 1)
    assert found.chain.base_bytes == sum(link.size_bytes for link in handle.links[:3])
    for _ in range(2):
        handle = store.commit(state, handle)
    found = survey(store.files)
    assert found.proven is not None
    assert found.proven.version == 7
    # Version 6 is retained, and what the snapshot replaced is not needed for it.
    assert _garbage(found) == set(links_of(handles[4]))
    assert found.versions == (6, 7)
    assert found.garbage_bytes == handles[4].size_bytes
    assert survey(store.files, retain_versions=3).garbage == ()
    assert survey(store.files, retain_versions=3).versions == (1, 2, 3, 4, 5, 6, 7)


def test_orphans_and_unfinished_files_are_garbage_once_a_newer_pointer_is_proven(store: BucketStore) -> None:
    _, handles = _commits(store, 5)
    old = {_attempt(store, handles[number]) for number in (0, 2)}
    unfinished = {
        f".{number:012d}-{'0' * 32}.punit.{'1' * 32}.tmp": number <= 4 for number in (3, 4, 5, 6, 21)
    }
    for name in unfinished:
        _path(store, name).write_bytes(b"begun")
    new = {_attempt(store, handles[3]), _attempt(store, handles[4])}
    _path(store, "notes.txt").write_bytes(b"of somebody else")
    found = survey(store.files)
    assert found.proven == handles[4].pointer
    assert found.files == 5 + 2 + 2 + 5 + 1
    assert found.damage == ()
    expected = old | {f".{number:012d}-{'0' * 32}.punit.{'1' * 32}.tmp" for number in (3, 4, 5)}
    # Of version 5 an attempt lost, for version 6 names another parent.
    lost = {name for name in new if name.startswith("000000000005")}
    assert _garbage(found) == expected | lost
    before = names_of(store)
    assert {facts.name for facts in delete_garbage(store.files, found)} == expected | lost
    assert names_of(store) == before - expected - lost
    assert survey(store.files).garbage == ()
    assert list(delete_garbage(store.files, found)) == list(found.garbage), "deleting twice is no error"


def test_who_stops_early_has_deleted_what_was_given(store: BucketStore) -> None:
    _, handles = _commits(store, 4)
    for number in range(3):
        _attempt(store, handles[number])
    found = survey(store.files)
    assert len(found.garbage) == 2
    first = next(delete_garbage(store.files, found))
    assert _garbage(survey(store.files)) == _garbage(found) - {first.name}


def test_attempts_that_contradict_each_other_keep_everything(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    orphan = store.commit(DictState({99: b"set back"}), handles[0])
    for number in (1, 2):
        _attempt(store, handles[number])
    assert _garbage(survey(store.files)) != set()
    store.commit(DictState({98: b"and on"}), orphan)
    found = survey(store.files)
    # Below the newest version, where one lineage is longer than the other.
    assert found.proven == handles[2].pointer
    assert found.withheld is not None
    assert "attempts of version 3 follow different ones" in found.withheld
    assert found.garbage == ()
    _path(store, next(name for name in names_of(store) if name.startswith("000000000004"))).unlink()
    found = survey(store.files)
    assert (found.proven, found.likely, found.chain, found.rows) == (None, None, None, None)
    assert found.withheld is not None
    assert len(found.newest) == 3
    with pytest.raises(InvalidUsageError, match="Hint: pass the checkpoint"):
        likely_pointer(store.files)


def test_damage_is_a_finding_and_the_survey_goes_on(store: BucketStore) -> None:
    _, handles = _commits(store, 5)
    orphan = _path(store, _attempt(store, handles[1]))
    newest = _path(store, links_of(handles[4])[-1])
    _flip(orphan)
    found = survey(store.files)
    assert [damage.file for damage in found.damage] == [str(orphan)]
    assert "checksum" in found.damage[0].fact
    assert _garbage(found) == {orphan.name}
    _flip(newest)
    found = survey(store.files)
    assert [damage.file for damage in found.damage] == [str(orphan), str(newest)]
    assert found.proven == handles[2].pointer, "version 4, which can be read, proves 3"
    assert found.newest == (handles[3].pointer,)
    with pytest.raises(CorruptDataError, match="checksum"):
        likely_pointer(store.files)


@pytest.mark.parametrize("how", ["flip", "remove", "cut", "empty"])
@pytest.mark.parametrize("version", [1, 3, 4])
def test_nothing_is_deleted_where_the_proven_version_cannot_be_loaded(
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
    found = survey(store.files)
    assert [damage.file for damage in found.damage] == [str(path)]
    assert found.proven == handles[3].pointer
    assert (found.garbage, found.withheld) == ((), "the newest proven version, 4, cannot be loaded")
    assert orphan in names_of(store)
    # What version 4 keeps is in its header.
    assert found.versions == (() if version == 4 else tuple(range(1, version)))


def test_a_file_that_does_not_follow_its_parent_is_damaged(store: BucketStore) -> None:
    _, handles = _commits(store, 3)
    path = _path(store, links_of(handles[2])[-1])
    unit = decode(path.read_bytes(), path)
    path.write_bytes(encode(PUnit(unit.kind, {**unit.meta, "parent": [1, "0" * 32]}, unit.blocks)))
    found = survey(store.files)
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
    found = survey(store.files)
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
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 3)
    monkeypatch.setattr(DictState, "part", 3)
    running = _Running(store, monkeypatch, every)
    for _ in range(10):
        running.step()
    for _ in range(10):
        found = survey(store.files)
        assert found.damage == ()
        assert found.withheld is None or "cannot be loaded" in found.withheld
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
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 3)
    running = _Running(store, monkeypatch, 2)
    for number in range(40):
        running.step()
        pointer = likely_pointer(store.files)
        assert pointer is not None
        assert pointer.version > number


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("retain_versions", [1, 2, 4])
def test_garbage_is_what_the_arrival_of_the_proven_pointer_proves_needless(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, seed: int, retain_versions: int
) -> None:
    monkeypatch.setattr(bucket_store, "_LONGEST_CHAIN", 3)
    monkeypatch.setattr(bucket_store, "_SNAPSHOT_COMMITS", 4)
    monkeypatch.setattr(DictState, "part", 3)
    draw, later = random.Random(seed), Later()
    store = BucketStore(store.files, retain_versions=retain_versions, background=later)
    state, handles = DictState(), [Handle()]
    contents: list[dict[int, bytes]] = [{}]
    for number in range(draw.randint(1, 30)):
        if draw.random() < 0.3:
            store.release(handles[-1])
        for _ in range(draw.choice([0, 0, 1, 2])):
            _attempt(store, draw.choice(handles[-2:]))
        if draw.random() < 0.6:
            later.run()
        state[draw.randrange(12)] = bytes([number])
        handles.append(store.commit(state, handles[-1]))
        contents.append(dict(state.content))
        if draw.random() < 0.3:
            _collect_and_check(store, handles, contents, retain_versions)
    later.run()
    _collect_and_check(store, handles, contents, retain_versions)


def _collect_and_check(
    store: BucketStore, handles: list[Handle], contents: list[dict[int, bytes]], retain_versions: int
) -> None:
    found = survey(store.files, retain_versions=retain_versions)
    assert found.damage == ()
    assert found.withheld is None
    # An attempt upon the newest version may have proven it.
    assert found.proven in {handles[-1].pointer, handles[-2].pointer}
    if found.proven is not None:
        assert _garbage(found) == set(store.garbage(store.look(found.proven)[0]))
    for _ in delete_garbage(store.files, found):
        pass
    newest = found.proven.version if found.proven else 0
    for version in range(max(newest - retain_versions + 1, 1), len(handles)):
        pointer = handles[version].pointer
        assert pointer is not None
        assert content_of(store, pointer) == contents[version]
        assert pointer.version > newest or pointer.version in found.versions


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
    _, handles = _commits(store, 4)
    _commits(BucketStore(operator.child("00001")), 1)
    orphan = _attempt(store, handles[0])
    (one,) = find_operators(place)
    assert (one.query, one.name, len(one.buckets)) == ("query", "operator", 2)
    found = survey(one.buckets[0])
    assert found.proven == handles[2].pointer
    assert _garbage(found) == {orphan}
    assert SECRET not in found.location
    assert found.location.startswith("s3://")
    assert found.name == "00000"
    assert [facts.name for facts in delete_garbage(one.buckets[0], found)] == [orphan]
    assert names_of(store) == set(links_of(handles[3]))
    (bucket,) = find_operators(one.buckets[1])
    assert (bucket.query, bucket.name) == ("query", "operator")


def test_a_pointer_names_its_file() -> None:
    """Names of other forms are no state: they are never read, and never garbage."""
    pointer = Pointer(Version(7), FileId("a-b"))
    assert bucket_store.number_of(pointer.file_name) == 7
