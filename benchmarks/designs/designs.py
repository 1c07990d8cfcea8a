"""Designs of Horticulture and its peers, by coordination cost and skew (H-Store Fig. 4.5), and search speed.

    python -m benchmarks.designs.designs [--transactions 2000] [--partitions 4 16 64] [--seconds 20]

Each algorithm designs for a trace, and is measured on the next transactions of the same generator. A trace
has the rows that transactions access when they run, as for H-Store, which finds out their partitions at run
time. Traces are smaller than the paper's (25,000 transactions each), and so are the databases: they are
recorded in Python. So there are ten intervals of skew only where each has 20 transactions for a partition,
else fewer. A transaction's kind counts as its procedure.

HR+ is `penstock.designing.search`. The peers are simple and only here:

- HR-: each table, then each route, gets the best option in turn, given the others; one pass.
- MFA: the most frequently accessed column, read-only tables replicated, the most frequent route.
- SCH: `benchmarks.designs.schism`, a graph of rows cut into parts, explained by columns.
- PKY: the last column of the primary key, which tells rows apart. The paper takes the whole key.

TPC-C (skewed) is TPC-C in which all transactions of an interval are of one warehouse. TPC-E is a trace alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.designs.design_workloads import WORKLOADS, encode, trace_of
from benchmarks.designs.schism import graph_choice
from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from penstock.designing.cost import Choice, CostModel
from penstock.designing.initial import most_frequent, route_by_frequency
from penstock.designing.search import Limits, search
from penstock.designing.workload import TableOption

__all__ = ["designs_of", "report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "designs.txt"


def greedy(model: CostModel) -> Choice:
    """Return the design of HR-."""
    workload = model.workload
    tables = most_frequent(model)
    routing = route_by_frequency(workload, model.masks(tables))
    for table in np.argsort(-workload.heat, kind="stable"):
        costs = []
        for option in range(len(workload.options[table])):
            tables[table] = option
            costs.append(model.measure(Choice(tables, routing)).total)
        tables[table] = int(np.argmin(costs))
    for procedure, names in enumerate(workload.attributes):
        costs = []
        for place in range(len(names)):
            routing[procedure] = place
            costs.append(model.measure(Choice(tables, routing)).total)
        routing[procedure] = int(np.argmin(costs))
    return Choice(tables, routing)


def most_frequent_choice(model: CostModel) -> Choice:
    """Return the design of MFA."""
    tables = most_frequent(model)
    return Choice(tables, route_by_frequency(model.workload, model.masks(tables)))


def primary_keys(model: CostModel) -> Choice:
    """Return the design of PKY."""
    workload = model.workload
    tables = []
    for place, options in zip(workload.tables, workload.options, strict=True):
        wanted = TableOption(workload.trace.tables[place].key[-1])
        tables.append(options.index(wanted) if wanted in options else options.index(TableOption(None)))
    chosen = np.array(tables, np.int64)
    return Choice(chosen, route_by_frequency(workload, model.masks(chosen)))


def designs_of(model: CostModel, found: Choice) -> dict[str, Choice]:
    """Return the design of each algorithm; `found` is the design of HR+."""
    return {
        "HR+": found,
        "HR-": greedy(model),
        "SCH": graph_choice(model, primary_keys(model)),
        "MFA": most_frequent_choice(model),
        "PKY": primary_keys(model),
    }


def report(count: int, partitions: Sequence[int], seconds: float, names: Sequence[str]) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.designs.designs --transactions {count} "
        f"--partitions {' '.join(map(str, partitions))} --seconds {seconds:g}"
    )
    yield "Coordination cost and skew on other transactions than those of the design; lower is better."
    yield ""
    yield (
        f"{'workload':16}{'partitions':>10}  {'algorithm':10}{'coordination':>13}{'skew':>8}{'cost':>9}"
        f"{'single':>8}{'records':>9}{'designs/s':>11}"
    )
    for name in names:
        design_trace, test_trace = trace_of(WORKLOADS[name], count)
        for number in partitions:
            workload = encode(WORKLOADS[name], design_trace, number)
            model = CostModel(workload)
            options = dict(zip(workload.names, workload.options, strict=True))
            test = CostModel(encode(WORKLOADS[name], test_trace, number, options))
            found = search(model, limits=Limits(seconds=seconds))
            for algorithm, choice in designs_of(model, found.choice).items():
                cost = test.measure(choice)
                speed = f"{found.designs / found.seconds:>11,.0f}" if algorithm == "HR+" else ""
                yield (
                    f"{name:16}{number:>10}  {algorithm:10}{cost.coordination:>13.4f}{cost.skew:>8.3f}"
                    f"{cost.total:>9.4f}{cost.single:>8.1%}{workload.records:>9,}{speed}"
                )
    yield ""
    yield "records: the transactions of the trace after compression. designs/s: of the search, on one core."
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    lines = report(options.transactions, options.partitions, options.seconds, options.workloads)
    print_and_save(lines, options.out)


if __name__ == "__main__":
    main()
