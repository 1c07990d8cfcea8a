"""Facts about a session, from what Spark says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark_ext.border.connection import local_processors


def session_at(master: str) -> Any:
    runtime = SimpleNamespace(availableProcessors=lambda: 6)
    jvm = SimpleNamespace(Runtime=SimpleNamespace(getRuntime=lambda: runtime))
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, _jvm=jvm, defaultParallelism=99))


@pytest.mark.parametrize(
    ("master", "processors"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[12]", 12),
        ("local[*]", 6),
        ("local[ 2, 4 ]", 2),
        ("local[*,3]", 6),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_only_a_local_master_tells_how_many_tasks_run_at_once(master: str, processors: int | None) -> None:
    assert local_processors(session_at(master)) == processors
