"""SmallBank in Spark over several buckets, with shares of transactions over two customers.

    python -m benchmarks.transactions_over_buckets [--share 0 0.01 0.1 0.5 1] [--buckets 1 2]
        [--order arrival any] [--customers 100000] [--hot 0] [--million 4] [--batch-million 0.5]

Each case runs in a process of its own. The requests are in a p-stream before the query starts, and pass
through Spark (`rows`), also with one bucket. The share is that of payments between two random customers,
half of which are in one of two buckets; all other transactions are for one customer. Figures are million
transactions a second over the micro-batches' ``triggerExecution``, without the first ones; the share of
transactions that were forwarded; and the milliseconds of a micro-batch, by step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine, run_contender, scratch, session
from benchmarks.transactions_in_spark import counted_batches, mean_steps, print_case
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.procedures.programs.oltp.benchmark import Draws
from penstock.procedures.programs.oltp.small_bank import SEND_PAYMENT, SMALL_BANK, SmallBankScale

WARM_UP = 2
"""The micro-batches that are not counted: code is compiled in them."""


@dataclass(frozen=True)
class Case:
    """What one process measures."""

    share: float
    buckets: int
    order: str
    customers: int
    hot: int
    rows: int
    batch_rows: int


def requests(case: Case, count: int, seed: int) -> pa.RecordBatch:
    """Return requests, of which a share are payments between two customers."""
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
        chunk = requests(case, min(case.rows, 1 << 18), 1)
        with PStreamWriter(place / "events", chunk.schema, unit_rows=1 << 16) as writer:
            for number in range(-(-case.rows // chunk.num_rows)):
                writer.append(pa.Table.from_batches([requests(case, chunk.num_rows, number + 1)]))
        running = session()
        penstock.register(running)
        events = running.readStream.format("pstream").option("maxRows", case.batch_rows)
        scale = SmallBankScale(case.customers, case.hot or case.customers)
        results = penstock.write_transactions(
            events.load(str(place / "events")).where("true"),
            SMALL_BANK.procedure,
            place / "out",
            buckets=case.buckets,
            order=case.order,
            initial=SMALL_BANK.tables(scale),
            state_location=place / "state",
        )
        query = (
            results.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        counted, own = counted_batches(query, WARM_UP)
        running.stop()
    rows = sum(one["rows_in"] for one in own)
    seconds = sum(one.durationMs["triggerExecution"] for one in counted) / 1000
    return {
        "M/s": rows / seconds / 1e6,
        "forwarded": sum(one["forwarded"] for one in own) / rows,
        "rejected": sum(one["rejected"] for one in own) / rows,
        "ms batch": 1000 * seconds / len(counted),
        "batches": len(counted),
        **mean_steps(own),
    }


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", nargs="+", type=float, default=[0, 0.01, 0.1, 0.5, 1])
    parser.add_argument("--buckets", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--order", nargs="+", choices=["arrival", "any"], default=["arrival", "any"])
    parser.add_argument("--customers", type=int, default=100_000)
    parser.add_argument("--hot", type=int, default=0, help="the customers that get 90 per cent; 0 for none")
    parser.add_argument("--million", type=float, default=4)
    parser.add_argument("--batch-million", type=float, default=0.5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows, batch = round(given.million * 1e6), round(given.batch_million * 1e6)
    cases = itertools.product(given.share, given.buckets, given.order)
    if given.one:
        share, buckets, order = next(cases)
        case = Case(share, buckets, order, given.customers, given.hot, rows, batch)
        print(json.dumps(measure(case)))
        return
    print(f"# python -m benchmarks.transactions_over_buckets {' '.join(sys.argv[1:])}\n# {machine()}")
    fixed: list[Any] = ["--customers", given.customers, "--hot", given.hot, "--million", given.million]
    fixed += ["--batch-million", given.batch_million]
    for share, buckets, order in cases:
        if buckets == 1 and order != given.order[0]:
            continue  # one bucket forwards nothing
        arguments = ["--one", "--share", share, "--buckets", buckets, "--order", order, *fixed]
        found = run_contender("transactions_over_buckets", *map(str, arguments))
        print_case(f"share {share:<5} buckets {buckets} {order:8}", found)


if __name__ == "__main__":
    main()
