"""The kinds of working copies, and what happens to the directories of copies on local disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.options import parse_choice
from penstock.spark_ext.worker.queue_operator import local_directory
from penstock.state_store.tables.rocksdb_table import RocksdbTable
from penstock.state_store.tables.scratch import PREFIX, Scratch
from penstock.state_store.tables.working_copy import WorkingCopy, table_maker

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_KILLED = """
import os, signal, sys
from pathlib import Path
from penstock.state_store.tables.scratch import Scratch
made = Scratch(Path(sys.argv[1]))
(made.path / "file").write_text("content")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(InvalidUsageError, match=r"option=working_copy got=disk known=.*memory.*rocksdb"):
        parse_choice("working_copy", "disk", WorkingCopy)


def test_the_copy_in_memory_has_no_table_and_the_other_lies_where_spark_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table_maker(WorkingCopy.MEMORY) is None
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    maker = table_maker(WorkingCopy.ROCKSDB, local_directory())
    assert maker is not None
    table = maker(SCHEMA, ("k",))
    assert isinstance(table, RocksdbTable)
    assert [path.name.startswith(PREFIX) for path in tmp_path.iterdir()] == [True]
    table.close()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert local_directory() is None


def test_the_directory_of_a_killed_process_goes_when_the_next_is_made(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert result.returncode < 0
    (left,) = tmp_path.iterdir()
    assert (left / "file").exists()
    other, file = tmp_path / "other", tmp_path / f"{PREFIX}file"
    (tmp_path / f"{PREFIX}unfinished").mkdir()  # Its process was killed before it had the lock.
    other.mkdir()
    file.touch()
    one, two = Scratch(tmp_path), Scratch(tmp_path)
    assert {*tmp_path.iterdir()} == {other, file, one.path, two.path}
    assert one.path.stat().st_mode & 0o777 == 0o700
    one.close()
    one.close()
    del two
    assert {*tmp_path.iterdir()} == {other, file}


def test_a_directory_that_is_taken_for_an_abandoned_one_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def taken(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            Path(made[0]).rmdir()  # as another process does that makes its own
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", taken)
    scratch = Scratch(tmp_path)
    assert [str(path) for path in tmp_path.iterdir()] == [str(scratch.path)] == made[1:]


def test_a_forked_child_leaves_its_parents_directory(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    child = os.fork()
    if not child:
        scratch.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert scratch.path.exists()
    scratch.close()
    assert list(tmp_path.iterdir()) == []
