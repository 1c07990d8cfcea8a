"""The benchmark of a database's recovery runs, and compares the tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.databases.database_recovery import report
from penstock.procedures.compiler.program import Program
from tests.transactions.procedures import interpreted


def test_the_benchmark_of_recovery_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Callable[[Program], Callable[..., int]] = cache(interpreted)
    monkeypatch.setattr(Program, "__hash__", lambda self: hash(self.source), raising=False)
    monkeypatch.setattr(Program, "kernel", property(kernels))
    lines = [line.split() for line in report(50, (7, 50), accounts=100)]
    assert [line[0] for line in lines if len(line) == 4 and line[0].isdigit()] == ["7", "50"]
