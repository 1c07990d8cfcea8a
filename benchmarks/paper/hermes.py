"""Speculative transactions and queries in virtual time (H-Store Fig. 6.1 and 6.7 to 6.10).

    python -m benchmarks.paper.hermes 6.1 6.7 6.9 6.10 [--transactions 3000] [--each 40]

Fig. 6.7 has 6.8, too.

Simulated are the partitions, eight on each node, with their clocks, network, times of queries and clients.
The network has the paper's round trip of 0.42 ms between nodes; the times of a transaction and of a query are
assumed (`Costs`), so that absolute numbers are no measurement.

Real are the schemas and procedures of the benchmarks, the paths of their transactions (recorded in Python
over small databases), the parameter mappings and Markov models that estimate these (trained with the first
half; the second half runs), the conflict rules from the procedures' text, the scheduler and the tracking
table. The times of Fig. 6.9a are measured: Python's, for a queue of ten candidates.

Transactions with a query that all partitions answer need all of them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, print_and_save
from benchmarks.oltp.auction_mark.data import AuctionMarkScale
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.oltp.seats.data import SeatsScale
from penstock.predicting.paths import KeyNumbers, read_transactions, statements_of
from penstock.predicting.recording import ProcedureTrace, record
from penstock.predicting.training import Samples, train
from penstock.procedures.partitions.placement import Placement, place_tables
from penstock.procedures.programs.oltp.small_bank import SmallBankScale
from penstock.procedures.programs.oltp.tatp import TatpScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from penstock.speculating.measurements import Costs, Measurements
from penstock.speculating.rules import ConflictRules
from penstock.speculating.scheduler import Mode, Scheduler, Stall, Transaction
from penstock.speculating.simulation import Cluster

__all__ = ["FIGURES", "report"]

RESULTS = REPOSITORY / "benchmarks" / "results"
NODE = 8
COSTS = Costs()
CLIENTS = 25
"""The clients of a partition: 800 with 32 partitions, as in the paper."""
SCALES: dict[str, tuple[str, Any]] = {
    "seats": ("SEATS", SeatsScale(customers=2_000, airports=50, airlines=50, flights=300)),
    "small_bank": ("SmallBank", SmallBankScale(customers=20_000, hot=1_000)),
    "tpcc": ("TPC-C", TpccScale(warehouses=32, districts=10, customers=20, items=200)),
    "tatp": ("TATP", TatpScale(5_000)),
    "auction_mark": ("AuctionMark", AuctionMarkScale(users=2_000, items=4_000, categories=100, groups=20)),
}
CONFIGURATIONS: dict[str, tuple[Mode, bool]] = {
    "None": ("none", False),
    "SpecQuery": ("none", True),
    "SpecTxn": ("rows", False),
    "SpecAll": ("rows", True),
}
PAPER_NAMES = ("seats", "small_bank", "tpcc")


@cache
def traces_of(name: str, count: int, hot: float = -1.0) -> tuple[ProcedureTrace, ...]:
    """Return the recorded transactions of a benchmark, of each kind by itself.

    Parameters
    ----------
    name : str
        The benchmark.
    count : int
        The number of transactions.
    hot : float
        The share of transactions that access only the hot spot: 100 customers, or in each warehouse one
        district, two customers and ten items. By default requests are as the benchmark draws them.
    """
    benchmark = BENCHMARKS[name]
    scale = SCALES[name][1]
    requests = benchmark.requests(scale, count, 1)
    if hot >= 0.0:
        requests = _heat(name, requests, np.random.default_rng(2).random(count) < hot)
    calls = [(benchmark.procedure.name, requests)]
    return tuple(record(benchmark.database, calls, benchmark.tables(scale), kind="kind"))


def _heat(name: str, requests: pa.RecordBatch, is_hot: Any) -> pa.RecordBatch:
    columns = {"small_bank": {"id": 100, "target": 100}, "tpcc": {"d_id": 1, "c_d_id": 1, "c_id": 2}}[name]
    rows = requests.to_pylist()
    for row, chosen in zip(rows, is_hot.tolist(), strict=True):
        if name == "small_bank" and not chosen:  # the benchmark has a hot spot of its own
            row["id"], row["target"] = (row["id"] * 7919) % 20_000, (row["target"] * 104_729) % 20_000
        for column, size in columns.items() if chosen else ():
            if row[column] is not None:
                row[column] = row[column] % size + (name == "tpcc")
        if chosen and row.get("items"):
            row["items"] = [item % 10 + 1 for item in row["items"]]
    return pa.RecordBatch.from_pylist(rows, schema=requests.schema)


@dataclass
class Workload:
    """The transactions of a benchmark for a number of partitions, in the order of their requests."""

    rules: ConflictRules
    transactions: list[Transaction]

    @property
    def single(self) -> list[Transaction]:
        """Those that need one partition."""
        return [one for one in self.transactions if len(one.partitions) == 1]

    def distributed(self, nodes: int | None = None) -> list[Transaction]:
        """Return those that need several, on so many nodes."""
        found = [one for one in self.transactions if len(one.partitions) > 1]
        return [one for one in found if nodes in (None, len({place // NODE for place in one.partitions}))]


def workload(name: str, count: int, partitions: int, hot: float = -1.0) -> Workload:
    """Return the second half of the transactions, estimated by models of the first."""
    benchmark = BENCHMARKS[name]
    placements = _place(name, partitions)
    traces = traces_of(name, count, hot)
    all_statements = [statements_of(trace, benchmark.procedure.text) for trace in traces]
    rules = ConflictRules(one for each in all_statements for one in each)
    keys = KeyNumbers()
    found: list[Transaction] = []
    for trace, statements in zip(traces, all_statements, strict=True):
        samples = Samples.of(trace, placements, partitions)
        half = len(samples) // 2
        models = train(samples.slice(0, max(half, 1)), 0.5, clustered=False)
        rest = samples.slice(half, len(samples))
        found += read_transactions(rest, models, statements, rules, keys)
    order = np.random.default_rng(3).permutation(len(found)).tolist()
    return Workload(rules, [found[place] for place in order])


def _place(name: str, partitions: int) -> dict[str, Placement]:
    tables = BENCHMARKS[name].database.tables
    ranges = {}
    if name == "tpcc":  # as many warehouses in each partition
        each = SCALES[name][1].warehouses // partitions
        bounds = [number * each + 1 for number in range(1, partitions)]
        ranges = {spec.name: bounds for spec in tables.values() if spec.partition_by is not None}
    return place_tables(tables, partitions, ranges)


def simulate(
    work: Sequence[Transaction],
    extra: Sequence[Transaction],
    rules: ConflictRules,
    mode: Mode,
    partitions: int,
    *,
    prefetches: bool = False,
    counts: bool = False,
    clients: int = CLIENTS,
) -> Measurements:
    """Run transactions in virtual time."""
    cluster = Cluster(rules, mode, partitions, NODE, prefetches=prefetches, count_candidates=counts)
    return cluster.run(work, extra, max(clients * partitions, 1))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def figure_1(count: int, each: int) -> Iterator[str]:
    """Fig. 6.1: where the time of distributed transactions goes, without speculation."""
    yield "Fig. 6.1: 16 partitions on 2 nodes, no speculation; simulated, in virtual time"
    yield ""
    yield (
        f"{'a: time':12}{'single':>9}{'one node':>10}{'two nodes':>11}{'ratio':>7} |{'b: locks':>9}{'SP1':>6}"
        f"{'SP3':>6} base |{'SP2':>6}{'SP3':>6} remote |{'c: 1st remote query':>20}{'its result':>12}"
    )
    for name in PAPER_NAMES:
        load = workload(name, count, 16)
        one = simulate(_some(load.distributed(1), 4 * each), [], load.rules, "none", 16, clients=1)
        two = simulate(_some(load.distributed(2), 4 * each), [], load.rules, "none", 16, clients=1)
        alone = _mean([COSTS.begin_us + COSTS.query_us * len(one.path) for one in load.single])
        keys = (("locks", True), ("SP1", True), ("SP3", True), ("SP2", False), ("SP3", False))
        shares = [two.stalls_us.get(key, 0.0) / two.held_us[key[1]] for key in keys]
        first = _mean([begin for begin, _ in two.first_us]), _mean([end for _, end in two.first_us])
        yield (
            f"{SCALES[name][0]:12}{alone / 1e3:>6.2f} ms{_mean(one.run_us) / 1e3:>7.2f} ms"
            f"{_mean(two.run_us) / 1e3:>8.2f} ms{_mean(two.run_us) / _mean(one.run_us):>6.1f}x |"
            f"{shares[0]:>9.0%}{shares[1]:>6.0%}{shares[2]:>6.0%}      |{shares[3]:>6.0%}{shares[4]:>6.0%}"
            f"        |{first[0] / 1e3:>17.2f} ms{first[1] / 1e3:>9.2f} ms"
        )
    yield (
        f"{'paper':12}{'':>9}{'':>10}{'':>11}{'3-5x':>7} |{'':>9}{'':>6}{'22%':>6}      |{'68-85%':>6}"
        f"{'2-6%':>6}       |{'a result takes about 0.5 ms':>32}"
    )


def _some(transactions: Sequence[Transaction], count: int) -> list[Transaction]:
    """Return so many transactions, again from the first if there are too few."""
    if not transactions:
        return []
    repeats = -(-count // len(transactions))
    return (list(transactions) * repeats)[:count]


def figure_7(count: int, each: int) -> Iterator[str]:
    """Fig. 6.7 and 6.8: throughput and latency by configuration and size of the cluster."""
    yield "Fig. 6.7 and 6.8: throughput and latencies; simulated, in virtual time"
    yield ""
    yield (
        f"{'':13}{'partitions':>10}{'distributed':>13} {'configuration':14}{'per second':>12}{'None = 1':>10}"
        f"{'single':>11}{'distributed':>13}{'speculated':>12}{'rolled back':>13}"
    )
    best: dict[str, float] = {}
    for name, (title, _) in SCALES.items():
        for partitions in (8, 16, 32):
            load = workload(name, count, partitions)
            work = _some(load.transactions, each * partitions)
            share = len(load.distributed()) / len(load.transactions)
            base = 0.0
            for configuration, (mode, prefetches) in CONFIGURATIONS.items():
                found = simulate(work, load.single, load.rules, mode, partitions, prefetches=prefetches)
                base = base or found.per_second
                ratio = found.per_second / base
                best[title] = max(best.get(title, 0.0), ratio)
                yield (
                    f"{title:13}{partitions:>10}{share:>13.1%} {configuration:14}{found.per_second:>12,.0f}"
                    f"{ratio:>9.2f}x{_mean(found.single_us) / 1e3:>8.1f} ms"
                    f"{_mean(found.distributed_us) / 1e3:>10.1f} ms{found.speculated:>12,}"
                    f"{found.rolled_back:>13,}"
                )
    yield ""
    yield "paper: SpecTxn 2x for SmallBank; SpecAll +770.8 % and latencies -88.4 % for SmallBank with 32"
    yield "partitions, +211 to +771 % and -74 to -88 % over all; SpecQuery nothing for SEATS and TPC-C"
    yield "here: at best " + ", ".join(f"{title} {ratio - 1:+.0%}" for title, ratio in best.items())


def figure_9(count: int, each: int) -> Iterator[str]:
    """Fig. 6.9: conflicts by the table and by the row."""
    yield "Fig. 6.9: 16 partitions on 2 nodes, SpecTxn; a is measured, b to d are simulated"
    yield ""
    yield (
        f"{'':13}{'level':8}{'a: choice':>12}{'b: eligible':>13}{'more':>8}{'paper':>8}{'c: per second':>15}"
        f"{'d: single':>12}{'distributed':>13}"
    )
    paper = {"seats": "10.3 %", "small_bank": "29.3 %", "tpcc": "57.6 %"}
    for name, (title, _) in SCALES.items():
        load = workload(name, count, 16)
        work = _some(load.transactions, each * 16)
        eligible: list[float] = []
        levels: tuple[Mode, ...] = ("tables", "rows")
        for level in levels:
            found = simulate(work, load.single, load.rules, level, 16, counts=True)
            looked, kept = map(sum, zip(*found.yields, strict=True)) if found.yields else (1, 1)
            eligible.append(kept / looked)
            more = f"{eligible[1] / max(eligible[0], 1e-9) - 1:.1%}" if level == "rows" else ""
            shown = paper.get(name, "") if level == "rows" else ""
            yield (
                f"{title:13}{level:8}{_choice_us(load, level):>9.1f} us{eligible[-1]:>13.1%}{more:>8}"
                f"{shown:>8}{found.per_second:>15,.0f}{_mean(found.single_us) / 1e3:>9.1f} ms"
                f"{_mean(found.distributed_us) / 1e3:>10.1f} ms"
            )
    yield ""
    yield "b: of the candidates at SP1 and SP2 once the distributed transaction has executed a query there."
    yield "paper: by the table 131.8 % (SmallBank) and 231.4 % (TPC-C) faster than by the row, no difference"
    yield "for SEATS; throughput and latency differ little"


def _choice_us(load: Workload, level: Mode) -> float:
    """Return the time to examine ten candidates while a transaction is stalled after its first query."""
    stalled = load.distributed()[:200]
    queue = load.single[:10]
    fastest = float("inf")
    for _ in range(3):
        scheduler = Scheduler(load.rules, level)
        fresh = [replace(one, summaries={}) for one in queue]
        begin = time.perf_counter()
        for one in stalled:
            place = one.base if one.path[0].partition < 0 else one.path[0].partition
            for candidate in fresh:
                candidate.summaries.clear()
            scheduler.count_eligible(Stall(one, place, executed=1), fresh)
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest / max(len(stalled), 1) * 1e6


def figure_10(count: int, each: int) -> Iterator[str]:
    """Fig. 6.10: against optimistic scheduling, with a hot spot."""
    yield "Fig. 6.10: 16 partitions on 2 nodes, 10 % distributed over both nodes; simulated, in virtual time"
    yield ""
    yield (
        f"{'':13}{'hot':>5}{'None':>11}{'OCC':>11}{'Hermes':>11}{'Hermes/OCC':>12} |{'latency OCC':>13}"
        f"{'Hermes':>10}{'longer':>9} |{'restarts':>10}{'rolled back':>13}"
    )
    gains = []
    for name in ("small_bank", "tpcc"):
        for hot in (0.0, 0.25, 0.5, 0.75, 1.0):
            load = workload(name, count, 16, hot)
            size = each * 16
            work = _some(load.distributed(2), size // 10) + _some(load.single, size - size // 10)
            order = np.random.default_rng(4).permutation(len(work)).tolist()
            work = [work[place] for place in order]
            none, occ, hermes = (
                simulate(work, load.single, load.rules, mode, 16) for mode in ("none", "occ", "rows")
            )
            both = [_mean([*one.single_us, *one.distributed_us]) for one in (occ, hermes)]
            gains.append(hermes.per_second / occ.per_second)
            yield (
                f"{SCALES[name][0]:13}{hot:>5.0%}{none.per_second:>11,.0f}{occ.per_second:>11,.0f}"
                f"{hermes.per_second:>11,.0f}{gains[-1]:>11.2f}x |{both[0] / 1e3:>10.1f} ms"
                f"{both[1] / 1e3:>7.1f} ms{both[0] / both[1] - 1:>9.0%} |{occ.restarted:>10,}"
                f"{occ.rolled_back:>13,}"
            )
    yield ""
    yield "paper: OCC 1.8 times lower throughput, at most 113 % less than Hermes, and 74.3 to 81.5 % longer"
    yield f"latencies. here: Hermes {min(gains):.2f} to {max(gains):.2f} times OCC"


FIGURES = {"6.1": figure_1, "6.7": figure_7, "6.9": figure_9, "6.10": figure_10}


def report(count: int, each: int, figure: str) -> Iterator[str]:
    """Return the lines of the result."""
    yield f"python -m benchmarks.paper.hermes {figure} --transactions {count} --each {each}"
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    yield ""
    yield from FIGURES[figure](count, each)
    yield ""
    yield f"load {os.getloadavg()[0]:.1f} at the end"


def main() -> None:
    """Simulate, print and save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.hermes", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("figures", nargs="+", choices=FIGURES)
    parser.add_argument("--transactions", type=int, default=3_000, help="of each benchmark's trace")
    parser.add_argument("--each", type=int, default=40, help="transactions for each partition")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the directory of results")
    options = parser.parse_args()
    for figure in options.figures:
        path = options.out / f"h_store_fig{figure.replace('.', '_')}.txt"
        print_and_save(report(options.transactions, options.each, figure), path)


if __name__ == "__main__":
    main()
