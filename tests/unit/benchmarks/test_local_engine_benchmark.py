"""The benchmark of the local engine runs, and counts every tuple."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.local_engine import SINKS, first_row_s, latency, step_cpu_ms, sync_designs


@pytest.mark.parametrize("sink", SINKS)
def test_each_tuple_has_a_latency(tmp_path: Path, sink: str) -> None:
    facts = latency(tmp_path, 2_000, 0.1, sink, warm_up_s=0.0)
    assert facts["tuples/s"] > 0
    assert 0 < facts["p50"] <= facts["p95"] <= facts["p99"]


@pytest.mark.long
def test_a_micro_batch_has_a_time_of_the_cpu(tmp_path: Path) -> None:
    thread_ms, process_ms = step_cpu_ms(tmp_path, "pstream", steps=4)
    assert 0 < thread_ms <= process_ms


@pytest.mark.long
def test_a_process_prints_its_first_row(tmp_path: Path) -> None:
    assert 0 < first_row_s(tmp_path) < 120


@pytest.mark.long
def test_micro_batches_are_timed_by_the_way_of_their_syncs() -> None:
    lines = list(sync_designs(steps=3))
    assert [line.split("  micro-batch ")[0].strip() for line in lines] == [
        "each file",
        "all at once",
        "memory",
    ]
    assert ["sink" in line for line in lines] == [True, True, False]
