"""A driver that is killed in the first micro-batch of a p-stream's reader loses no row at its next start."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpointing.p_stream import PStreamWriter
from penstock.spark_ext.border.spark_versions import ReadAllAvailable
from penstock.spark_ext.sources.p_stream_source import PStreamDataSource

pytestmark = pytest.mark.crash

_CALLS = ("open", "write", "fsync", "link", "unlink", "rename", "replace", "mkdir", "listdir", "scandir")
_ROWS = 10


def _append(path: Path) -> None:
    with PStreamWriter(path, pa.schema({"n": pa.int64()}), threads=1) as writer:
        writer.append({"n": range(writer.committed_rows, writer.committed_rows + _ROWS)})


def _first_batch(path: Path, start: str) -> tuple[int, list[int]]:
    """Plan and read the first micro-batch as Spark does; return its first offset, and its rows."""
    source = PStreamDataSource({"path": str(path), "reader": "r", "start": start})
    reader: Any = source.streamReader(source.schema())
    first = reader.initialOffset()
    last = reader.latestOffset(first, ReadAllAvailable())
    batches = [rows for part in reader.partitions(first, last) for rows in reader.read(part)]
    return first["offset"], [n for rows in batches for n in rows.column(0).to_pylist()]


def _killed_at(number: int, run: Callable[[], object]) -> bool:
    """Run in a process that dies before its file operation of this number; say whether it came so far."""
    child = os.fork()
    if child == 0:
        left: Iterator[int] = count()

        def deadly(operation: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if next(left) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*arguments, **options)

            return call

        try:
            for name in _CALLS:
                setattr(os, name, deadly(getattr(os, name)))
            run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "the first micro-batch failed by itself"
    return code != 0


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_kill_at_any_file_operation_of_the_first_micro_batch_loses_no_row(
    tmp_path: Path, start: str
) -> None:
    for number in count():
        path = tmp_path / str(number)
        _append(path)
        died = _killed_at(number, lambda path=path: _first_batch(path, start))  # type: ignore[misc]
        _append(path)
        first, rows = _first_batch(path, start)
        assert rows == list(range(first, 2 * _ROWS))
        # A reader begins where its first start subscribed it, or this one does.
        assert first == 0 if start == "earliest" else first in (_ROWS, 2 * _ROWS)
        if not died:
            break
    assert number > 10
