"""A checkpoint of Spark's is made durable, and repaired after a power cut."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from typer.testing import CliRunner

from penstock import _durable
from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter, Segment, Unit
from penstock.checkpointing.releases import Releases
from penstock.checkpointing.spark_checkpoint import (
    Repair,
    local_path,
    make_durable,
    plan_of,
    repair_checkpoint,
)
from penstock.cli import app
from penstock.errors import CorruptDataError, PenstockError
from penstock.spark_ext.sources import p_stream_sink
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import DESCRIPTORS, SegmentRows
from penstock.spark_ext.sources.p_stream_source import PStreamDataSource
from tests.fuzz.subjects.power_cuts import run_case


def write(path: Path, content: bytes, *, sums: bool = True) -> None:
    """Write a file as Hadoop's local file system does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if sums:
        parts = [zlib.crc32(content[at : at + 512]) for at in range(0, len(content), 512)]
        sums_of(path).write_bytes(b"crc\0" + struct.pack(f">i{len(parts)}I", 512, *parts))


def sums_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def offsets(place: Path, *batches: int, files: int | None = None) -> None:
    """Plan micro-batches; with `files` of a source of files, each with that many more."""
    for batch in batches:
        found = {"offset": 10 * batch, "identity": "x"} if files is None else {"logOffset": files + batch}
        write(place / "offsets" / str(batch), f"v1\n{{}}\n{json.dumps(found)}".encode())


def commits(place: Path, *batches: int) -> None:
    for batch in batches:
        write(place / "commits" / str(batch), b'v1\n{"nextBatchWatermarkMs":0}')


def state(place: Path, *versions: int, kind: str = "delta", part: str = "0/0") -> None:
    for version in versions:
        write(place / "state" / part / f"{version}.{kind}", bytes([version]) * 2000)


def tear(*paths: Path) -> None:
    """Empty files as a power cut does; their names stay."""
    for path in paths:
        path.write_bytes(b"")
        if sums_of(path).exists():
            sums_of(path).write_bytes(b"")


def names(place: Path) -> set[str]:
    paths = (path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(place)) for path in paths}


def made(place: Path, planned: int, committed: int, versions: int = 0) -> Path:
    """Make a checkpoint with these micro-batches."""
    write(place / "metadata", b'{"id":"x"}')
    offsets(place, *range(planned + 1))
    commits(place, *range(committed + 1))
    state(place, *range(1, versions + 1))
    return place


def repaired(place: Path) -> Repair:
    """Repair a checkpoint twice, each time after a dry run. The second repair has nothing to do."""
    before = names(place)
    found = repair_checkpoint(place)
    assert names(place) == before
    assert repair_checkpoint(place, dry_run=False) == found
    left = {path for path in place.rglob("*") if path.is_file()}
    assert not left & {Path(file) for file in found.files}
    assert repair_checkpoint(place) == Repair()
    return found


def test_a_whole_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    assert repair_checkpoint(tmp_path / "none", dry_run=False) == Repair()
    place = made(tmp_path / "checkpoint", 3, 2, 4)
    state(place, 2, kind="snapshot")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert repair_checkpoint(place, dry_run=False) == Repair()
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_the_newest_whole_batch_is_run_again(tmp_path: Path) -> None:
    place = made(tmp_path, 4, 3, 5)
    tear(place / "offsets/4", place / "commits/3", place / "state/0/0/5.delta", place / "state/0/0/4.delta")
    assert repaired(place).batch == 3
    assert {f"offsets/{n}" for n in range(4)} | {f"commits/{n}" for n in range(3)} <= names(place)
    assert max(int(path.stem) for path in (place / "state/0/0").glob("*.delta")) == 3


def test_a_committed_batch_is_not_run_again_where_the_next_is_torn(tmp_path: Path) -> None:
    place = made(tmp_path, 4, 3, 4)
    tear(place / "offsets/4")
    assert repaired(place).batch == 3
    assert "commits/3" in names(place)


