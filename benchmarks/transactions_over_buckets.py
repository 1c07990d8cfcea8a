"""SmallBank and TPC-C in Spark over several buckets: the time that forwarding adds to a micro-batch.

    python -m benchmarks.transactions_over_buckets [--share 0 0.2 1] [--buckets 1 2] [--order any arrival]
        [--customers 100000] [--hot 0] [--batches 12] [--batch-rows 100000] [--tpcc-rows 20000]

Each case runs in a process of its own. The requests are in a p-stream before the query starts, and pass
through Spark (`rows`), also with one bucket. The share is that of payments between two random customers,
half of which are in one of two buckets; all other transactions are for one customer. Milliseconds are medians
of the micro-batches' ``triggerExecution``, without the first ones; `more` compares with the case of the same
buckets and order that forwards nothing. TPC-C has its own mix, over four small warehouses (`SCALE`); the
coordinator runs what is forwarded over copies of the buckets' tables, and `more` compares with one bucket.
`loads` is the share of bucket tasks that had to read the whole
state, as their worker did not have it. Then follow means of the steps, summed over buckets.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, print_and_save, run_contender, scratch, session
from benchmarks.transactions_in_spark import counted_batches, mean_steps
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.procedures.programs.oltp.benchmark import Draws
from penstock.procedures.programs.oltp.small_bank import SEND_PAYMENT, SMALL_BANK, SmallBankScale
from penstock.procedures.programs.oltp.tpcc_data import TPCC_BENCHMARK, TpccScale

RESULT = REPOSITORY / "benchmarks" / "results" / "transactions_over_buckets.txt"
SCALE = TpccScale(warehouses=4, customers=300, items=10_000)
STEPS = ("load", "run", "commit", "coordinate", "continue")
WARM_UP = 3
"""The micro-batches that are not counted: code is compiled in them."""


@dataclass(frozen=True)
class Case:
    """What one process measures: SmallBank, or without a share of payments TPC-C."""

    share: float | None
    buckets: int
    order: str
    customers: int
    hot: int
    batches: int
    batch_rows: int


def requests(case: Case, count: int, seed: int) -> pa.RecordBatch:
    """Return requests; those of SmallBank are to a share payments between two customers."""
    if case.share is None:
        return TPCC_BENCHMARK.requests(SCALE, count, seed)
    drawn = SMALL_BANK.requests(SmallBankScale(case.customers, case.hot or case.customers), count, seed)
    columns = dict(zip(drawn.schema.names, drawn.columns, strict=True))
    pays = Draws(seed + 7).fractions(count) < case.share
    kinds, ids = columns["kind"].to_numpy(), columns["id"].to_numpy()
    single = np.where((kinds == SEND_PAYMENT) | (kinds == 0), 1, kinds)
    columns["kind"] = pa.array(np.where(pays, SEND_PAYMENT, single))
    columns["target"] = pa.array(np.where(pays, columns["target"].to_numpy(), ids))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=drawn.schema)


def measure(case: Case) -> dict[str, float]:
    """Run a query over all requests."""
    import penstock

    with scratch("buckets") as folder:
        place = Path(folder)
        schema = requests(case, 1, 1).schema
        with PStreamWriter(place / "events", schema, unit_rows=case.batch_rows) as writer:
            for number in range(case.batches):
                writer.append(pa.Table.from_batches([requests(case, case.batch_rows, number)]))
        running = session()
        penstock.register(running)
        events = running.readStream.format("pstream").option("maxRows", case.batch_rows)
        benchmark, scale = TPCC_BENCHMARK, cast("Any", SCALE)
        if case.share is not None:
            benchmark, scale = SMALL_BANK, SmallBankScale(case.customers, case.hot or case.customers)
        results = penstock.write_transactions(
            events.load(str(place / "events")).where("true"),
            benchmark.procedure,
            place / "out",
            buckets=case.buckets,
            order=case.order,
            initial=benchmark.tables(scale),
            state_location=place / "state",
        )
        query = (
            results.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        counted, own = counted_batches(query, WARM_UP)
        running.stop()
    rows = sum(one["rows_in"] for one in own)
    batch_ms = [one.durationMs["triggerExecution"] for one in counted]
    return {
        "forwarded": sum(one["forwarded"] for one in own) / rows,
        "rejected": sum(one["rejected"] for one in own) / rows,
        "ms": float(np.median(batch_ms)),
        "M/s": rows / sum(batch_ms) / 1e3,
        "batches": len(counted),
        "loads": sum(one["loads"] for one in own) / sum(one["buckets"] for one in own),
        **mean_steps(own),
    }


def report(given: argparse.Namespace) -> Iterator[str]:
    """Return the lines of the result."""
    yield f"python -m benchmarks.transactions_over_buckets {' '.join(sys.argv[1:])}".strip()
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    yield (
        f"SmallBank: {given.batch_rows:,} transactions a micro-batch, {given.customers:,} customers; "
        f"TPC-C: {given.tpcc_rows:,}, {SCALE}"
    )
    yield ""
    header = f"{'buckets':>7}  {'order':<8}{'payments':>9}{'forwarded':>10}{'ms':>8}{'more':>8}{'M/s':>8}"
    yield header + f"{'batches':>9}{'loads':>7}" + "".join(f"{step:>12}" for step in STEPS)
    fixed: list[Any] = ["--customers", given.customers, "--hot", given.hot, "--batches", given.batches]
    one_bucket = None
    for shares, rows in (
        (given.share, given.batch_rows),
        ([None] if given.tpcc_rows else [], given.tpcc_rows),
    ):
        for buckets in given.buckets:
            # One bucket forwards nothing.
            for order in given.order if buckets > 1 else given.order[:1]:
                least: float | None = one_bucket
                for share in shares:
                    arguments = [
                        "--one",
                        "--buckets",
                        buckets,
                        "--order",
                        order,
                        "--batch-rows",
                        rows,
                        *fixed,
                    ]
                    arguments += ["--share", *([] if share is None else [share])]
                    found = run_contender("transactions_over_buckets", *map(str, arguments))
                    least = found["ms"] if least is None else least
                    one_bucket = least if share is None else None
                    what = "TPC-C" if share is None else f"{share:.0%}"
                    yield (
                        f"{buckets:>7}  {order:<8}{what:>9}{found['forwarded']:>10.1%}{found['ms']:>8.0f}"
                        f"{found['ms'] - least:>8.0f}{found['M/s']:>8.3f}{found['batches']:>9.0f}"
                        f"{found['loads']:>7.0%}"
                        + "".join(f"{found.get(f'ms {step}', 0.0):>12.0f}" for step in STEPS)
                    )
    yield ""
    yield f"load {os.getloadavg()[0]:.1f} at the end"


def main() -> None:
    """Print a line for each case, and save them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", nargs="*", type=float, default=[0, 0.2, 1])
    parser.add_argument("--buckets", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--order", nargs="+", choices=["arrival", "any"], default=["any", "arrival"])
    parser.add_argument("--customers", type=int, default=100_000)
    parser.add_argument("--hot", type=int, default=0, help="the customers that get 90 per cent; 0 for none")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch-rows", type=int, default=100_000)
    parser.add_argument("--tpcc-rows", type=int, default=20_000, help="0 for no TPC-C")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        case = Case(
            given.share[0] if given.share else None,
            given.buckets[0],
            given.order[0],
            given.customers,
            given.hot,
            given.batches,
            given.batch_rows,
        )
        print(json.dumps(measure(case)))
        return
    print_and_save(report(given), given.out)


if __name__ == "__main__":
    main()
