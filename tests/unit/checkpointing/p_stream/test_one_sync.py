"""One sync makes the rows, the plan and the log entry of a local micro-batch durable."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import _durable
from penstock._durable.file_system import FileSystem
from penstock.checkpointing.files import LocalFiles
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.update_log import UpdateLog
from penstock.checkpointing.trace import tracing
from penstock.conf.pipeline import Pipeline
from penstock.errors import ConflictError, CorruptDataError, UnavailableError
from penstock.jobs.pipelines.run import run_to_end
from penstock.spark_ext.sources import p_stream_sink
from tests.fuzz.subjects.power_cuts import run_case
from tests.models.replay import replay

ROWS = pa.table({"k": ["a", "b", "a", "c"], "t": [1, 2, 3, 4]})


def pipeline(place: Path) -> Pipeline:
    with PStreamWriter(place / "in", ROWS.schema, threads=1) as writer:
        writer.append(ROWS)
    return Pipeline.model_validate(
        {
            "engine": "local",
            "source": {"type": "pstream", "path": str(place / "in"), "max_rows_per_trigger": 2},
            "queue": {"key": "k", "time": "t"},
            "sink": {"type": "pstream", "path": str(place / "out")},
            "query": {"trigger": "available_now", "checkpoint": str(place / "checkpoint")},
        }
    )


def sizes(place: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in place.rglob("*") if path.is_file()}


def test_an_entry_gets_its_name_after_a_sync_of_all_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "syncs_all", True)
    job = pipeline(tmp_path)
    synced: list[dict[Path, int]] = []
    entries: list[Path] = []
    query = tmp_path / "checkpoint" / "queries" / "results"
    link, sync = os.link, FileSystem.sync

    def noted_sync(own: FileSystem) -> None:
        sync(own)
        synced.append(sizes(tmp_path))

    monkeypatch.setattr(FileSystem, "sync", noted_sync)

    def checked_link(source: Path, name: Path) -> None:
        if name.parent == tmp_path / "out" / "log":
            batch, durable = len(entries) - 1, synced[-1]
            entries.append(name)
            assert source in durable
            plans = {query / "offsets" / str(batch)} if batch >= 0 else set[Path]()
            commits = {query / "commits" / str(batch - 1)} if batch >= 1 else set[Path]()
            assert plans | commits <= durable.keys()
            segments = sizes(tmp_path / "out" / "segments")
            assert len(segments) == max(batch, 0) + 1
            assert segments.items() <= durable.items()
        link(source, name)

    monkeypatch.setattr(os, "link", checked_link)
    run_to_end(job)
    assert len(entries) == 3, "the begin of the session and two micro-batches"
    assert len(synced) == 3, "one sync for each entry"
    assert PStream(tmp_path / "out").end == 4


def test_a_segment_is_traced_as_persisted_between_its_sync_and_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "syncs_all", True)
    job = pipeline(tmp_path)
    events: list[dict[str, Any]] = []
    sync = FileSystem.sync

    def noted_sync(own: FileSystem) -> None:
        sync(own)
        events.append({"event": "synced"})

    monkeypatch.setattr(FileSystem, "sync", noted_sync)
    with tracing(events.append):
        run_to_end(job)
    steps = [event["event"] for event in events]
    steps = [step for step in steps if step in ("commit", "synced", "persisted", "committed")]
    batch = ["commit", "synced", "persisted", "committed"]
    assert steps == ["commit", "synced", "persisted", "committed", "commit", "synced", "committed", *batch]
    replay(event for event in events if event["event"] in ("commit", "persisted", "committed"))


def test_segments_of_a_compaction_are_synced_on_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "syncs_all", True)
    monkeypatch.setattr(CleanupRule, "allows_compaction", lambda *_: True)
    job = pipeline(tmp_path)
    PStream(tmp_path / "out", ROWS.schema, update_log=UpdateLog(("k",), "t", None, 0))
    synced: list[tuple[str, bool]] = []
    publish = _durable.publish

    def noted(path: Path, *content: Any, sync: Any = None, **options: Any) -> None:
        if path.is_relative_to(tmp_path / "out"):
            synced.append((path.parent.name, sync is not None))
        publish(path, *content, sync=sync, **options)

    monkeypatch.setattr(_durable, "publish", noted)
    run_to_end(job)
    assert PStream(tmp_path / "out").log.compaction is not None
    assert ("segments", False) in synced
    assert ("segments", True) not in synced
    assert ("log", False) not in synced


@pytest.mark.parametrize("reason", ["kind", "checkpoint elsewhere"])
def test_elsewhere_each_file_and_the_checkpoint_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(FileSystem, "syncs_all", reason != "kind")
    if reason != "kind":
        monkeypatch.setattr(FileSystem, "has", lambda *_: False)
    made: list[Any] = []
    monkeypatch.setattr(p_stream_sink, "make_durable", made.append)
    monkeypatch.setattr(_durable, "create", lambda *_, **__: pytest.fail("a file without a sync"))
    run_to_end(pipeline(tmp_path))
    assert len(made) == 2
    assert PStream(tmp_path / "out").end == 4


@pytest.mark.parametrize(
    ("system", "release", "kind", "expected"),
    [
        ("Linux", "6.1.0-13-amd64", "ext4", True),
        ("Linux", "6.1.0-13-amd64", "fuse.sshfs", False),
        ("Linux", "6.1.0-13-amd64", None, False),
        ("Linux", "5.8", "xfs", True),
        ("Linux", "5.4.0", "ext4", False),
        ("Darwin", "23.1.0", "ext4", False),
        ("Linux", "6.1.0", "overlay", False),
    ],
)
def test_only_some_file_systems_sync_all_files_and_report_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, release: str, kind: str, expected: bool
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.release", lambda: release)
    monkeypatch.setattr(FileSystem, "_kind", lambda _: kind)
    assert FileSystem(tmp_path).syncs_all is expected


def test_the_kind_of_a_file_system_is_that_of_its_mount(tmp_path: Path) -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = {line.partition(" - ")[2].split()[0] for line in lines}
    assert FileSystem(tmp_path)._kind() in kinds
    assert FileSystem(Path("/proc"))._kind() == "proc"
    assert FileSystem(tmp_path).has(tmp_path)
    assert not FileSystem(tmp_path).has(Path("/proc"))


def test_a_mount_point_may_have_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path.stat().st_dev
    device = f"{os.major(status)}:{os.minor(status)}".encode()
    mounts = (
        b"21 1 0:99 / /caf\xe9\r\x0b\x1c\xc2\x85end rw shared:1 - tmpfs none rw\n"
        b"22 1 " + device + b" / /data\r\xff rw shared:1 - xfs /dev/sda rw\n"
    )
    monkeypatch.setattr(Path, "read_bytes", lambda _: mounts)
    assert FileSystem(tmp_path)._kind() == "xfs"


def test_without_a_list_of_mounts_each_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.release", lambda: "6.1.0")

    def refuse(path: Path) -> bytes:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert not FileSystem(tmp_path).syncs_all


def test_a_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_durable, "sync_descriptor", refuse)
    files = LocalFiles(tmp_path, sync=FileSystem(tmp_path).sync)
    with pytest.raises(UnavailableError, match="cannot sync a file system"):
        files.publish("entry", b"content")
    assert list(tmp_path.iterdir()) == [], "no name, and no temporary file"


def test_a_late_file_is_whole_private_and_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(tmp_path, late=True)
    files.publish("one", b"some ", b"content")
    assert (tmp_path / "one").read_bytes() == b"some content"
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConflictError):
        files.publish("one", b"other")
    assert (tmp_path / "one").read_bytes() == b"some content"

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(UnavailableError):
        files.publish("two", b"content")
    assert not (tmp_path / "two").exists()


def test_power_cuts_lose_no_row_of_a_micro_batch_with_one_sync(tmp_path: Path) -> None:
    cuts = 0
    for seed in range(6):
        place = tmp_path / str(seed)
        place.mkdir()
        cuts += run_case(place, random.Random(seed), queue=bool(seed % 2), one_sync=True)
    assert cuts >= 6


def test_power_cuts_are_found_where_the_one_sync_does_nothing(tmp_path: Path) -> None:
    found = 0
    for seed in range(6):
        place = tmp_path / str(seed)
        place.mkdir()
        try:
            run_case(place, random.Random(seed), queue=False, one_sync=True, broken=True)
        except CorruptDataError as error:
            found += "segment of the p-stream" in str(error)
        except AssertionError:
            found += 1
    assert found >= 3
