"""The drawings of the designer's figures show the numbers of the results."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.designs import design_drawings
from benchmarks.designs.design_drawings import DRAWINGS, read

TEXT = """a command

workload        partitions      0 s   0.5 s   / MFA  least cost  known
TPC-C                    4     1.5%   1,000    1.00  HR+          none
TPC-C (skewed)          64     2.5%   2,000    1.25  SCH           3.0

the end
"""


class Axis:
    """Keeps what is drawn."""

    def __init__(self) -> None:
        self.drawn: dict[str, list[float]] = {}

    def plot(self, xs: list[float], ys: list[float], *, label: str, **_: object) -> None:
        assert len(xs) == len(ys)
        self.drawn[label] = ys

    def bar(self, xs: list[float], ys: list[float], width: float, label: str) -> None:
        assert len(xs) == len(ys)
        self.drawn[label] = ys

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_a_table_of_a_result_is_read() -> None:
    table = read(TEXT, "workload", 16)
    assert table.heads == ["partitions", "0 s", "0.5 s", "/MFA", "least cost", "known"]
    assert table.rows == [("TPC-C", [4, 1.5, 1000, 1]), ("TPC-C (skewed)", [64, 2.5, 2000, 1.25, 3])]
    assert [label for label, _ in table.of_most_partitions().rows] == ["TPC-C (skewed)"]


@pytest.mark.parametrize(("number", "label"), [
    ("4.5", "PKY"), ("4.6", "MFA"), ("4.6f", "paper"), ("4.7", "Voter"), ("4.8", "TPC-C (skewed)"),
    ("4.9", "backtracks 5"), ("4.10", "SEATS"),
])  # fmt: skip
def test_each_result_can_be_drawn(number: str, label: str) -> None:
    axis = Axis()
    DRAWINGS[number][1](axis)
    assert len(axis.drawn[label]) >= 2
    name = "designs.txt" if number == "4.5" else f"h_store_fig{number.replace('.', '_')}.txt"
    text = (design_drawings.RESULTS / name).read_text().replace(",", "")
    numbers = {float(one) for one in re.findall(r"\d+(?:\.\d+)?", text)}
    assert set(axis.drawn[label]) <= numbers
