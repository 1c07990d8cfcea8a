"""The time of estimates beside that of transactions (H-Store Fig. 5.10).

    python -m benchmarks.paper.houdini_overhead [--transactions 8000] [--partitions 16]
        [--benchmarks tatp tpcc auction_mark]

The first half of the requests trains the models. The rest is predicted in calls of 1,000, as an open database
does before it runs them, and it runs in one partition. Both are times of the CPU. Coordination of partitions
would make transactions longer, so the share of estimates is at most this.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import REPOSITORY, machine, print_and_save
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.paper.houdini import SETTINGS, THRESHOLD, requests_of
from penstock.predicting.models.predictor import Predictor, describe_placements
from penstock.predicting.recording import record
from penstock.predicting.training import Samples, train
from penstock.procedures.compiler.program import Program
from penstock.procedures.partitions.placement import place_tables

__all__ = ["measure", "report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "houdini_overhead.txt"
CALL_SIZE = 1_000
PAPER = 0.058
"""The mean share of the time of transactions that goes to estimates (H-Store §5.5.2)."""


def measure(name: str, count: int, partitions: int) -> tuple[float, float, float]:
    """Return the microseconds of an estimate, of the first one of its kind, and of a transaction."""
    setting = SETTINGS[name]
    benchmark = BENCHMARKS[setting.benchmark or name]
    requests, tables = requests_of(name, count)
    kept = ~np.isin(requests.column("kind").to_numpy(), setting.left_out)
    requests = requests.filter(kept)
    half = requests.num_rows // 2
    placements = place_tables(benchmark.database.tables, partitions, {})
    calls = [(benchmark.procedure.name, requests.slice(0, half))]
    models = [
        train(Samples.of(trace, placements, partitions), THRESHOLD, clustered=True)
        for trace in record(benchmark.database, calls, tables, kind="kind")
        if trace.transactions >= 20
    ]
    stored = Predictor(
        benchmark.database.name, partitions, describe_placements(placements), THRESHOLD, models
    )
    program = benchmark.procedure.program()
    assert isinstance(program, Program)
    batches = [requests.slice(begin, CALL_SIZE) for begin in range(half, requests.num_rows, CALL_SIZE)]
    stored.bind(benchmark.database.name, partitions, placements).predict(program, batches[0])  # compiles
    running = stored.bind(benchmark.database.name, partitions, placements)
    spent = []
    for _ in range(2):  # the first time nothing is known
        begin_s = time.thread_time()
        for batch in batches:
            prediction = running.predict(program, batch)
            assert prediction is not None
            running.observe(prediction.partitions.view(np.int64))
        spent.append(time.thread_time() - begin_s)
    with benchmark.database.open() as db:
        for table, rows in tables.items():
            db.load(table, rows)
        db.run(benchmark.procedure.name, requests.slice(0, half))
        begin_s = time.process_time()
        for batch in batches:
            db.run(benchmark.procedure.name, batch)
        executed = time.process_time() - begin_s
    first, again, run = (1e6 * one / (requests.num_rows - half) for one in (*spent, executed))
    return again, first, run


def report(names: Sequence[str], count: int, partitions: int) -> Iterator[str]:
    """Return the lines of the result."""
    yield (
        f"python -m benchmarks.paper.houdini_overhead --transactions {count} --partitions {partitions} "
        f"--benchmarks {' '.join(names)}"
    )
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    yield ""
    yield "Microseconds of CPU for each transaction, in calls of 1,000. known: an earlier event agrees in all"
    yield "that the models read. share: of estimates in the time of both; the paper's is that of H-Store."
    yield ""
    yield f"{'':14}{'estimate':>10}{'known':>9}{'transaction':>13}{'share':>8}{'known':>8}{'paper':>8}"
    for name in names:
        again, first, run = measure(name, count, partitions)
        yield (
            f"{SETTINGS[name].title:14}{first:>10.2f}{again:>9.2f}{run:>13.2f}{first / (first + run):>8.1%}"
            f"{again / (again + run):>8.1%}{PAPER:>8.1%}"
        )
    yield ""
    yield f"load {os.getloadavg()[0]:.1f} at the end"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=8_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--benchmarks", nargs="+", choices=SETTINGS, default=["tatp", "tpcc", "auction_mark"])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.benchmarks, options.transactions, options.partitions), options.out)


if __name__ == "__main__":
    main()
