"""The benchmark that `persist="auto"` takes its rates from runs."""

from __future__ import annotations

import pytest

from benchmarks.p_streams import persist_costs


def test_rates_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    persist_costs.main(["--quick", "--stream", "market"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["compress", "decode", "sync"]
    assert all(float(line.split()[1]) > 0 for line in lines[-3:])
