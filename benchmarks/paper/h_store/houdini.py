"""The accuracy of predictions for TATP, TPC-C, AuctionMark and SEATS (H-Store Tables 5.3 and 5.4).

    python -m benchmarks.paper.h_store.houdini [--transactions 10000] [--partitions 16]
        [--benchmarks tatp tpcc]

Transactions are recorded in Python over small databases. The first half trains the models of each kind of
transaction, once one for all and once several that features choose; the second half measures them. They do
not learn from it. Nothing runs in partitions: a transaction's partitions follow from the keys of its queries.

TATP's requests name the subscriber by number and by text, since one event serves all kinds of transactions.
The compiler knows the number. In "TATP by text" the kinds that have only the text in the specification have
no number; the digits of the text are it, which the trace shows. In "TATP by name" the text is no number, so
that nothing tells the partition before the query over all partitions has run, as in the paper. There an
update by the text is one query in all partitions (UpdateLocation). Here it reads the text's row and writes
it, which "TATP by name" counts as one query.

AuctionMark's CloseAuctions, which runs at intervals, is not predicted; the paper leaves out CheckWinningBids
for its many queries. SEATS is not in the paper's tables.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from benchmarks.oltp.auction_mark import procedures as auction
from benchmarks.oltp.auction_mark.data import AuctionMarkScale
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.oltp.seats.data import SeatsScale
from penstock.designing.traces.recording import ProcedureTrace, record
from penstock.predicting.accuracy import Accuracy
from penstock.predicting.models.predictor import ProcedureModels
from penstock.predicting.training import Samples, measure, train
from penstock.procedures.partitions.placement import Placement, place_tables
from penstock.procedures.programs.oltp import tatp
from penstock.procedures.programs.oltp.tatp import TatpScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale

__all__ = ["SETTINGS", "Measured", "Setting", "measure_all", "report", "requests_of", "trace_of"]

RESULT = REPOSITORY / "benchmarks" / "results" / "houdini.txt"
THRESHOLD = 0.5
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class Setting:
    """A benchmark, the size of its database, and the names of its kinds of transactions."""

    title: str
    scale: Any
    kinds: Sequence[str]
    left_out: Sequence[int] = ()
    benchmark: str = ""


_TATP_KINDS = (
    "GetSubscriber", "GetNewDest", "GetAccessData", "UpdateSubscriber", "UpdateLocation", "InsertCallFwrd",
    "DeleteCallFwrd",
)  # fmt: skip
_TATP = Setting("TATP", TatpScale(2_000), _TATP_KINDS)
SETTINGS = {
    "tatp": _TATP,
    "tatp_text": replace(_TATP, title="TATP by text", benchmark="tatp"),
    "tatp_name": replace(_TATP, title="TATP by name", benchmark="tatp"),
    "tpcc": Setting(
        "TPC-C",
        TpccScale(warehouses=16, districts=4, customers=10, items=50),
        ("NewOrder", "Payment", "OrderStatus", "Delivery", "StockLevel"),
    ),
    "auction_mark": Setting(
        "AuctionMark",
        AuctionMarkScale(users=2_000, items=20_000, categories=200, groups=20),
        ("GetItem", "GetUserInfo", "NewBid", "NewComment", "NewCommentResponse", "NewFeedback", "NewItem",
         "NewPurchase", "UpdateItem"),
        (auction.CLOSE_AUCTIONS,),
    ),
    "seats": Setting(
        "SEATS",
        SeatsScale(customers=2_000, airports=20, airlines=10, flights=400, seats=40),
        ("DeleteReservation", "FindFlights", "FindOpenSeats", "NewReservation", "UpdateCustomer",
         "UpdateReservation"),
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
PAPER_USES = {
    "tatp": {
        "DeleteCallFwrd": "- 100 - -, 20 us",
        "GetAccessData": "98.5 100 64.8 33.7, 10 us",
        "GetNewDest": "100 100 66.4 33.6, 10 us",
        "GetSubscriber": "98.9 100 64.9 34.1, 10 us",
        "InsertCallFwrd": "- 100 - -, 40 us",
        "UpdateLocation": "- 100 - -, 10 us",
        "UpdateSubscriber": "100 100 - 53.2, 20 us",
    },
    "tpcc": {
        "Delivery": "100 100 78.6 22.4, 4230 us",
        "NewOrder": "99.5 93.2 72.5 19.6, 430 us",
        "OrderStatus": "100 100 89.6 85.3, 50 us",
        "Payment": "99.1 99.7 60.6 16.4, 80 us",
        "StockLevel": "99.2 100 46.7 22.0, 50 us",
    },
    "auction_mark": {
        "GetItem": "100 100 89.0 11.0, 40 us",
        "GetUserInfo": "99.9 100 75.3 8.4, 50 us",
        "NewBid": "100 100 83.2 13.3, 260 us",
        "NewComment": "99.5 100 44.6 11.3, 130 us",
        "NewItem": "100 100 95.9 4.1, 200 us",
        "NewPurchase": "99.0 100 46.4 11.1, 120 us",
        "UpdateItem": "100 100 90.5 9.5, 40 us",
    },
}
"""Table 5.4: OP1 to OP4 in per cent, and the time of an estimate with its updates."""


@dataclass
class Measured:
    """The models of one kind of transactions, and their accuracy."""

    kind: str
    models: tuple[ProcedureModels, ProcedureModels]
    accuracy: tuple[Accuracy, Accuracy]
    estimate_us: float
    seconds: float


def requests_of(
    name: str, count: int, setting: Setting | None = None
) -> tuple[pa.RecordBatch, dict[str, pa.Table]]:
    """Return the requests of a benchmark, by default of its usual size, and the first rows of its tables."""
    setting = setting or SETTINGS[name]
    benchmark = BENCHMARKS[setting.benchmark or name]
    requests = benchmark.requests(setting.scale, count, 1)
    tables = benchmark.tables(setting.scale)
    if name in ("tatp_text", "tatp_name"):
        requests = _hide_numbers(requests)
    if name == "tatp_name":
        requests = _name_subscribers(requests)
        tables["subscribers"] = _name_subscribers(tables["subscribers"])
    return requests, tables


def trace_of(name: str, count: int, setting: Setting | None = None) -> list[ProcedureTrace]:
    """Return the recorded transactions of a benchmark, of each kind by itself; see `requests_of`."""
    setting = setting or SETTINGS[name]
    benchmark = BENCHMARKS[setting.benchmark or name]
    requests, tables = requests_of(name, count, setting)
    calls = [(benchmark.procedure.name, requests)]
    traces = record(benchmark.database, calls, tables, kind="kind")
    if name == "tatp_name":
        traces = [_join_update(one) if _kind_of(one) == tatp.UPDATE_LOCATION else one for one in traces]
    return [one for one in traces if _kind_of(one) not in setting.left_out]


def _kind_of(trace: ProcedureTrace) -> int:
    return 0 if trace.kind is None else int(trace.kind[1])


def _hide_numbers(requests: pa.RecordBatch) -> pa.RecordBatch:
    """Return TATP's requests without the number of the subscriber where the specification has the text."""
    by_text = np.isin(
        requests.column("kind").to_numpy(),
        [tatp.UPDATE_LOCATION, tatp.INSERT_FORWARDING, tatp.DELETE_FORWARDING],
    )
    numbers = np.where(by_text, 0, requests.column("s_id").to_numpy())
    place = requests.schema.get_field_index("s_id")
    return requests.set_column(place, requests.schema.field(place), pa.array(numbers))


