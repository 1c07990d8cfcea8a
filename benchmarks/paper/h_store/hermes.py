"""Speculative transactions and queries in virtual time (H-Store Fig. 6.1 and 6.7 to 6.10).

    python -m benchmarks.paper.h_store.hermes 6.1 6.7 6.9 6.10 [--transactions 1000] [--each 100]

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
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.oltp.seats.data import SeatsScale
from benchmarks.paper.h_store.measurements import Costs, Measurements
from benchmarks.paper.h_store.paths import KeyNumbers, read_transactions, statements_of
from benchmarks.paper.h_store.simulation import Cluster
from penstock.designing.traces.recording import ProcedureTrace, record
from penstock.predicting.training import Samples, train
from penstock.procedures.partitions.placement import Placement, place_tables
from penstock.procedures.programs.oltp.small_bank import SmallBankScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from penstock.speculating.rules import ConflictRules
from penstock.speculating.scheduler import Mode, Scheduler, Stall, Transaction

__all__ = ["FIGURES", "report"]

RESULTS = REPOSITORY / "benchmarks" / "results"
NODE = 8
COSTS = Costs()
CLIENTS = 25
"""The clients of a partition: 800 with 32 partitions, as in the paper."""
MORE_CLIENTS = 10
"""The additional clients of a partition: as many as candidates are examined at a time."""
SHARE = 0.1
"""The share of distributed transactions; the paper says it only in §6.6.3."""
SCALES: dict[str, tuple[str, Any]] = {
    "seats": ("SEATS", SeatsScale(customers=2_000, airports=50, airlines=50, flights=300)),
    "small_bank": ("SmallBank", SmallBankScale(customers=20_000, hot=1_000)),
    "tpcc": ("TPC-C", TpccScale(warehouses=32, districts=10, customers=20, items=200)),
}
CONFIGURATIONS: dict[str, tuple[Mode, bool]] = {
    "None": ("none", False),
    "SpecQuery": ("none", True),
    "SpecTxn": ("rows", False),
    "SpecAll": ("rows", True),
}
PAPER_NAMES = ("seats", "small_bank", "tpcc")


@cache
def traces_of(name: str, count: int, hot: float = -1.0, scale: Any = None) -> tuple[ProcedureTrace, ...]:
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
    scale : object, optional
        The size of the database; by default that of `SCALES`.
    """
    benchmark = BENCHMARKS[name]
    scale = SCALES[name][1] if scale is None else scale
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


def workload(name: str, count: int, partitions: int, hot: float = -1.0, scale: Any = None) -> Workload:
    """Return the second half of the transactions, estimated by models of the first; see `traces_of`."""
    benchmark = BENCHMARKS[name]
    placements = _place(name, partitions, scale)
    traces = traces_of(name, count, hot, scale)
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


