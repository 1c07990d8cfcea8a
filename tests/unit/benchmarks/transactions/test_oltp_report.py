"""The benchmark of OLTP runs, and its peers give Penstock's results and tables."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.oltp import designs
from benchmarks.oltp.__main__ import check_peers, report
from penstock.procedures.in_process.write_ahead_log import WriteAheadLog
from penstock.procedures.programs.oltp import OLTP
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from penstock.procedures.programs.oltp.ycsb import YcsbScale
from tests.transactions.procedures import interpreted

_SCALES: dict[str, tuple[Any, ...]] = {
    "tpcc": (TpccScale(warehouses=2, districts=2, customers=12, items=40),),
    "small_bank": (OLTP["small_bank"].small,),
    "tatp": (OLTP["tatp"].small,),
    "voter": (OLTP["voter"].small,),
    "ycsb": (OLTP["ycsb"].small, YcsbScale(records=40, workload="e")),
}


@pytest.fixture(autouse=True)
def kernels_without_the_compiler() -> Iterator[None]:
    """Let Python run the kernels, since machine code takes a minute to make."""
    programs = [OLTP[name].procedure.program() for name in _SCALES]
    for program in programs:
        program.__dict__["kernel"] = interpreted(program)
    yield
    for program in programs:
        del program.__dict__["kernel"]


def check(name: str, peer: str, count: int) -> None:
    benchmark = OLTP[name]
    for scale in _SCALES[name]:
        assert len(check_peers(benchmark, scale, benchmark.requests(scale, count, 7), [peer])) == 1


@pytest.mark.parametrize("name", _SCALES)
def test_sqlite_has_penstock_s_results_and_tables(name: str) -> None:
    check(name, "sqlite", 200)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "voter" else pytest.mark.long) for name in _SCALES]
)
def test_duckdb_has_penstock_s_results_and_tables(name: str) -> None:
    check(name, "duckdb", 30 if name == "voter" else 200)


@pytest.mark.long
@pytest.mark.parametrize("name", _SCALES)
def test_postgres_has_penstock_s_results_and_tables(name: str) -> None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin")):
        pytest.skip("PostgreSQL is not installed")
    check(name, "postgres", 500)


def test_the_benchmark_has_a_row_for_each_way_and_rate() -> None:
    lines = list(report(["small_bank"], 40, [500], 0.05, ["sqlite"], quick=True))
    rows = {line.rpartition("  ")[0][:28].strip() or line: line for line in lines}
    for way in ("in memory", "log, 1ms", "log, 10ms", "SQLite, 1 a commit", "SQLite, 100 a commit"):
        assert any(line.startswith(way) for line in rows.values()), way
    latencies = [line.split() for line in lines if line.startswith(("1ms ", "10ms "))]
    assert len(latencies) == 2
    for _, rate, *percentiles, answers in latencies:
        p50, p95, p99 = map(float, percentiles)
        assert rate == "500"
        assert 0 < p50 <= p95 <= p99
        assert float(answers.replace(",", "")) > 0
    assert "equal results and tables: Penstock, SQLite" in lines


def test_designs_run_in_turns_and_leave_no_trace() -> None:
    lines = list(designs.report("small_bank", 500, 0.05, 2, "1ms", quick=True))
    begin = next(number for number, line in enumerate(lines) if line.startswith("median")) + 1
    for design, line in zip(designs.DESIGNS, lines[begin:], strict=False):
        assert line.startswith(design)
        p50, p95, p99, *each = line[28:].replace(",", "").split()
        assert 0 < float(p50) <= float(p95) <= float(p99)
        assert min(map(float, each)) <= float(p99) <= max(map(float, each))
        assert len(each) == 2
    for line in lines[begin + len(designs.DESIGNS) + 1 :]:
        assert float(line.split()[-1]) > 0
    assert lines[-1].startswith("filled, beside publishing")
    assert sys.getswitchinterval() == 0.005
    assert gc.get_freeze_count() == 0
    assert WriteAheadLog.bytes_before_room == 128 << 10
