"""A query that was killed while Spark wrote its first offset starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark_ext.graph_runner import drop_torn_start


@pytest.mark.parametrize("others", [[], ["0"], ["0", "1"]])
def test_only_what_is_left_of_a_first_offset_is_deleted(others: list[str], tmp_path: Path) -> None:
    drop_torn_start(str(tmp_path))  # nothing is there yet
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    torn = [".0.de89336d.tmp", "..0.de89336d.tmp.crc"]
    for name in [*torn, *others]:
        (offsets / name).write_text("v1")
    drop_torn_start(str(tmp_path))
    assert sorted(one.name for one in offsets.iterdir()) == sorted([*torn, *others] if others else [])
