"""Voter's throughput by the number of partitions (H-Store Fig. 3.10).

    python -m benchmarks.paper.h_store [--votes 2000000] [--runs 3] [--partitions 1 2 4 8]

Votes are called in groups, four at a time; with the log, each call returns once it is durable. Rows with as
many partitions as this machine has cores are measured. Those with more are virtual time: the partitions run
one after the other, and only the longest one of each call counts. All else, such as splitting calls, runs on
one thread and counts whole. Runs of different numbers alternate, and the fastest of each counts.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head, scratch
from benchmarks.oltp.measure import call_from_threads
from benchmarks.paper.h_store.voter import SHOW, SavedTime, load, votes

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "h_store_fig3_10.txt"
CALL_SIZE = 50_000
CALLERS = 4
PAPER = {1: 25_000, 8: 250_000}
"""The votes per second that the paper's text names."""


def seconds(count: int, partitions: int, place: str | None, *, virtual: bool) -> tuple[float, pa.Table]:
    """Return how long votes take, and the votes of each area."""
    saved = SavedTime()
    all_votes = votes(count, 1)
    batches = iter([all_votes.slice(begin, CALL_SIZE) for begin in range(0, count, CALL_SIZE)])
    with SHOW.open(place, partitions=partitions) as db:
        load(db)
        db.run("vote", votes(100, 0))  # compiles
        begin = time.perf_counter()
        with saved.measure(db) if virtual else nullcontext():
            call_from_threads(db, "vote", batches, CALLERS)
        wall = time.perf_counter() - begin
        # Calls end in any order, which decides whom a third vote is for, but not how many votes an area has.
        totals = db.table("totals").group_by("area").aggregate([("votes", "sum")]).sort_by("area")
    return wall - saved.seconds, totals


def report(count: int, runs: int, partitions: Sequence[int]) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.paper.h_store --votes {count} --runs {runs} "
        f"--partitions {' '.join(map(str, partitions))}"
    )
    yield f"{'partitions':>10}  {'time':<10}{'in memory':>14}{'with a log':>14}{'one = 1':>9}{'paper':>10}"
    cores = os.cpu_count() or 1
    fastest = {number: [float("inf")] * 2 for number in partitions}
    expected: pa.Table | None = None
    for _ in range(runs):
        for number in partitions:
            for column, logged in enumerate([False, True]):
                with scratch("voter") as place:
                    spent, totals = seconds(
                        count, number, f"{place}/db" if logged else None, virtual=number > cores
                    )
                expected = totals if expected is None else expected
                if totals != expected:
                    raise AssertionError("partitions change the result")
                fastest[number][column] = min(fastest[number][column], spent)
    first = count / fastest[partitions[0]][1]
    for number in partitions:
        memory, logged_rate = (count / one for one in fastest[number])
        kind = "virtual" if number > cores else "measured"
        paper = f"{PAPER[number]:,}" if number in PAPER else ""
        rates = f"{memory:>14,.0f}{logged_rate:>14,.0f}{logged_rate / first:>9.2f}"
        yield f"{number:>10}  {kind:<10}{rates}{paper:>10}"
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper.h_store", description=__doc__)
    parser.add_argument("--votes", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.votes, options.runs, options.partitions), options.out)


if __name__ == "__main__":
    main()
