"""Windows over Parquet files, whose job is killed at random moments, equal those of an undisturbed run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.dataflow.nodes import PushedScan, topological
from penstock.spark_ext.sources.parquet_reader import RANGE
from tests.crash.graphs.parquet_job import SCHEMA, SIZE_S, SLIDE_S, WHERE, graph
from tests.crash.graphs.window_kills import Workload, run_with_kills
from tests.oracles.table3 import Windows, rows_of

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 1)
_ROWS_A_SECOND = 9_000
_GROUP_ROWS = 30_000


def readings(seed: int, seconds: int) -> pa.Table:
    """Return so many rows that most files have several ranges, and these more row groups than one."""
    draw = np.random.default_rng(seed)
    rows = seconds * _ROWS_A_SECOND
    columns: dict[str, Any] = {
        "second": 1_377_986_401 + np.arange(rows) // _ROWS_A_SECOND,
        "house": draw.integers(0, 40, rows),
        "plug": draw.integers(0, 7, rows),
        # Quarters, of which sums are exact.
        "value": draw.integers(0, 400, rows) / 4,
    }
    return pa.table({field.name: pa.array(columns[field.name]).cast(field.type) for field in SCHEMA})


def windows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the windows that are closed, as DuckDB has them."""
    closed = Windows("second * 1000000", SIZE_S, SLIDE_S, f"FROM readings WHERE {WHERE}")
    select = "count(*) AS readings, sum(value) AS load, max(value) AS most, min(plug) AS first"
    return rows_of(closed.sql(f"SELECT start, house, {select} FROM closed GROUP BY ALL"), {"readings": table})


PARQUET = Workload("graphs/parquet_job.py", readings, windows, _GROUP_ROWS)


@pytest.mark.long
def test_every_window_over_files_comes_out_once_and_whole(tmp_path: Path) -> None:
    plan = graph(tmp_path).plan(persist="never")
    assert any(isinstance(node, PushedScan) for node in topological(plan.root)), "Penstock reads the files"
    assert RANGE < 8 * _ROWS_A_SECOND
    print(f"replay: script/crash {_KILLS} {_SEED}")
    run_with_kills(tmp_path, _SEED, _KILLS, workload=PARQUET)
