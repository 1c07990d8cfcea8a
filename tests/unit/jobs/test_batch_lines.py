"""The line of each micro-batch fits a terminal of 80 columns, and is one plain line in a pipe."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.jobs.following.batches import (
    Batch,
    Totals,
    batch_parts,
    batch_printer,
    summary_line,
    wrap_parts,
)

BUSY = Batch(
    number=123_456,
    rows_in=12_345_678,
    emitted=1_234_567,
    conflated=98_765_432,
    late=1_234,
    dropped=567,
    waiting_keys=7_654_321,
    duration_ms=12_345,
    staleness_ms=1_234.5,
    staleness_p95_ms=5_432.1,
    bad_records=89,
)
QUIET = Batch(number=1, rows_in=3, emitted=2, conflated=0, late=0, dropped=0, waiting_keys=0, duration_ms=40)


def batch_line(batch: Batch) -> str:
    return "  ".join(batch_parts(batch))


def test_a_terminal_of_80_columns_gets_whole_parts_on_lines_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with batch_printer() as show:
            show(BUSY)
            show(BUSY)
            show(QUIET)
        terminal.flush()
        shown = ""
        while shown.count("took") < 3 or not shown.endswith("\n"):  # whatever part of it a read returns
            shown += os.read(ours, 100_000).decode()
    os.close(ours)
    assert "\x1b[" in shown, "it has colours"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert all(len(line) <= 80 for line in lines), lines
    starts = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert starts == ["batch", "stale:", "batch", "batch"], "staleness is explained once"
    assert "  ".join(line.strip() for line in lines[:3]) == batch_line(BUSY)
    assert lines[-1] == batch_line(QUIET)


def test_a_pipe_gets_one_plain_line_for_each_batch_and_one_that_says_what_stale_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        with batch_printer() as show:
            show(QUIET)
            show(BUSY)
            show(BUSY)
    shown = (tmp_path / "out").read_text().splitlines()
    assert shown[2].startswith("stale: how long, per key, the oldest unserved update has waited")
    assert shown[2].endswith(
        "in the queue;  average and 95th percentile over keys and time; not shown below 0.5 ms"
    )
    assert [*shown[:2], *shown[3:]] == [batch_line(QUIET), batch_line(BUSY), batch_line(BUSY)]


def test_a_part_that_is_wider_than_the_terminal_has_a_line_of_its_own() -> None:
    assert wrap_parts(["ab", "c" * 9, "de"], 8) == "ab\n    " + "c" * 9 + "\n    de"
    assert wrap_parts(["ab", "cd"], 6) == "ab  cd"
    assert wrap_parts(["ab", "cd"], 5) == "ab\n    cd"


IDLE = replace(QUIET, rows_in=0, emitted=0)


def test_batches_without_rows_have_no_line_and_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    totals = Totals()
    with batch_printer() as show:
        for batch in (QUIET, IDLE, QUIET, IDLE):
            totals = totals.plus(batch)
            show(batch)
    assert capsys.readouterr().err.count("\n") == 2
    assert totals.batches == 4
    assert summary_line(totals) == "2 batches, 6 rows in, 4 emitted"
    assert summary_line(Totals().plus(IDLE)) == "no new rows"


def test_a_query_without_an_operator_shows_no_emitted_rows() -> None:
    plain = replace(QUIET, emitted=0, has_operator=False)
    assert "emitted" not in batch_line(plain)
    assert summary_line(Totals().plus(plain)) == "1 batch, 3 rows in"
    assert summary_line(Totals().plus(replace(QUIET, emitted=0))) == "1 batch, 3 rows in, 0 emitted"


def test_rows_that_a_later_step_may_drop_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with batch_printer(later_steps=("having", "by_window")) as show:
        for batch in (replace(QUIET, emitted=0), QUIET, QUIET):
            show(batch)
    lines = capsys.readouterr().err.splitlines()
    assert lines[2] == "emitted: rows of the operator, before having and by_window"
    assert len(lines) == 4
    assert summary_line(Totals().plus(QUIET), ("having",)) == "1 batch, 3 rows in, 2 emitted before having"


def test_batches_of_other_queries_of_a_graph_have_lines_and_sums_of_their_own() -> None:
    earlier = replace(BUSY, query="ingest")
    assert batch_parts(earlier)[0] == f"ingest: {batch_parts(BUSY)[0]}"
    totals = Totals().plus(earlier).plus(QUIET).plus(earlier)
    assert replace(totals, earlier={}) == Totals().plus(QUIET)
    assert totals.earlier == {"ingest": Totals().plus(BUSY).plus(BUSY)}
    first, last = summary_line(totals, ["having"]).splitlines()
    assert first == "ingest: " + summary_line(Totals().plus(BUSY).plus(BUSY))
    assert last == summary_line(Totals().plus(QUIET), ["having"])
    assert summary_line(Totals().plus(earlier)).endswith("\nno new rows")
