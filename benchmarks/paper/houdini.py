"""The accuracy of predictions for TATP, TPC-C and AuctionMark (H-Store Tables 5.3 and 5.4).

    python -m benchmarks.paper.houdini [--transactions 10000] [--partitions 16] [--benchmarks tatp tpcc]

Transactions are recorded in Python over small databases. The first half trains the models of each kind of
transaction, once one for all and once several that features choose; the second half measures them. They do
not learn from it. Nothing runs in partitions: a transaction's partitions follow from the keys of its queries.

TATP's requests name the subscriber by number and by text, since one event serves all kinds of transactions.
In "TATP by text" the number is removed from the kinds that have only the text in the specification, so that
the partition depends on what a query over all partitions finds. In the paper, UpdateLocation then writes in
all partitions; here it writes the row that was found. AuctionMark's CloseAuctions, which runs at
intervals, is not predicted; the paper leaves out CheckWinningBids for its many queries.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, print_and_save
from benchmarks.oltp.auction_mark import procedures as auction
from benchmarks.oltp.auction_mark.data import AuctionMarkScale
from benchmarks.oltp.catalog import BENCHMARKS
from penstock.predicting.accuracy import Accuracy
from penstock.predicting.models.predictor import ProcedureModels
from penstock.predicting.recording import ProcedureTrace, record
from penstock.predicting.training import Samples, measure, train
from penstock.procedures.partitions.placement import Placement, place_tables
from penstock.procedures.programs.oltp import tatp
from penstock.procedures.programs.oltp.tatp import TatpScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale

__all__ = ["SETTINGS", "Measured", "measure_all", "report", "trace_of"]

RESULT = REPOSITORY / "benchmarks" / "results" / "houdini.txt"
THRESHOLD = 0.5


@dataclass(frozen=True)
class Setting:
    """A benchmark, the size of its database, and the names of its kinds of transactions."""

    title: str
    scale: Any
    kinds: Sequence[str]
    left_out: Sequence[int] = ()
    benchmark: str = ""


SETTINGS = {
    "tatp": Setting(
        "TATP",
        TatpScale(2_000),
        ("GetSubscriber", "GetNewDest", "GetAccessData", "UpdateSubscriber", "UpdateLocation",
         "InsertCallFwrd", "DeleteCallFwrd"),
    ),
    "tatp_text": Setting(
        "TATP by text",
        TatpScale(2_000),
        ("GetSubscriber", "GetNewDest", "GetAccessData", "UpdateSubscriber", "UpdateLocation",
         "InsertCallFwrd", "DeleteCallFwrd"),
        benchmark="tatp",
    ),
    "tpcc": Setting(
        "TPC-C",
        TpccScale(warehouses=16, districts=4, customers=10, items=50),
        ("NewOrder", "Payment", "OrderStatus", "Delivery", "StockLevel"),
    ),
    "auction_mark": Setting(
        "AuctionMark",
        AuctionMarkScale(),
        ("GetItem", "GetUserInfo", "NewBid", "NewComment", "NewCommentResponse", "NewFeedback", "NewItem",
         "NewPurchase", "UpdateItem"),
        (auction.CLOSE_AUCTIONS,),
    ),
}  # fmt: skip
OPTIMIZATIONS = {"OP1": "base", "OP2": "partitions", "OP3": "undo", "OP4": "finish", "total": "total"}
PAPER = {
    "OP1": {"tatp": (95.0, 94.9), "tpcc": (94.8, 99.9), "auction_mark": (94.9, 94.7)},
    "OP2": {"tatp": (98.9, 100.0), "tpcc": (90.9, 99.0), "auction_mark": (90.7, 95.4)},
    "OP3": {"tatp": (100.0, 100.0), "tpcc": (100.0, 100.0), "auction_mark": (100.0, 100.0)},
    "OP4": {"tatp": (99.5, 99.5), "tpcc": (100.0, 95.8), "auction_mark": (100.0, 99.9)},
    "total": {"tatp": (94.9, 94.9), "tpcc": (93.8, 95.0), "auction_mark": (85.6, 90.2)},
}
"""Table 5.3: global and partitioned models, in per cent."""


@dataclass
class Measured:
    """The models of one kind of transactions, and their accuracy."""

    kind: str
    samples: Samples
    models: tuple[ProcedureModels, ProcedureModels]
    accuracy: tuple[Accuracy, Accuracy]
    estimate_us: float
    seconds: float


def trace_of(name: str, count: int) -> list[ProcedureTrace]:
    """Return the recorded transactions of a benchmark, of each kind by itself."""
    setting = SETTINGS[name]
    benchmark = BENCHMARKS[setting.benchmark or name]
    requests = benchmark.requests(setting.scale, count, 1)
    if name == "tatp_text":
        by_text = np.isin(
            requests.column("kind").to_numpy(),
            [tatp.UPDATE_LOCATION, tatp.INSERT_FORWARDING, tatp.DELETE_FORWARDING],
        )
        numbers = np.where(by_text, 0, requests.column("s_id").to_numpy())
        place = requests.schema.get_field_index("s_id")
        requests = requests.set_column(place, requests.schema.field(place), pa.array(numbers))
    calls = [(benchmark.procedure.name, requests)]
    traces = record(benchmark.database, calls, benchmark.tables(setting.scale), kind="kind")
    return [one for one in traces if one.kind is None or one.kind[1] not in setting.left_out]


def measure_all(name: str, count: int, partitions: int) -> list[Measured]:
    """Return the models and their accuracy for all kinds of transactions of a benchmark."""
    database = BENCHMARKS[SETTINGS[name].benchmark or name].database
    placements = place_tables(database.tables, partitions, {})
    return [
        _measure(trace, SETTINGS[name].kinds, placements, partitions)
        for trace in sorted(trace_of(name, count), key=lambda one: one.title)
    ]


def _measure(
    trace: ProcedureTrace, kinds: Sequence[str], placements: dict[str, Placement], partitions: int
) -> Measured:
    samples = Samples.of(trace, placements, partitions)
    half = len(samples) // 2
    known, rest = samples.slice(0, half), samples.slice(half, len(samples))
    begin = time.perf_counter()
    models = (train(known, THRESHOLD, clustered=False), train(known, THRESHOLD, clustered=True))
    trained = time.perf_counter() - begin
    accuracy = (measure(models[0], rest, THRESHOLD), measure(models[1], rest, THRESHOLD))
    number = 0 if trace.kind is None else int(trace.kind[1])
    return Measured(kinds[number], rest, models, accuracy, _estimate_us(models[1], rest), trained)


def _estimate_us(models: ProcedureModels, samples: Samples) -> float:
    """Return the time of one estimate that was not made before, with the choice of its model."""
    models = replace(models)
    models.forget_estimates()
    trace = samples.trace
    begin = time.perf_counter()
    numbers = models.choose(trace.events, trace.program.event, samples.partitions).tolist()
    values = models.parameters(trace.program.event, samples.placements, samples.partitions).read(trace.events)
    for event, number in enumerate(numbers):
        models.forget_estimates()
        models.estimate(values, values.signature(event), number, THRESHOLD)
    return (time.perf_counter() - begin) / max(len(samples), 1) * 1e6


def total(parts: Sequence[Measured], place: int) -> Accuracy:
    """Return the accuracy of all kinds."""
    accuracy = Accuracy()
    for one in parts:
        accuracy.merge(one.accuracy[place])
    return accuracy


def report(names: Sequence[str], count: int, partitions: int) -> Iterator[str]:
    """Return the lines of the result."""
    yield (
        f"python -m benchmarks.paper.houdini --transactions {count} --partitions {partitions} "
        f"--benchmarks {' '.join(names)}"
    )
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    yield ""
    found = {name: measure_all(name, count, partitions) for name in names}
    yield f"Table 5.3: right predictions for transactions not trained with, {partitions} partitions"
    yield ""
    heads = "".join(f"{SETTINGS[name].title:>14}{'paper':>8}" for name in names)
    yield f"{'':8}{'models':14}{heads}"
    for optimization, field in OPTIMIZATIONS.items():
        for place, title in enumerate(("global", "partitioned")):
            cells = "".join(
                f"{total(found[name], place).share(field):>14.1%}"
                f"{PAPER[optimization][SETTINGS[name].benchmark or name][place]:>7.1f}%"
                for name in names
            )
            yield f"{optimization if place == 0 else '':8}{title:14}{cells}"
    yield ""
    yield "Table 5.4: how often an optimization is used, with partitioned models"
    yield ""
    yield (
        f"{'':13}{'procedure':20}{'share':>7}{'OP1':>8}{'OP2':>8}{'OP3':>8}{'OP4':>8}{'estimate':>11}"
        f"{'models':>8}{'states':>8}{'training':>10}  features"
    )
    for name in names:
        everything = total(found[name], 1).transactions
        for one in found[name]:
            accuracy, models = one.accuracy[1], one.models[1]
            cells = "".join(
                f"{accuracy.share(field):>8.1%}" for field in ("base", "partitions", "no_undo", "early")
            )
            states = sum(len(model) - 3 for model in models.models)
            yield (
                f"{SETTINGS[name].title:13}{one.kind:20}{accuracy.transactions / everything:>7.1%}{cells}"
                f"{one.estimate_us:>8.1f} us{len(models.models):>8}{states:>8,}{one.seconds:>8.1f} s  "
                f"{', '.join(map(str, models.features)) or '-'}"
            )
    yield ""
    yield "OP3: runs without an undo log, from the begin or from a later query on. OP4: a distributed"
    yield "transaction rightly ends in a partition before its last query. estimate: in Python, of an event"
    yield "that no earlier one equals in what the models read."
    yield ""
    yield f"load {os.getloadavg()[0]:.1f} at the end"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--benchmarks", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.benchmarks, options.transactions, options.partitions), options.out)


if __name__ == "__main__":
    main()
