"""The benchmark of speculation runs, and its workloads have the shape that its figures tell."""

from __future__ import annotations

import pytest

from benchmarks.paper import hermes
from penstock.procedures.programs.oltp.small_bank import SmallBankScale


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = ("SmallBank", SmallBankScale(customers=300, hot=100))
    monkeypatch.setattr(hermes, "SCALES", {"small_bank": scale})
    monkeypatch.setattr(hermes, "PAPER_NAMES", ("small_bank",))
    hermes.traces_of.cache_clear()


@pytest.mark.long
@pytest.mark.usefixtures("_small")
def test_speculation_is_faster_than_none_and_rows_let_more_run_than_tables() -> None:
    load = hermes.workload("small_bank", 200, 16)
    work = hermes._some(load.transactions, 100)
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
        looked, kept = map(sum, zip(*measured.yields, strict=True))
        yields[level] = kept / looked
    assert yields["rows"] > 1.2 * yields["tables"]


@pytest.mark.usefixtures("_small")
def test_hot_transactions_access_the_hot_spot_and_estimates_are_right() -> None:
    (trace, *_) = hermes.traces_of("small_bank", 60, 1.0)
    assert max(trace.events.column("id").to_pylist()) < 100
    load = hermes.workload("small_bank", 240, 16)
    wrong = [one for one in load.transactions if one.deviates and not one.aborts]
    assert len(wrong) < len(load.transactions) / 5
    assert {len(one.partitions) for one in load.distributed()} == {2}


@pytest.mark.usefixtures("_small")
def test_figure_6_1_has_a_row_for_each_benchmark() -> None:
    lines = list(hermes.figure_1(200, 5))
    assert lines[3].startswith("SmallBank")
    assert lines[4].startswith("paper")
