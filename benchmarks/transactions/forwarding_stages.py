"""The processor time of both stages of SmallBank's transactions over two buckets, without Spark.

    python -m benchmarks.transactions.forwarding_stages [--share 0.01 0.1 0.5 1] [--rows 100000] [--batches 6]

A share of the transactions are payments between customers of different buckets (`remote`), or of one bucket
(`local`). Figures are medians over the micro-batches, without the first two, in milliseconds of processor
time: to pack events for their buckets (`pack`), to run the transactions of both buckets (`buckets`), to
make parcels of exports and results (`parcels`), to read exports (`read`), and to run the forwarded
transactions and publish the continuations (`coordinate`). Spark runs the two buckets at the same time.
Processor time hardly depends on other programs on the machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head, scratch
from benchmarks.transactions.transactions_over_buckets import Case, requests
from penstock.procedures.analysis.columns import ResultRows
from penstock.procedures.partitions.bucket_forwarding import Forwarding
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.connection import Shared
from penstock.spark_ext.border.initial_rows import InitialRows, _partition
from penstock.spark_ext.border.parcels import from_parcel, to_parcels
from penstock.spark_ext.border.transaction_packing import TransactionPacker
from penstock.spark_ext.forwarding.coordinator import Coordinator
from penstock.spark_ext.forwarding.exports import Exports, take_exports
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel, _background
from penstock.spark_ext.worker.transaction_operator import TransactionOperator
from penstock.state_store.bucket_store import Pointer

RESULT = REPOSITORY / "benchmarks" / "results" / "forwarding_stages.txt"
STEPS = ("pack", "buckets", "parcels", "read", "coordinate")
WARM_UP = 2
"""The micro-batches that are not counted: rows are loaded and code is compiled in them."""


class Stages:
    """Both stages of a query, run one after the other in this process."""

    def __init__(self, directory: str, case: Case) -> None:
        benchmark, scale = case.benchmark
        program, tables = benchmark.procedure.program(), benchmark.database.tables
        self.case, self.forwarding = case, Forwarding.plan(program, case.buckets, case.order)
        names = tuple(self.forwarding.event.names)
        first: list[dict[str, list[bytes]]] = [{} for _ in range(case.buckets)]
        for name, rows in benchmark.tables(scale).items():
            for bucket, part in _partition(rows, name, tables[name].partition_by, case.buckets, None):
                first[bucket][name] = list(to_parcels(part.to_batches()))
        self.packer = TransactionPacker(
            self.forwarding.event, names, None, None, case.buckets, forwarding=self.forwarding
        )
        specs = tuple(tables.values())
        operator = TransactionOperator(
            program, specs, names, (), None, program.digest, order=case.order, forwarding=self.forwarding,
            initial=InitialRows(Shared(first)),
        )  # fmt: skip
        self.task = BucketTask("bank", directory, operator, case.buckets, 2, origin=operator.origin)
        self.coordinator = Coordinator(
            "bank", directory, self.forwarding, specs, len(names), ResultRows((), case.order)
        )
        self.pointers: dict[int, Pointer] = {}

    def run(self, number: int, events: pa.RecordBatch) -> tuple[list[float], int]:
        """Run a micro-batch; return the milliseconds of each step, and the bytes of exports."""
        spent = [time.process_time()]
        packed = defaultdict(list)
        for row in self.packer([events]):
            packed[row.column("bucket")[0].as_py()].append(row.column("payload")[0].as_py())
        spent.append(time.process_time())
        made = []
        for bucket, label in enumerate(bucket_labels(self.case.buckets)):
            parcels = [Parcel(0, from_parcel(one)) for one in packed[label]]
            pointer, rows, _ = self.task.run(
                "query", number, bucket, self.pointers.get(bucket), parcels, lambda: 0
            )
            if pointer is None:
                raise SystemExit("a bucket has no version")
            self.pointers[bucket], *parts = take_exports("query", number, bucket, pointer, rows)
            made.append(parts)
        spent.append(time.process_time())
        held = [parcel for exports, _ in made for parcel in to_parcels(exports)]
        for _, results in made:
            list(to_parcels(results))
        spent.append(time.process_time())
        read = Exports.read(held)
        spent.append(time.process_time())
        if held:
            self.coordinator.run(read)
        spent.append(time.process_time())
        return (1000 * np.diff(spent)).tolist(), sum(map(len, held))


def report(given: argparse.Namespace) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.transactions.forwarding_stages {' '.join(sys.argv[1:])}".strip()
    )
    yield f"{given.rows:,} transactions in a micro-batch"
    yield ""
    yield f"{'share':>6}  {'partner':<8}{'MB':>6}{'all':>8}" + "".join(f"{step:>12}" for step in STEPS)
    for share in given.share:
        for remote in (False, True):
            case = Case("SmallBank", share, 2, "any", given.batches, given.rows)
            with scratch("stages") as folder:
                stages = Stages(str(Path(folder)), case)
                ran = [
                    stages.run(number, requests(replace(case), number, remote=remote))
                    for number in range(given.batches)
                ][WARM_UP:]
                _background().submit(int).result()  # it may still write into the directory
            steps = np.median([spent for spent, _ in ran], axis=0)
            size = float(np.median([exported for _, exported in ran])) / 1e6
            yield (
                f"{share:>6.0%}  {'remote' if remote else 'local':<8}{size:>6.1f}{steps.sum():>8.0f}"
                + "".join(f"{one:>12.0f}" for one in steps)
            )
    yield from report_foot()


def main() -> None:
    """Print a line for each case, and save them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", nargs="+", type=float, default=[0.01, 0.1, 0.5, 1])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULT)
    print_and_save(report(parser.parse_args()), parser.parse_args().out)


if __name__ == "__main__":
    main()