def _name_subscribers(rows: Rows) -> Rows:
    """Return rows whose texts of subscribers are no numbers."""
    place = rows.schema.get_field_index("sub_nbr")
    names = pc.replace_substring(rows.column(place), "0", "o")
    return rows.set_column(place, rows.schema.field(place), names)


def _join_update(trace: ProcedureTrace) -> ProcedureTrace:
    """Return updates by an index as one query, which SQL runs in all partitions."""
    (select,) = (place for place, name in enumerate(trace.names) if name.verb == "select")
    chosen = trace.query == select
    before = np.concatenate([[0], np.cumsum(chosen)])
    names = (trace.names[select]._replace(verb="write"),)
    return replace(
        trace, names=names, starts=before[trace.starts], query=np.zeros(int(chosen.sum()), np.int64),
        keys={0: trace.keys[select]},
    )  # fmt: skip


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
    return Measured(kinds[_kind_of(trace)], models, accuracy, _estimate_us(models[1], rest), trained)


def _estimate_us(models: ProcedureModels, samples: Samples) -> float:
    """Return the time of an estimate, with the choice of its model, of all transactions at once."""
    trace = samples.trace
    parameters = models.parameters(trace.program.event, samples.placements, samples.partitions)
    walker = models.walker(parameters, THRESHOLD)
    walker.walk(parameters.read(trace.events), np.zeros(1, np.int64), np.zeros(1, np.int64))  # compiles
    begin = time.perf_counter()
    numbers = models.choose(trace.events, trace.program.event, samples.partitions)
    walker.walk(parameters.read(trace.events), np.arange(len(samples)), numbers)
    return (time.perf_counter() - begin) / max(len(samples), 1) * 1e6