def test_a_planned_batch_stays_planned_where_what_it_leaves_is_torn(tmp_path: Path) -> None:
    place = made(tmp_path, 3, 3, 4)
    tear(place / "commits/3", place / "state/0/0/4.delta")
    assert repaired(place).batch == 3
    assert "offsets/3" in names(place)
    assert "commits/3" not in names(place)


@pytest.mark.parametrize("cut", [0, 1, 700, 1999])
def test_a_state_file_that_is_cut_or_changed_is_torn(tmp_path: Path, cut: int) -> None:
    place = made(tmp_path, 3, 2, 3)
    delta = place / "state/0/0/3.delta"
    delta.write_bytes(delta.read_bytes()[:cut])
    assert repaired(place).batch == 2
    state(place, 3)
    commits(place, 2)
    delta.write_bytes(delta.read_bytes()[:-1] + b"!")
    assert repaired(place).batch == 2


def test_a_torn_snapshot_costs_nothing_where_its_delta_is_whole(tmp_path: Path) -> None:
    place = made(tmp_path, 3, 3, 4)
    state(place, 2, 4, kind="snapshot")
    tear(place / "state/0/0/2.snapshot", place / "state/0/0/4.snapshot")
    assert repaired(place).batch == 3
    assert "commits/3" in names(place)
    assert not list(place.rglob("*.snapshot"))


def test_sources_of_files_forget_what_no_plan_has_that_is_kept(tmp_path: Path) -> None:
    place = tmp_path
    write(place / "metadata", b"{}")
    offsets(place, 0, 1, 2, files=3)
    commits(place, 0, 1)
    for number in range(7):
        write(
            place / "sources/0" / (f"{number}.compact" if number == 4 else str(number)), b'v1\n{"path":"f"}'
        )
    tear(place / "sources/0/5")
    assert repaired(place).batch == 1
    assert {path.name for path in (place / "sources/0").glob("[0-9]*")} == {"0", "1", "2", "3", "4.compact"}


def test_a_query_none_of_whose_batches_is_whole_begins_anew(tmp_path: Path) -> None:
    place = made(tmp_path, 1, 0, 1)
    write(place / "state/0/_metadata/metadata", b"v1\n{}")
    tear(*(place / "offsets").glob("[01]"), place / "metadata", place / "state/0/_metadata/metadata")
    assert repaired(place).batch is None
    assert not names(place)


def test_a_query_that_cannot_begin_anew_says_so(tmp_path: Path) -> None:
    place = made(tmp_path, 5, 4)
    for log in ("offsets/0", "commits/0"):
        (place / log).unlink()
    tear(*(place / "offsets").glob("[0-9]"))
    with pytest.raises(CorruptDataError, match=r"no micro-batch of the checkpoint is whole.*Hint: restore"):
        repair_checkpoint(place, dry_run=False)
    tear(place / "metadata")
    offsets(place, 4, 5)
    with pytest.raises(CorruptDataError, match="no micro-batch"):
        repair_checkpoint(place, dry_run=False)


@pytest.mark.parametrize("batches", [[], ["0"], ["0", "1"]])
def test_what_is_left_of_a_first_offset_is_dropped(batches: Iterable[str], tmp_path: Path) -> None:
    torn = [".0.de89336d.tmp", "..0.de89336d.tmp.crc"]
    offsets(tmp_path, *map(int, batches))
    for name in torn:
        write(tmp_path / "offsets" / name, b"v1", sums=False)
    repair_checkpoint(tmp_path, dry_run=False)
    left = {path.name for path in (tmp_path / "offsets").iterdir()}
    assert left >= set(batches)
    assert left.isdisjoint(torn) == (not batches)


