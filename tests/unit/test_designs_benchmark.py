"""The benchmark of designs runs, and the search is never worse than its peers on the trace that it had."""

import numpy as np

from benchmarks.design_workloads import WORKLOADS, skew
from benchmarks.designs import report
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
