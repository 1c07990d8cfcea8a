"""The benchmark of recovery runs, and both ways recover what was logged."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.databases.transaction_recovery import report
from penstock.procedures.compiler.program import Program
from tests.transactions.procedures import interpreted


def test_the_benchmark_of_recovery_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Callable[[Program], Callable[..., int]] = cache(interpreted)
    monkeypatch.setattr(Program, "__hash__", lambda self: hash(self.source), raising=False)
    monkeypatch.setattr(Program, "kernel", property(kernels))
    lines = list(report(1, 0, 2, (0, 2)))
    tables = [line.split() for line in lines if line.strip()[:1].isdigit() and "cores" not in line]
    assert [(len(line), line[0]) for line in tables] == [(5, "0"), (5, "2"), (4, "0"), (4, "2")]
    assert all(float(cell.replace(",", "")) > 0 for line in tables for cell in line[1:])
