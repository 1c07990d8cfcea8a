"""SmallBank and TPC-C in Spark over several buckets: the time that forwarding adds to a micro-batch.

    python -m benchmarks.transactions.transactions_over_buckets [--only SmallBank TPC-C]
        [--share 0.01 0.1 0.5 1]
        [--buckets 2] [--order any] [--rounds 2] [--batches 8] [--bank-rows 100000] [--tpcc-rows 5000]

The requests are in a p-stream before a query starts, and pass through Spark (`rows`). In SmallBank, a share
of all transactions are payments between two customers of different buckets; all others are for one
customer. In TPC-C's own mix, over four small warehouses (`SCALE`), a share of the new orders and payments
need a warehouse of another bucket. `local` is the time of the same transactions if the second customer or
warehouse is in the bucket of the first, in a query without the coordinator and its shuffle; so `more` is
all that forwarding costs.

Each workload and order runs in a process of its own. For each share, queries with local and with remote
transactions take turns. Milliseconds are medians over the micro-batches' ``triggerExecution`` of all
rounds, without the first ones of each query. `loads` is the share of bucket tasks that had to read the
whole state, as their worker did not have it. Then follow means of the steps, summed over buckets. Before
the shares comes the time of local transactions in one bucket.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import (
    REPOSITORY,
    print_and_save,
    report_foot,
    report_head,
    run_contender,
    scratch,
    session,
)
from benchmarks.transactions.transactions_in_spark import counted_batches, mean_steps
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.procedures.programs.oltp.benchmark import Draws
from penstock.procedures.programs.oltp.small_bank import SEND_PAYMENT, SMALL_BANK, SmallBankScale
from penstock.procedures.programs.oltp.tpcc import NEW_ORDER, PAYMENT
from penstock.procedures.programs.oltp.tpcc_data import TPCC_BENCHMARK, TpccScale
from penstock.procedures.programs.packaged import Integers, lists
from penstock.spark_ext.border.transaction_packing import bucket_of_values

RESULT = REPOSITORY / "benchmarks" / "results" / "transactions_over_buckets.txt"
CUSTOMERS = 100_000
SCALE = TpccScale(warehouses=4, customers=300, items=10_000)
WORKLOADS = ("SmallBank", "TPC-C")
STEPS = ("load", "run", "commit", "coordinate", "continue")
WARM_UP = 2
"""The micro-batches of a query that are not counted: the state is loaded and code is compiled in them."""


@dataclass(frozen=True)
class Case:
    """A measurement that runs in a process of its own."""

    workload: str
    share: float
    buckets: int
    order: str
    batches: int
    batch_rows: int

    @property
    def benchmark(self) -> tuple[Any, Any]:
        """The benchmark and its scale."""
        if self.workload == "TPC-C":
            return TPCC_BENCHMARK, SCALE
        return SMALL_BANK, SmallBankScale(CUSTOMERS, CUSTOMERS)


def draw_partners(draws: Draws, homes: Integers, ids: Integers, buckets: int, *, remote: bool) -> Integers:
    """Draw another of the consecutive `ids` for each home, in another bucket or in the same."""
    places = bucket_of_values(pa.array(ids), buckets)
    partners = homes.copy()
    for bucket in np.unique(places):
        mine = np.flatnonzero(places[homes - ids[0]] == bucket)
        among = ids[(places != bucket) if remote else (places == bucket)]
        partners[mine] = among[draws.integers(len(mine), 0, len(among) - 1)]
    return partners


def requests(case: Case, seed: int, *, remote: bool) -> pa.RecordBatch:
    """Return requests, of which a share has a partner in another bucket or in the same."""
    benchmark, scale = case.benchmark
    drawn = benchmark.requests(scale, case.batch_rows, seed)
    columns = dict(zip(drawn.schema.names, drawn.columns, strict=True))
    draws = Draws(seed + 7)
    has_partner = draws.fractions(case.batch_rows) < case.share
    kinds = columns["kind"].to_numpy()
    if case.workload == "SmallBank":
        homes = columns["id"].to_numpy()
        partners = draw_partners(draws, homes, np.arange(CUSTOMERS), case.buckets, remote=remote)
        single = np.where((kinds == SEND_PAYMENT) | (kinds == 0), 1, kinds)
        columns["kind"] = pa.array(np.where(has_partner, SEND_PAYMENT, single))
        columns["target"] = pa.array(np.where(has_partner, partners, homes))
    else:
        homes = columns["w_id"].to_numpy()
        ids = np.arange(1, SCALE.warehouses + 1)
        partners = draw_partners(draws, homes, ids, case.buckets, remote=remote)
        columns["c_w_id"] = pa.array(np.where((kinds == PAYMENT) & has_partner, partners, homes))
        sizes = np.diff(columns["items"].offsets.to_numpy())
        supplies = np.repeat(homes, sizes)
        far = (kinds == NEW_ORDER) & has_partner
        supplies[np.cumsum(sizes)[far] - 1] = partners[far]
        columns["supplies"] = lists(supplies, sizes)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=drawn.schema)


def run_query(running: Any, case: Case, *, remote: bool) -> dict[str, list[Any]]:
    """Run a query over all requests; return Spark's times of its micro-batches, and their metrics."""
    from penstock.operators.update_stream.operator_options import TransactionOptions
    from penstock.spark_ext.api.transactions import plan_transactions

    benchmark, scale = case.benchmark
    with scratch("buckets") as folder:
        place = Path(folder)
        schema = requests(replace(case, batch_rows=1), 1, remote=remote).schema
        with PStreamWriter(place / "events", schema, unit_rows=case.batch_rows) as writer:
            for number in range(case.batches):
                writer.append(pa.Table.from_batches([requests(case, number, remote=remote)]))
        events = running.readStream.format("pstream").option("maxRows", case.batch_rows)
        planned = plan_transactions(
            events.load(str(place / "events")).where("true"),
            benchmark.procedure,
            None,
            (),
            TransactionOptions(buckets=case.buckets, order=case.order, state_location=place / "state"),
            "transactions",
            benchmark.tables(scale),
        )
        if not remote:  # nothing is forwarded
            planned = replace(planned, coordinator=None)
        sink = {"path": str(place / "out"), "descriptors": "true", "deterministic": "true"}
        written = planned.descriptors({"path": sink["path"]}).writeStream.format("pstream").options(**sink)
        written = written.option("checkpointLocation", str(place / "checkpoint"))
        query = written.trigger(availableNow=True).start()
        query.awaitTermination()
        counted, own = counted_batches(query, WARM_UP)
    return {"ms": [one.durationMs["triggerExecution"] for one in counted], "own": own}


