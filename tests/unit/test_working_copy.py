"""Which working copies there are, and what becomes of the directories of those on local disk."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.arguments import one_of
from penstock.spark_ext.queue_operator import local_directory
from penstock.state_store.rocksdb_table import RocksdbTable
from penstock.state_store.scratch import PREFIX, Scratch
from penstock.state_store.working_copy import WorkingCopy, table_maker

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_KILLED = """
import os, signal, sys
from pathlib import Path
from penstock.state_store.scratch import Scratch
made = Scratch(Path(sys.argv[1]))
(made.path / "file").write_text("content")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_wrong_name_and_a_missing_package_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidUsageError, match=r"option=working_copy got=disk known=.*memory.*rocksdb"):
        one_of("working_copy", "disk", WorkingCopy)
    WorkingCopy.ROCKSDB.check()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    WorkingCopy.MEMORY.check()
    with pytest.raises(InvalidUsageError, match=r"package=rocksdict.*pip install 'penstock\[rocksdb\]'"):
        WorkingCopy.ROCKSDB.check()


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
    unfinished, other = tmp_path / f"{PREFIX}unfinished", tmp_path / "other"
    unfinished.mkdir()  # Its process is about to lock it.
    other.mkdir()
    one, two = Scratch(tmp_path), Scratch(tmp_path)
    assert {*tmp_path.iterdir()} == {unfinished, other, one.path, two.path}
    assert one.path.stat().st_mode & 0o777 == 0o700
    one.close()
    one.close()
    del two
    assert {*tmp_path.iterdir()} == {unfinished, other}
