"""A real full disk: files stay, the error is clear, and work continues once there is space."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpointing.files import FileFacts, open_files
from penstock.errors import UnavailableError
from penstock.state_store.bucket_store import BucketStore, Handle
from penstock.state_store.tables.rocksdb_table import RocksdbTable
from tests.checkpoints.states import RowState

SCHEMA = pa.schema([("k", pa.int64()), ("value", pa.binary())])


def _table() -> RowState:
    return RowState(SCHEMA)


def _random_rows(count: int) -> pa.RecordBatch:
    """Return rows that nothing compresses, always with the same keys."""
    values = [os.urandom(40) for _ in range(count)]
    return pa.RecordBatch.from_pydict({"k": list(range(count)), "value": values}, schema=SCHEMA)


@contextlib.contextmanager
def mounted_disk(mounted: Path, size: str) -> Iterator[Path]:
    """Give a file system of its own at `mounted`; skip the test where that cannot be."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system to fill up")
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mounted],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", mounted], check=True)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Fill a file system until the context ends."""
    filler = disk / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(descriptor, bytes(4096)):
            pass
    os.close(descriptor)
    yield
    filler.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of one MiB."""
    with mounted_disk(tmp_path / "disk", "1m") as mounted:
        yield mounted


def test_a_full_disk_is_named_and_harms_no_earlier_file(small_disk: Path) -> None:
    directory = open_files(small_disk / "state")
    before = os.urandom(300_000)
    directory.publish("before", before)
    with pytest.raises(UnavailableError) as caught:
        directory.publish("f", bytes(2_000_000))
    assert str(caught.value.context["file"]) == directory.path_of("f")
    assert caught.value.context["reason"] == "No space left on device"
    assert directory.list() == [FileFacts("before", len(before))]
    assert bytes(directory.read("before")) == before
    directory.publish("f", bytes(300_000))


def test_a_commit_on_a_full_disk_leaves_the_version_before(small_disk: Path) -> None:
    store, table, handle = BucketStore(open_files(small_disk / "state")), _table(), Handle()
    for _ in range(2):
        table.put(_random_rows(5_000))
        handle = store.commit(table, handle)
    before = store.files.list()
    table.put(_random_rows(5_000))
    with filled(small_disk):
        with pytest.raises(UnavailableError, match="No space left on device") as caught:
            store.commit(table, handle)
        assert str(caught.value.context["file"]).startswith(f"{store.files.location}/000000000003-")
        assert store.files.list() == before
    again = _table()
    held = store.load(handle.links[-1].pointer, again)
    assert len(again.content) == 5_000
    again.put(_random_rows(1))
    assert len(store.commit(again, held).links) == 3


def test_a_full_disk_under_a_working_copy_is_named_and_nothing_stays(
    small_disk: Path,
) -> None:
    table = RocksdbTable(SCHEMA, ("k",), scratch=small_disk, memtable_bytes=1 << 16)
    with pytest.raises(UnavailableError, match="No space left on device"):
        for _ in range(1_000):
            table.put(_random_rows(2_000))
    table.close()
    assert list(small_disk.iterdir()) == []
