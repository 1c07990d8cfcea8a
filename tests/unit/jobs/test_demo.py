"""The tables of the demo fit a terminal of 80 columns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from penstock.jobs import demo


def _outcome(name: str) -> Any:
    sample = SimpleNamespace(average_ms=1_234_567.0, p95_ms=9_876_543.0)
    observer = SimpleNamespace(
        count_arrived=lambda _: 1_234_567_890, delivered=987_654_321, samples=lambda _: [sample, sample]
    )
    seen: Any = observer
    return demo._Outcome(
        name, 22, seen, 0, 22_000_000, 123_456_789, 12_345_678, batch_ms=[12_345], cost_us=987.6
    )


@pytest.mark.parametrize("which", ["closing", "live"])
def test_a_table_fits_80_columns(which: str) -> None:
    shown = []
    for width in (80, 300):
        console = Console(width=width, force_terminal=False)
        with console.capture() as capture:
            outcomes = [_outcome(name) for name in demo._QUERIES]
            if which == "closing":
                demo._report(console, outcomes)
            else:
                console.print(demo._view(outcomes[0], 5_000_000))
        rows = [line.rstrip() for line in capture.get().splitlines() if line[:1] in "│┃┏┡└┌"]
        assert rows
        assert max(map(len, rows)) <= 80
        shown.append(rows)
    assert shown[0] == shown[1], "nothing is folded or cut"
