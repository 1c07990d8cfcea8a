"""The packaged OLTP benchmarks by name."""

from __future__ import annotations

from penstock.procedures.programs.oltp.benchmark import OltpBenchmark
from penstock.procedures.programs.oltp.small_bank import SMALL_BANK
from penstock.procedures.programs.oltp.tatp import TATP
from penstock.procedures.programs.oltp.tpcc_data import TPCC_BENCHMARK
from penstock.procedures.programs.oltp.voter import VOTER
from penstock.procedures.programs.oltp.ycsb import YCSB

__all__ = ["OLTP"]

OLTP: dict[str, OltpBenchmark] = {
    benchmark.name: benchmark for benchmark in (TPCC_BENCHMARK, TATP, SMALL_BANK, YCSB, VOTER)
}
"""TPC-C, TATP, SmallBank, YCSB and Voter, by their names."""