def _place(name: str, partitions: int, scale: Any) -> dict[str, Placement]:
    tables = BENCHMARKS[name].database.tables
    ranges = {}
    if name == "tpcc":  # as many warehouses in each partition
        each = (SCALES[name][1] if scale is None else scale).warehouses // partitions
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
    costs: Costs = COSTS,
) -> Measurements:
    """Run transactions in virtual time. Only modes that speculate have additional clients (§6.6.1)."""
    cluster = Cluster(rules, mode, partitions, NODE, costs, prefetches=prefetches, count_candidates=counts)
    return cluster.run(work, extra, max(clients * partitions, 1), MORE_CLIENTS if mode != "none" else 0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def figure_1(count: int, each: int, scales: Mapping[str, tuple[str, Any]] = SCALES) -> Iterator[str]:
    """Fig. 6.1: where the time of distributed transactions goes, without speculation."""
    yield "Fig. 6.1: 16 partitions on 2 nodes, no speculation; simulated, in virtual time"
    yield ""
    yield (
        f"{'a: time':12}{'single':>9}{'one node':>10}{'two nodes':>11}{'ratio':>7} |{'b: locks':>9}{'SP1':>6}"
        f"{'SP3':>6} base |{'SP2':>6}{'SP3':>6} remote |{'c: 1st remote query':>20}{'its result':>12}"
    )
    for name, (title, scale) in scales.items():
        load = workload(name, count, 16, scale=scale)
        one = simulate(_some(load.distributed(1), 4 * each), [], load.rules, "none", 16, clients=1)
        two = simulate(_some(load.distributed(2), 4 * each), [], load.rules, "none", 16, clients=1)
        alone = _mean([COSTS.begin_us + COSTS.query_us * len(one.path) for one in load.single])
        keys = (("locks", True), ("SP1", True), ("SP3", True), ("SP2", False), ("SP3", False))
        shares = [two.stalls_us.get(key, 0.0) / two.held_us[key[1]] for key in keys]
        first = _mean([begin for begin, _ in two.first_us]), _mean([end for _, end in two.first_us])
        yield (
            f"{title:12}{alone / 1e3:>6.2f} ms{_mean(one.run_us) / 1e3:>7.2f} ms"
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


def _mix(load: Workload, size: int, nodes: int | None = None) -> list[Transaction]:
    """Return so many transactions, with the share of distributed ones, in a random order."""
    several = _some(load.distributed(nodes), int(size * SHARE))
    work = several + _some(load.single, size - len(several))
    return [work[place] for place in np.random.default_rng(4).permutation(len(work)).tolist()]


PAPER_VALUES: dict[tuple[str, str] | tuple[str, str, int], tuple[str, str]] = {
    ("SEATS", "SpecQuery"): ("1x", ""),
    ("SEATS", "SpecAll"): ("as SpecTxn", ""),
    ("SmallBank", "SpecQuery"): ("slightly more", "single less"),
    ("SmallBank", "SpecTxn"): ("2x", "single less"),
    ("SmallBank", "SpecAll", 32): ("8.7x", "-88.4%"),
    ("TPC-C", "SpecQuery"): ("1x", ""),
    ("TPC-C", "SpecQuery", 8): ("1x", "as None"),
    ("TPC-C", "SpecAll", 8): ("as SpecTxn", ""),
    ("TPC-C", "SpecAll", 16): ("as SpecTxn", ""),
    ("TPC-C", "SpecAll", 32): ("more than SpecTxn", ""),
}
"""The throughputs and latencies that the text of §6.6.1 tells, some for one size of the cluster."""


def figure_7(count: int, each: int) -> Iterator[str]:
    """Fig. 6.7 and 6.8: throughput and latency by configuration and size of the cluster."""
    yield f"Fig. 6.7 and 6.8: throughput and latencies, {SHARE:.0%} distributed; simulated, in virtual time"
    yield ""
    yield (
        f"{'':13}{'partitions':>10} {'configuration':14}{'per second':>11}{'None = 1':>10}  {'paper':17}"
        f"{'single':>10}{'':>7}{'distributed':>13}{'':>7}  {'paper':11}{'speculated':>11}{'rolled back':>13}"
    )
    best: dict[str, float] = {}
    for name in PAPER_NAMES:
        title = SCALES[name][0]
        for partitions in (8, 16, 32):
            load = workload(name, count, partitions)
            work = _mix(load, each * partitions)
            base = [0.0, 0.0, 0.0]
            for configuration, (mode, prefetches) in CONFIGURATIONS.items():
                found = simulate(work, load.single, load.rules, mode, partitions, prefetches=prefetches)
                values = [found.per_second, _mean(found.single_us), _mean(found.distributed_us)]
                base = values if configuration == "None" else base
                ratio, single, several = (one / other for one, other in zip(values, base, strict=True))
                best[title] = max(best.get(title, 0.0), ratio)
                key = title, configuration
                told = PAPER_VALUES.get((*key, partitions), PAPER_VALUES.get(key, ("", "")))
                yield (
                    f"{title:13}{partitions:>10} {configuration:14}{values[0]:>11,.0f}{ratio:>9.2f}x"
                    f"  {told[0]:17}{values[1] / 1e3:>7.2f} ms{single - 1:>+7.0%}"
                    f"{values[2] / 1e3:>10.2f} ms{several - 1:>+7.0%}  {told[1]:11}"
                    f"{found.speculated:>11,}{found.rolled_back:>13,}"
                )
    yield ""
    yield "paper, over all: throughput +211 to +771 %, latencies -74 to -88 %. Its curves are only drawn; the"
    yield "columns have the values that its text tells."
    yield "here, at best: " + ", ".join(f"{title} {ratio - 1:+.0%}" for title, ratio in best.items())
    yield "With SEATS, a look-up by text needs all partitions here. H-Store replicates an index for that."
    yield "Probably its stalls are longer for this reason, and more transactions run in them. SpecTxn makes"
    yield "distributed transactions slower, probably because they wait behind the additional clients."


def figure_9(count: int, each: int) -> Iterator[str]:
    """Fig. 6.9: conflicts by the table and by the row."""
    yield f"Fig. 6.9: 16 partitions on 2 nodes, SpecTxn, {SHARE:.0%} distributed"
    yield "a is measured, b to d are simulated in virtual time"
    yield ""
    yield (
        f"{'':13}{'level':8}{'a: choice':>12}{'longer':>8}{'paper':>8} |{'b: eligible':>12}{'more':>8}"
        f"{'paper':>8}{'compared':>10}{'more':>9} |{'c: per second':>14}{'d: single':>12}{'distributed':>13}"
    )
    paper = {"seats": ("none", "10.3%"), "small_bank": ("131.8%", "29.3%"), "tpcc": ("231.4%", "57.6%")}
    for name in PAPER_NAMES:
        title = SCALES[name][0]
        load = workload(name, count, 16)
        work = _mix(load, each * 16)
        times = _choices_us(load)
        shares: list[tuple[float, float]] = []
        levels: tuple[Mode, ...] = ("tables", "rows")
        for level in levels:
            found = simulate(work, load.single, load.rules, level, 16, counts=True)
            shares.append((_share(found.yields), _share(found.compared)))
            more, shown = ["", "", ""], ("", "")
            if level == "rows":
                pairs = [(times[1], times[0]), *zip(shares[1], shares[0], strict=True)]
                more = [f"{one / max(other, 1e-9) - 1:.1%}" for one, other in pairs]
                shown = paper.get(name, shown)
            yield (
                f"{title:13}{level:8}{times[level == 'rows']:>9.1f} us{more[0]:>8}{shown[0]:>8} |"
                f"{shares[-1][0]:>12.1%}{more[1]:>8}{shown[1]:>8}{shares[-1][1]:>10.1%}{more[2]:>9} |"
                f"{found.per_second:>14,.0f}{_mean(found.single_us) / 1e3:>9.2f} ms"
                f"{_mean(found.distributed_us) / 1e3:>10.2f} ms"
            )
    yield ""
    yield "a: the time to compare ten candidates whose estimates are known, the least of many, by CPU time."
    yield "b: of all candidates whenever one is looked for, as in the paper; compared: only at SP1 and SP2"
    yield "after the distributed transaction has executed a query there. All others are eligible anyway."
    yield "paper: throughput and latency differ little"
    yield "TPC-C has few more of all, probably because most of its stalls are before the first query. SEATS"
    yield "has none more, probably because its statements that conflict are ranges, or their keys are results"
    yield "of earlier queries."


def _share(yields: Sequence[tuple[int, int]]) -> float:
    looked, kept = map(sum, zip(*yields, strict=True)) if yields else (1, 1)
    return kept / looked


def _choices_us(load: Workload) -> tuple[float, float]:
    """Return the CPU time to compare ten candidates by tables and by rows, after a first query.

    The levels alternate, and the least time of each counts, so that other processes do not matter.
    """
    stalled = [one for one in load.distributed() if len(one.path) > 1][:200]
    queue = load.single[:10]
    levels: tuple[Mode, ...] = ("tables", "rows")
    schedulers = [Scheduler(load.rules, level) for level in levels]
    stalls = [
        Stall(one, one.base if (at := one.path[0].partition) < 0 else at, executed=1) for one in stalled
    ]
    least = [float("inf")] * len(levels)
    for _ in range(9):
        for place, scheduler in enumerate(schedulers):
            begin = time.thread_time()
            for stall in stalls:
                scheduler.count_eligible(stall, queue)
            least[place] = min(least[place], time.thread_time() - begin)
    return least[0] / len(stalls) * 1e6, least[1] / len(stalls) * 1e6


VALIDATIONS_US = (10.0, 40.0, 160.0)
"""Assumed times for which OCC compares the accesses of one speculative transaction."""


def figure_10(count: int, each: int) -> Iterator[str]:
    """Fig. 6.10: against optimistic scheduling, with a hot spot."""
    yield "Fig. 6.10: 16 partitions on 2 nodes, 10 % distributed over both nodes; simulated, in virtual time"
    yield ""
    yield (
        f"{'':13}{'hot':>5}{'None':>10}{'Hermes':>10}{'latency':>11} |{'check':>8}{'OCC':>10}"
        f"{'Hermes/OCC':>12}{'latency OCC':>14}{'longer':>9}{'restarts':>10}{'rolled back':>13}"
    )
    gains: dict[float, list[float]] = {}
    for name in ("small_bank", "tpcc"):
        for hot in (0.0, 0.5, 1.0):
            load = workload(name, count, 16, hot)
            work = _mix(load, each * 16, 2)
            none, hermes = (simulate(work, load.single, load.rules, mode, 16) for mode in ("none", "rows"))
            latency = _mean([*hermes.single_us, *hermes.distributed_us])
            for check_us in VALIDATIONS_US:
                costs = replace(COSTS, validate_us=check_us)
                occ = simulate(work, load.single, load.rules, "occ", 16, costs=costs)
                longer = _mean([*occ.single_us, *occ.distributed_us])
                gains.setdefault(check_us, []).append(hermes.per_second / occ.per_second)
                yield (
                    f"{SCALES[name][0]:13}{hot:>5.0%}{none.per_second:>10,.0f}{hermes.per_second:>10,.0f}"
                    f"{latency / 1e3:>8.2f} ms |{check_us:>5.0f} us{occ.per_second:>10,.0f}"
                    f"{gains[check_us][-1]:>11.2f}x{longer / 1e3:>11.2f} ms{longer / latency - 1:>9.0%}"
                    f"{occ.restarted:>10,}{occ.rolled_back:>13,}"
                )
    yield ""
    yield "paper: OCC 1.8 times lower throughput, at most 113 % less than Hermes, and 74.3 to 81.5 % longer"
    yield "latencies, mostly because partitions compare accesses during the commit (§6.6.3). The time of that"
    yield "is not told, so the check is a parameter here: the time for one speculative transaction."
    for check_us, ratios in gains.items():
        yield f"here, {check_us:.0f} us: Hermes {min(ratios):.2f} to {max(ratios):.2f} times OCC"


FIGURES = {"6.1": figure_1, "6.7": figure_7, "6.9": figure_9, "6.10": figure_10}


def report(count: int, each: int, figure: str) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.paper.h_store.hermes {figure} --transactions {count} --each {each}"
    )
    yield from FIGURES[figure](count, each)
    yield from report_foot()


def main() -> None:
    """Simulate, print and save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.h_store.hermes", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("figures", nargs="+", choices=FIGURES)
    parser.add_argument("--transactions", type=int, default=1_000, help="of each benchmark's trace")
    parser.add_argument("--each", type=int, default=100, help="transactions for each partition")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the directory of results")
    options = parser.parse_args()
    for figure in options.figures:
        path = options.out / f"h_store_fig{figure.replace('.', '_')}.txt"
        print_and_save(report(options.transactions, options.each, figure), path)


if __name__ == "__main__":
    main()
