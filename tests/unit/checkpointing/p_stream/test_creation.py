"""Create p-streams in directories that have other files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpointing.files import open_files
from penstock.checkpointing.p_stream import PStream, PStreamWriter, description
from penstock.errors import InvalidUsageError
from tests.servers.s3 import S3Server

SCHEMA = pa.schema({"n": pa.int64()})


def test_no_p_stream_is_created_among_other_files(tmp_path: Path) -> None:
    for name in ("notes.txt", "script.py", "a", "b"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidUsageError) as caught:
        PStreamWriter(tmp_path, SCHEMA)
    assert str(caught.value) == (
        f"the directory has other files, and is not a p-stream: location={tmp_path} "
        "files=a, b, notes.txt, .... Hint: name a new or empty directory."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "notes.txt", "script.py"]


@pytest.mark.parametrize("left", [".p-stream.0123.tmp", ".DS_Store", "lost+found"])
def test_a_killed_creation_and_hidden_files_are_in_no_ones_way(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_text("")
    with PStreamWriter(tmp_path, SCHEMA) as writer:
        writer.append([{"n": 1}])
    assert PStream(tmp_path).end == 1


def test_a_p_stream_that_another_process_creates_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process creates it after this one has not found it, and has already committed rows."""
    describe = description.describe
    place = tmp_path / "stream"

    def create_first(*arguments: object) -> memoryview:
        monkeypatch.undo()
        with PStreamWriter(place, SCHEMA) as writer:
            writer.append([{"n": 1}])
        return describe(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("penstock.checkpointing.p_stream.stream.describe", create_first)
    assert PStream(place, SCHEMA).end == 1


def test_a_prefix_of_other_objects_is_refused_and_an_empty_one_is_not() -> None:
    with S3Server() as s3:
        open_files(s3.uri("mine/notes")).publish("a.txt", b"mine")
        with pytest.raises(InvalidUsageError, match="files=notes"):
            PStream(s3.uri("mine"), SCHEMA)
        assert PStream(s3.uri("mine/stream"), SCHEMA).end == 0
