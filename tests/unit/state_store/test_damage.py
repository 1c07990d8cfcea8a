"""Every flipped byte and every cut of a small store's files: an error that names it, or the right data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpointing.files import LocalFiles
from penstock.errors import CorruptDataError
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from penstock.state_store.snapshot_rule import SnapshotRule
from tests.checkpoints.states import RowState
from tests.long_tests import long_but

_LOOKS = 5
"""Of so many damages one is looked for without a load, too."""

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int16()))])


def _rows(*keys: int) -> pa.RecordBatch:
    rows = [{"k": key, "text": f"text {key}" if key % 2 else None, "list": [key]} for key in keys]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _content(table: RowState) -> list[Any]:
    return [table.content[key] for key in sorted(table.content)]


@pytest.fixture
def stored(tmp_path: Path) -> tuple[BucketStore, Handle, list[Any]]:
    """Give a store whose chain has a snapshot and two deltas, one with tombstones."""
    files, table, handle = LocalFiles(tmp_path), RowState(SCHEMA), Handle()
    store = BucketStore(files, snapshots=SnapshotRule(max_deltas=0))
    for keys in ([1, 2, 3, 4], [5]):
        table.put(_rows(*keys))
        handle = store.commit(table, handle)
    store = BucketStore(files)
    for keys in ([6, 1], [7]):
        table.put(_rows(*keys))
        table.delete([2, keys[0] - 1])
        handle = store.commit(table, handle)
    assert (handle.base, len(handle.links)) == (1, 3)
    return store, handle, _content(table)


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


def _cut(content: bytes, at: int) -> bytes:
    return content[:at]


def _longer(content: bytes, at: int) -> bytes:
    return content[:at] + b"\0" + content[at:]


@pytest.mark.parametrize("damage", long_but([_flipped, _cut, _longer], _flipped))
def test_no_damage_of_any_byte_gives_wrong_data(
    stored: tuple[BucketStore, Handle, list[Any]], damage: Callable[[bytes, int], bytes]
) -> None:
    store, handle, expected = stored
    pointer: Pointer = handle.links[-1].pointer
    found = 0
    for link in handle.links:
        path = Path(store.files.path_of(link.pointer.file_name))
        content = path.read_bytes()
        for at in range(len(content)):
            path.write_bytes(damage(content, at))
            table = RowState(SCHEMA)
            said = None
            try:
                store.load(pointer, table)
            except CorruptDataError as error:
                found += error.context["file"] == str(path)
                said = str(error)
            if at % _LOOKS == 0:
                before_load = _said(store.find, pointer)
                assert before_load in {None, said}, "a load goes well, or says something else"
                assert damage is _flipped or before_load == said, "of a wrong length"
            if said is None:
                assert _content(table) == expected, f"{path.name} at {at}"
        path.write_bytes(content)
    assert found == sum(link.size_bytes for link in handle.links), "each is found, and the file named"


def test_what_is_missing_is_found_without_a_load(stored: tuple[BucketStore, Handle, list[Any]]) -> None:
    store, handle, _ = stored
    pointer: Pointer = handle.links[-1].pointer
    assert store.find(pointer).links == handle.links
    for link in handle.links:
        path = Path(store.files.path_of(link.pointer.file_name))
        content = path.read_bytes()
        path.unlink()
        said = _said(store.find, pointer)
        assert said == _said(store.load, pointer, RowState(SCHEMA))
        assert said is not None
        assert f"a state file is missing: file={path}" in said
        path.write_bytes(content)


def _said(call: Callable[..., object], *arguments: object) -> str | None:
    try:
        call(*arguments)
    except CorruptDataError as error:
        return str(error)
    return None


def test_what_is_whole_is_found_without_reading_more_than_one_header(
    stored: tuple[BucketStore, Handle, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, handle, _ = stored
    read: list[tuple[str, int]] = []
    plain = LocalFiles.read_range

    def counted(files: LocalFiles, name: str, at: int, size: int) -> Any:
        read.append((name, size))
        return plain(files, name, at, size)

    monkeypatch.setattr(LocalFiles, "read_range", counted)
    monkeypatch.delattr(LocalFiles, "read")
    pointer: Pointer = handle.links[-1].pointer
    store.find(pointer)
    assert read == [(pointer.file_name, 1 << 14)]
