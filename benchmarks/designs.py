"""Designs of Horticulture and its peers, by coordination cost and skew (H-Store Fig. 4.5), and search speed.

    python -m benchmarks.designs [--transactions 2000] [--partitions 4 16 64] [--seconds 20]

Each algorithm designs for a trace, and is measured on the next transactions of the same generator. A trace
has the rows that transactions access when they run, as for H-Store, which finds out their partitions at run
time. Traces are smaller than the paper's (25,000 transactions each), and so are the databases: they are
recorded in Python. So an interval has about as many transactions as there are 64 partitions: there, much of
the skew is chance, and a design that avoids it in one trace does not in the next. A transaction's kind counts
as its procedure.

HR+ is `penstock.designing.search`. The peers are simple and only here:

- HR-: each table, then each route, gets the best option in turn, given the others; one pass.
- MFA: the most frequently accessed column, read-only tables replicated, the most frequent route.
- SCH: `benchmarks.schism`, a graph of rows cut into parts, explained by columns.
- PKY: the last column of the primary key, which tells rows apart. The paper takes the whole key.

TPC-C (skewed) is TPC-C in which all transactions of an interval are of one warehouse. The paper's design for
it has two columns for a table, which is no option here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import REPOSITORY, machine, print_and_save
from benchmarks.recorded_traces import record
from benchmarks.schism import graph_choice
from penstock.designing.cost import Choice, CostModel
from penstock.designing.initial import most_frequent, route_by_frequency
from penstock.designing.search import Limits, search
from penstock.designing.traces.trace import Trace
from penstock.designing.workload import TableOption, Workload
from penstock.procedures.programs.oltp import OLTP
from penstock.procedures.programs.oltp.small_bank import SmallBankScale
from penstock.procedures.programs.oltp.tatp import TatpScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from penstock.procedures.programs.oltp.voter import VoterScale
from penstock.procedures.programs.oltp.ycsb import YcsbScale

__all__ = ["WORKLOADS", "report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "designs.txt"
INTERVALS = 10


@dataclass(frozen=True)
class Setting:
    """A benchmark and the size of its database."""

    benchmark: str
    scale: Any
    is_skewed: bool = False


WORKLOADS = {
    "TATP": Setting("tatp", TatpScale(2_000)),
    "TPC-C": Setting("tpcc", TpccScale(warehouses=64, districts=4, customers=10, items=50)),
    "TPC-C (skewed)": Setting("tpcc", TpccScale(warehouses=64, districts=10, customers=10, items=50), True),
    "SmallBank": Setting("small_bank", SmallBankScale(customers=5_000, hot=500)),
    "YCSB": Setting("ycsb", YcsbScale(records=2_000)),
    "Voter": Setting("voter", VoterScale()),
}


def skew(requests: pa.RecordBatch, warehouses: int) -> pa.RecordBatch:
    """Return TPC-C's requests with all home warehouses of an interval being one."""
    count = requests.num_rows
    home = 1 + (np.arange(count) * INTERVALS // count) * 7 % warehouses
    columns = {name: requests.column(name) for name in requests.schema.names}
    before = columns["w_id"].to_numpy()
    supplies = columns["supplies"]
    sizes = pc.fill_null(pc.list_value_length(supplies), 0).to_numpy()
    flat = supplies.flatten().to_numpy()
    flat = np.where(flat == np.repeat(before, sizes), np.repeat(home, sizes), flat)
    mask = pa.array(~supplies.is_valid().to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    columns["supplies"] = pa.ListArray.from_arrays(offsets, pa.array(flat), mask=mask)
    columns["c_w_id"] = pa.array(
        np.where(columns["c_w_id"].to_numpy() == before, home, columns["c_w_id"].to_numpy())
    )
    columns["w_id"] = pa.array(home)
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in requests.schema], schema=requests.schema
    )


def trace_of(setting: Setting, count: int) -> tuple[Trace, Trace]:
    """Return the traces to design for, and to measure."""
    benchmark = OLTP[setting.benchmark]
    requests = benchmark.requests(setting.scale, 2 * count, 1)
    halves = [requests.slice(0, count), requests.slice(count)]
    if setting.is_skewed:
        halves = [skew(half, setting.scale.warehouses) for half in halves]
    calls = [(benchmark.procedure.name, half) for half in halves]
    kind = "kind" if "kind" in requests.schema.names else None
    trace = record(benchmark.database, calls, benchmark.tables(setting.scale), kind=kind)
    return trace.slice(0, count), trace.slice(count, 2 * count)


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


def report(count: int, partitions: Sequence[int], seconds: float, names: Sequence[str]) -> Iterator[str]:
    """Return the lines of the result."""
    yield (
        f"python -m benchmarks.designs --transactions {count} "
        f"--partitions {' '.join(map(str, partitions))} --seconds {seconds:g}"
    )
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    yield ""
    yield "Coordination cost and skew on other transactions than those of the design; lower is better."
    yield ""
    yield (
        f"{'workload':16}{'partitions':>10}  {'algorithm':10}{'coordination':>13}{'skew':>8}{'cost':>9}"
        f"{'single':>8}{'records':>9}{'designs/s':>11}"
    )
    for name in names:
        design_trace, test_trace = trace_of(WORKLOADS[name], count)
        for number in partitions:
            workload = Workload.encode(design_trace, number, INTERVALS)
            model = CostModel(workload)
            test = CostModel(Workload.encode(test_trace, number, INTERVALS, options=workload.named_options))
            found = search(model, limits=Limits(seconds=seconds))
            choices = {
                "HR+": found.choice,
                "HR-": greedy(model),
                "SCH": graph_choice(model, primary_keys(model)),
                "MFA": most_frequent_choice(model),
                "PKY": primary_keys(model),
            }
            for algorithm, choice in choices.items():
                cost = test.measure(choice)
                speed = f"{found.designs / found.seconds:>11,.0f}" if algorithm == "HR+" else ""
                yield (
                    f"{name:16}{number:>10}  {algorithm:10}{cost.coordination:>13.4f}{cost.skew:>8.3f}"
                    f"{cost.total:>9.4f}{cost.single:>8.1%}{workload.records:>9,}{speed}"
                )
    yield ""
    yield "records: the transactions of the trace after compression. designs/s: of the search, on one core."
    yield ""
    yield f"load {os.getloadavg()[0]:.1f} at the end"


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
