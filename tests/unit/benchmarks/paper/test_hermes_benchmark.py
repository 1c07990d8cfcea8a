"""The benchmark of speculation runs, and its workloads have the shape that its figures tell."""

from __future__ import annotations

import pytest

from benchmarks.paper.h_store import hermes
from benchmarks.partitions import speculation
from penstock.procedures.programs.oltp.small_bank import SmallBankScale

SMALL = SmallBankScale(customers=300, hot=100)


@pytest.mark.long
def test_speculation_is_faster_than_none_and_rows_let_more_run_than_tables() -> None:
    load = hermes.workload("small_bank", 200, 16, scale=SMALL)
    work = hermes._mix(load, 2_000)
    found = {
        name: hermes.simulate(work, load.single, load.rules, mode, 16, prefetches=prefetches)
        for name, (mode, prefetches) in hermes.CONFIGURATIONS.items()
    }
    assert found["SpecTxn"].per_second > 1.5 * found["None"].per_second
    for with_queries, without in (("SpecQuery", "None"), ("SpecAll", "SpecTxn")):
        assert hermes._mean(found[with_queries].run_us) < hermes._mean(found[without].run_us)
    yields = {}
    for level in ("tables", "rows"):
        measured = hermes.simulate(work, load.single, load.rules, level, 16, counts=True)
        yields[level] = hermes._share(measured.compared), hermes._share(measured.yields)
    assert yields["rows"][0] > 1.2 * yields["tables"][0]
    assert yields["rows"][1] > 1.1 * yields["tables"][1]


def test_hot_transactions_access_the_hot_spot_and_estimates_are_right() -> None:
    (trace, *_) = hermes.traces_of("small_bank", 60, 1.0, SMALL)
    assert max(trace.events.column("id").to_pylist()) < 100
    load = hermes.workload("small_bank", 240, 16, scale=SMALL)
    wrong = [one for one in load.transactions if one.deviates and not one.aborts]
    assert len(wrong) < len(load.transactions) / 5
    assert {len(one.partitions) for one in load.distributed()} == {2}


def test_figure_6_1_has_a_row_for_each_benchmark() -> None:
    lines = list(hermes.figure_1(200, 5, {"small_bank": ("SmallBank", SMALL)}))
    assert lines[3].startswith("SmallBank")
    assert lines[4].startswith("paper")


def test_requests_of_the_benchmark_between_threads_have_the_share_over_both_partitions() -> None:
    requests = speculation.transfers(2_000, 0.1, 0)
    half = speculation.ACCOUNTS // 2
    over = [one for name, one in requests if name == "transfer"]
    assert 150 < len(over) < 250
    assert all(one["source"] < half <= one["target"] for one in over)
    rows = speculation.events(2_000, 0.1, 0).to_pylist()
    assert 150 < sum((row["source"] < half) != (row["target"] < half) for row in rows) < 250
