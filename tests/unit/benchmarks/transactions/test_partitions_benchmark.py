"""The benchmarks of partitions compare their contenders' tables, so that they cannot rot."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from benchmarks.paper.h_store import __main__ as h_store
from benchmarks.paper.h_store.voter import SHOW
from benchmarks.partitions import partitions
from benchmarks.partitions.partitions import SHARES, oltp_lines, report
from penstock.procedures.compiler.program import Program
from penstock.procedures.programs.oltp import OLTP
from tests.transactions.procedures import interpreted

SMALL_BANK = OLTP["small_bank"]


@pytest.fixture
def kernels_without_the_compiler() -> Iterator[None]:
    """Let Python run the kernels, since machine code takes long to make."""
    programs = [SMALL_BANK.procedure.program(), SHOW.procedures["vote"].program()]
    programs += [one.route for one in programs if isinstance(one, Program) and one.route is not None]
    for program in programs:
        program.__dict__["kernel"] = interpreted(program)
    yield
    for program in programs:
        del program.__dict__["kernel"]


def test_each_share_has_a_line() -> None:
    lines = list(report(50, 1, [1, 3], [0]))
    rows = [line.split() for line in lines if line.endswith(tuple("0123456789")) and "%" in line]
    assert [row[1] for row in rows] == [f"{share:.0%}" for share in SHARES]
    assert all(len([float(value) for value in row[2:]]) == 2 for row in rows)


@pytest.mark.usefixtures("kernels_without_the_compiler")
def test_a_benchmark_runs_without_transactions_over_several_partitions_and_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(partitions.SCALES, "small_bank", SMALL_BANK.small)
    alone, whole = (line.split() for line in oltp_lines("small_bank", 60, 1, [1, 2]))
    assert alone[:2] == ["alone", "0%"]
    assert whole[0] == "whole"
    assert 0 < int(whole[1].rstrip("%")) < 100


@pytest.mark.usefixtures("kernels_without_the_compiler")
def test_partitions_beyond_the_cores_are_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    rows = [line.split() for line in h_store.report(100, 1, [1, 2, 4])]
    assert [row[:2] for row in rows if row[1:2] in (["measured"], ["virtual"])] == [
        ["1", "measured"], ["2", "measured"], ["4", "virtual"],
    ]  # fmt: skip