@pytest.mark.parametrize("last", [b"-", b'{"offset": 3, "identity": "x"}', b"7"])
def test_logs_without_checksums_are_judged_by_their_last_line(tmp_path: Path, last: bytes) -> None:
    write(tmp_path / "offsets/0", b"v1\n{}\n" + last, sums=False)
    assert repair_checkpoint(tmp_path) == Repair()
    write(tmp_path / "offsets/0", b'v1\n{"batchWatermarkMs":0,"conf', sums=False)
    assert repair_checkpoint(tmp_path).files


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the synced paths; nothing is really synced."""
    calls: list[str] = []
    file_system = _durable.sync_file_system

    def sync(path: Path) -> None:
        file_system(path)
        calls.append(str(path))

    monkeypatch.setattr(_durable, "sync_file_system", sync)
    monkeypatch.setattr(_durable, "sync_everything", lambda: calls.append("everything"))
    return calls


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b"])
def test_a_uri_names_the_directory_that_spark_makes(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / ".0.tmp").touch()
    for uri in (f"file:{place}", f"file://{place}"):
        assert local_path(uri) == place
        assert repair_checkpoint(uri).files == (str(place / "offsets" / ".0.tmp"),)


def test_a_checkpoint_is_synced_where_it_lies(tmp_path: Path, synced: list[str]) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    for location in (str(place), f"file:{place}", f"FILE://{place}"):
        make_durable(location)
    make_durable("s3a://bucket/checkpoint")
    make_durable("hdfs://name/checkpoint")
    assert synced == [str(place)] * 3
    make_durable(None)
    make_durable(str(tmp_path / "elsewhere"))
    assert synced[3:] == ["everything"] * 2


def test_a_micro_batch_is_committed_after_a_sync_and_another_of_its_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, place, known = tmp_path / "stream", tmp_path / "checkpoint", list[int]()
    PStream(stream, pa.schema({"n": pa.int64()}))
    monkeypatch.setattr(_durable, "sync_file_system", lambda _: known.append(PStream(stream).end))
    source = PStreamDataSource({"path": str(stream), "checkpointLocation": str(place)})
    writer = source.streamWriter(StructType([StructField("n", LongType())]), overwrite=False)

    def commit(batch: int) -> None:
        written = p_stream_sink._Written("q", "q", batch, 0, (Segment(f"s{batch}", (Unit(0, 10, 5),)),))
        writer.commit([written], batch)

    offsets(place, 0, 1)
    commit(0)
    commit(1)
    commit(1)
    assert (known, PStream(stream).end) == ([0, 5], 10), "one that runs again is dropped"
    for number in (0, 1):
        with pytest.raises(CorruptDataError, match=rf"older than .* batch={number} newest_batch=1"):
            write(place / "offsets/1", b"v1\n{}\n7")
            commit(number)
    log = PStream(stream).log
    log._started_at = -1000
    log.shorten()
    assert PStream(stream).log.writers["q"] == log.writers["q"], "a start has the plan, too"


@pytest.mark.parametrize("changed", [None, "value", "order"])
def test_transactions_that_run_again_have_the_results_that_are_in_the_p_stream(
    tmp_path: Path, changed: str | None, synced: list[str]
) -> None:
    stream, place = tmp_path / "stream", tmp_path / "checkpoint"
    offsets(place, 0)
    opened = PStream(stream, pa.schema({"n": pa.float64()}))
    rows = SegmentRows(WriteOptions.parse({"path": str(stream)}), opened)
    given = {"path": str(stream), "checkpointLocation": str(place), "descriptors": "true"}
    source = PStreamDataSource(given | {"deterministic": "true"})
    writer = source.streamWriter(DESCRIPTORS, overwrite=False)

    def commit(*values: float | None) -> None:
        segments = rows.write([pa.record_batch({"n": pa.array(values, pa.float64())})], "q", 0, 0)
        writer.commit([p_stream_sink._Written("q", "q", 0, 0, segments)], 0)

    commit(1.0, None, float("nan"))
    if changed is None:
        commit(1.0, None, float("nan"))
    else:
        with pytest.raises(CorruptDataError, match=r"runs again differ from those in the p-stream.* batch=0"):
            commit(*((1.5, None, float("nan")) if changed == "value" else (None, 1.0, float("nan"))))
    assert str(PStreamReader(stream).read()["n"].to_pylist()) == "[1.0, None, nan]"
    assert synced


def test_a_batch_job_with_a_number_is_committed_after_a_sync(tmp_path: Path, synced: list[str]) -> None:
    for number, options in enumerate(({}, {"writer": "w", "batch": "3"})):
        source = PStreamDataSource({"path": str(tmp_path / "stream"), **options})
        source.writer(StructType([StructField("n", LongType())]), overwrite=False).commit([])
        assert synced == ["everything"] * number


def test_a_plan_is_told_from_another_of_the_same_number(tmp_path: Path) -> None:
    offsets(tmp_path, 0, 1)
    first = plan_of(f"file://{tmp_path}", 1)
    assert first == plan_of(str(tmp_path), 1) != plan_of(str(tmp_path), 0)
    write(tmp_path / "offsets/1", b"v1\n{}\n-")
    assert first != plan_of(str(tmp_path), 1)
    assert plan_of(str(tmp_path), 2) is plan_of(None, 0) is plan_of("s3a://bucket/checkpoint", 0) is None


def test_releases_wait_for_a_sync_that_has_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time_s, done = [0.0], list[str]()

    def sync() -> None:
        done.append("sync")
        time_s[0] += 0.5

    monkeypatch.setattr(_durable, "sync_everything", sync)
    releases = Releases(lambda: time_s[0])
    assert not releases.run()
    releases.add("a", lambda: done.append("old"))
    releases.add("a", lambda: done.append("a"))
    releases.add("b", lambda: done.append("b"))
    assert releases.run()
    assert done == ["sync", "a", "b"]
    releases.add("a", lambda: done.append("a again"))
    time_s[0] = 9.9
    assert not releases.run()
    time_s[0] = 10.0
    assert releases.run()
    releases.add("b", lambda: done.append("b again"))
    assert releases.run(now=True)
    assert done == ["sync", "a", "b", "sync", "a again", "sync", "b again"]


def test_the_command_says_what_it_deletes(tmp_path: Path) -> None:
    place, runner = made(tmp_path, 3, 2), CliRunner()
    assert "no file is torn" in runner.invoke(app, ["repair", str(place)]).output
    tear(place / "offsets/3")
    looked = runner.invoke(app, ["repair", str(place), "--dry-run"])
    assert str(place / "offsets/3") in looked.output
    assert "would delete 2 torn files; the query continues with or after micro-batch 2" in looked.output
    assert (place / "offsets/3").exists()
    done = runner.invoke(app, ["repair", str(place)])
    assert done.exit_code == 0
    assert "deleted 2 torn files" in done.output
    assert not (place / "offsets/3").exists()


def test_a_reader_releases_micro_batches_in_bulk_each_time_after_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PStreamWriter(tmp_path, pa.schema({"n": pa.int64()}), threads=1) as writer:
        writer.append(pa.table({"n": range(100)}))
    view, released = PStream(tmp_path), list[tuple[str, int]]()

    def note(what: str) -> None:
        view.refresh()
        released.append((what, view.readers()["query"]))

    monkeypatch.setattr(_durable, "sync_everything", lambda: note("before"))
    source = PStreamDataSource({"path": str(tmp_path), "reader": "query"})
    reader = source.streamReader(source.schema())
    vars(reader)["_releases"] = Releases(clock=lambda: 0.0)  # no sync takes time
    start = reader.initialOffset()
    pickle.dumps(reader)
    for row in range(1, 18):
        reader.commit({**start, "offset": row})
        if row in {1, 16, 17}:
            note("after")
    assert released == [("before", 0), ("after", 1), ("after", 1), ("before", 1), ("after", 17)]
    pickle.dumps(reader)  # with something pending or not
    reader.commit({**start, "offset": 18})
    pickle.dumps(reader)


def test_power_cuts_are_found_where_nothing_is_synced(tmp_path: Path) -> None:
    """The model of the random tests must detect errors in the protocol."""
    for queue in (False, True):
        for seed in range(20):
            place = tmp_path / f"{queue}-{seed}"
            place.mkdir()
            with contextlib.suppress(PenstockError, ValueError, OSError):  # what is at least told
                try:
                    run_case(place, random.Random(seed), queue=queue, broken=True)
                except AssertionError:
                    break
        else:
            pytest.fail("no rows were lost, and none came twice")