def total(parts: Sequence[Measured], place: int) -> Accuracy:
    """Return the accuracy of all kinds."""
    accuracy = Accuracy()
    for one in parts:
        accuracy.merge(one.accuracy[place])
    return accuracy


def _paper(optimization: str, name: str, place: int) -> str:
    values = PAPER[optimization].get(SETTINGS[name].benchmark or name)
    return "-" if values is None else f"{values[place]:.1f}%"


def report(names: Sequence[str], count: int, partitions: int) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.paper.h_store.houdini --transactions {count} --partitions {partitions} "
        f"--benchmarks {' '.join(names)}"
    )
    found = {name: measure_all(name, count, partitions) for name in names}
    yield f"Table 5.3: right predictions for transactions not trained with, {partitions} partitions"
    yield ""
    heads = "".join(f"{SETTINGS[name].title:>14}{'paper':>8}" for name in names)
    yield f"{'':8}{'models':14}{heads}"
    for optimization, field in OPTIMIZATIONS.items():
        for place, title in enumerate(("global", "partitioned")):
            cells = "".join(
                f"{total(found[name], place).share(field):>14.1%}{_paper(optimization, name, place):>8}"
                for name in names
            )
            yield f"{optimization if place == 0 else '':8}{title:14}{cells}"
    yield ""
    yield "Table 5.4: how often an optimization is used, with partitioned models"
    yield ""
    yield (
        f"{'':13}{'procedure':20}{'share':>7}{'OP1':>8}{'OP2':>8}{'OP3':>8}{'OP4':>8}{'estimate':>11}"
        f"{'models':>8}{'states':>8}{'training':>10}  {'paper: OP1 to OP4 %, estimate':32}features"
    )
    for name in names:
        everything = total(found[name], 1).transactions
        for one in found[name]:
            accuracy, models = one.accuracy[1], one.models[1]
            cells = "".join(
                f"{accuracy.share(field):>8.1%}" for field in ("base", "partitions", "no_undo", "early")
            )
            states = sum(len(model) - 3 for model in models.models)
            paper = PAPER_USES.get(SETTINGS[name].benchmark or name, {}).get(one.kind, "-")
            yield (
                f"{SETTINGS[name].title:13}{one.kind:20}{accuracy.transactions / everything:>7.1%}{cells}"
                f"{one.estimate_us:>8.1f} us{len(models.models):>8}{states:>8,}{one.seconds:>8.1f} s  "
                f"{paper:32}{', '.join(map(str, models.features)) or '-'}"
            )
    yield ""
    yield "OP3: runs without an undo log, from the begin or from a later query on. OP4: a distributed"
    yield "transaction rightly ends in a partition before its last query. estimate: the mean time"
    yield "of all transactions at once, each by itself, with the choice of its model. In the paper OP4 counts"
    yield "the transactions that ran in a partition because another transaction had finished with it."
    yield from report_foot()


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
