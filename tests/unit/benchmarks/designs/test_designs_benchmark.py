"""The benchmark of designs runs, and the search is never worse than its peers on the trace that it had."""

import numpy as np
import pytest

from benchmarks.designs import tpce
from benchmarks.designs.design_figures import FIGURES, Options
from benchmarks.designs.design_throughput import DISTRIBUTED, REDIRECT, throughput
from benchmarks.designs.design_workloads import WORKLOADS, skew
from benchmarks.designs.designs import report
from penstock.designing.traces.trace import Mode
from penstock.procedures.programs.oltp import OLTP


def test_each_algorithm_has_a_line_with_its_costs() -> None:
    lines = list(report(20, [4], 60, ["Voter"]))
    rows = [line.split() for line in lines if line.startswith("Voter")]
    assert [row[2] for row in rows] == ["HR+", "HR-", "SCH", "MFA", "PKY"]
    for row in rows:
        assert all(float(value) >= 0 for value in row[3:6])


def test_skewed_requests_of_an_interval_are_of_one_warehouse() -> None:
    setting = WORKLOADS["TPC-C (skewed)"]
    requests = OLTP["tpcc"].requests(setting.scale, 200, 1)
    skewed = skew(requests, setting.scale.warehouses)
    assert skewed.schema == requests.schema
    homes = skewed.column("w_id").to_numpy()
    assert all(len(np.unique(part)) == 1 for part in np.split(homes, 10))
    assert len(np.unique(homes)) == 10
    for before, after in zip(requests.to_pylist(), skewed.to_pylist(), strict=True):
        for name in ("supplies", "items"):
            assert (before[name] is None) == (after[name] is None)
        local = [supply == before["w_id"] for supply in before["supplies"] or ()]
        moved = [supply == after["w_id"] for supply in after["supplies"] or ()]
        assert [is_moved for is_local, is_moved in zip(local, moved, strict=True) if is_local] == [
            True
        ] * sum(local)
        assert (before["c_w_id"] == before["w_id"]) <= (after["c_w_id"] == after["w_id"])


def test_tpce_is_a_trace_of_33_tables_that_is_equal_each_time() -> None:
    one, other = (tpce.trace(tpce.TpceScale(100), 500, 3) for _ in range(2))
    assert len(one.tables) == 33
    assert set(one.procedures) == {*tpce.MIX, "data_maintenance", "trade_cleanup"}
    for name in ("procedure", "transaction", "table", "mode", "values", "known", "routes"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    writing = np.unique(one.transaction[one.mode == Mode.WRITE])
    assert 1 - len(writing) / one.transactions == pytest.approx(0.77, abs=0.05)  # Table A.1


def test_the_throughput_is_that_of_servers_by_hand() -> None:
    first, second = np.uint64(1), np.uint64(2)
    assert throughput(np.array([first, second, first, second]), 2) == 2.0
    assert throughput(np.array([first | second]), 2) == 1 / DISTRIBUTED
    # Both wait for the partition that they share.
    assert throughput(np.array([first, first | second, second]), 2) == 3 / (2 + DISTRIBUTED)
    assert throughput(np.array([first]), 2, np.array([1])) == 1 / (1 + REDIRECT)
    assert throughput(np.array([np.uint64(0)] * 4), 2) == 2.0


@pytest.mark.parametrize("figure", ["known", "4.6", "4.7", "4.10"])
def test_figures_have_a_line_for_a_workload(figure: str) -> None:
    options = Options(60, (4,), 0.05, 1, ("SmallBank",))
    lines = list(FIGURES[figure](options))
    assert any(line.startswith("SmallBank") for line in lines)
    if figure == "known":
        assert lines[-1] == "found in 1 of 1 cases: 100.0%"
