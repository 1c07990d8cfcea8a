"""The warning about missing state depends on the pointers in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.spark_ext.worker.restart import _has_pointers
from penstock.state_store.bucket_store import Pointer
from tests.checkpoints.stopped_queries import Made, write_checkpoint

pytestmark = pytest.mark.usefixtures("unsynced")


def test_a_checkpoint_whose_buckets_have_state_has_pointers(tmp_path: Path) -> None:
    made = Made(tmp_path)
    assert _has_pointers(str(made.checkpoint), 3)
    for file in (made.checkpoint / "state").rglob("*.delta"):
        file.rename(file.with_suffix(".zip"))  # as Spark's RocksDB state store names its files
    assert _has_pointers(str(made.checkpoint), 3)


def test_a_checkpoint_of_a_run_without_rows_has_none(tmp_path: Path) -> None:
    nothing: list[Mapping[int, Pointer | None]] = [{}, {}]
    write_checkpoint(tmp_path / "checkpoint", nothing, waits=True)
    assert not _has_pointers(str(tmp_path / "checkpoint"), 3)
    assert not _has_pointers(str(tmp_path / "new"), 3)
    assert not _has_pointers(None, 3)