def measure(case: Case, shares: list[float], rounds: int) -> list[dict[str, float]]:
    """Return a line for each share; the first is of local transactions in one bucket."""
    import penstock

    running = session()
    penstock.register(running)
    found = []
    for share in [0.0, *shares]:
        one = replace(case, share=share or shares[0], buckets=case.buckets if share else 1)
        local, remote, own = list[float](), list[float](), list[dict[str, Any]]()
        for _ in range(rounds):
            local += run_query(running, one, remote=False)["ms"]
            if share:
                ran = run_query(running, one, remote=True)
                remote, own = remote + ran["ms"], own + ran["own"]
        ms = float(np.median(remote or local))
        rows = sum(entry["rows_in"] for entry in own)
        found.append({
            "share": share, "buckets": one.buckets, "local": float(np.median(local)), "ms": ms,
            "M/s": case.batch_rows / ms / 1e3, "batches": len(remote or local),
            "forwarded": sum(entry["forwarded"] for entry in own) / max(rows, 1),
            "loads": sum(entry["loads"] for entry in own) / max(sum(entry["buckets"] for entry in own), 1),
            **mean_steps(own),
        })  # fmt: skip
    running.stop()
    return found


def report(given: argparse.Namespace) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.transactions.transactions_over_buckets {' '.join(sys.argv[1:])}".strip()
    )
    yield (
        f"SmallBank: {given.bank_rows:,} transactions a micro-batch, {CUSTOMERS:,} customers; "
        f"TPC-C: {given.tpcc_rows:,}, {SCALE}"
    )
    yield ""
    header = f"{'workload':<10}{'buckets':>7}  {'order':<8}{'remote':>7}{'forwarded':>10}{'local':>8}"
    header += f"{'ms':>8}{'more':>8}{'M/s':>8}{'batches':>9}{'loads':>7}"
    yield header + "".join(f"{step:>12}" for step in STEPS)
    for workload in given.only:
        for order in given.order:
            arguments = ["--one", "--only", workload, "--order", order, "--share", *given.share]
            for name in ("buckets", "rounds", "batches", "bank_rows", "tpcc_rows"):
                arguments += ["--" + name.replace("_", "-"), getattr(given, name)]
            found = run_contender("transactions.transactions_over_buckets", *map(str, arguments))
            for one in found["cases"]:
                yield (
                    f"{workload:<10}{one['buckets']:>7}  {order:<8}{one['share']:>7.0%}"
                    f"{one['forwarded']:>10.1%}{one['local']:>8.0f}{one['ms']:>8.0f}"
                    f"{one['ms'] - one['local']:>8.0f}{one['M/s']:>8.3f}{one['batches']:>9.0f}"
                    f"{one['loads']:>7.0%}"
                    + "".join(f"{one.get(f'ms {step}', 0.0):>12.0f}" for step in STEPS)
                )
    yield from report_foot()


def main() -> None:
    """Print a line for each case, and save them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--share", nargs="+", type=float, default=[0.01, 0.1, 0.5, 1])
    parser.add_argument("--buckets", type=int, default=2)
    parser.add_argument("--order", nargs="+", choices=["arrival", "any"], default=["any"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--bank-rows", type=int, default=100_000)
    parser.add_argument("--tpcc-rows", type=int, default=5_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        workload = given.only[0]
        rows = given.bank_rows if workload == "SmallBank" else given.tpcc_rows
        case = Case(workload, 0.0, given.buckets, given.order[0], given.batches, rows)
        print(json.dumps({"cases": measure(case, given.share, given.rounds)}))
        return
    print_and_save(report(given), given.out)


if __name__ == "__main__":
    main()
