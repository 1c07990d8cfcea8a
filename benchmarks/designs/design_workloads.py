"""The benchmarks for which designs are compared, and the designs that are known to be best (H-Store §4.6.1).

A trace has the rows that transactions access when they run. All benchmarks but TPC-E are recorded in Python,
so their databases are small. A transaction's kind counts as its procedure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.designs import tpce
from benchmarks.designs.recorded_traces import record
from benchmarks.oltp.auction_mark.data import AuctionMarkScale
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.oltp.seats.data import SeatsScale
from penstock.designing.cost import Choice
from penstock.designing.initial import route_by_frequency
from penstock.designing.traces.trace import Trace
from penstock.designing.workload import TableOption, Workload
from penstock.procedures.partitions.design import PartitionColumns
from penstock.procedures.programs.oltp.small_bank import SmallBankScale
from penstock.procedures.programs.oltp.tatp import TatpScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from penstock.procedures.programs.oltp.voter import VoterScale
from penstock.procedures.programs.oltp.ycsb import YcsbScale

__all__ = ["WORKLOADS", "Setting", "encode", "known_choice", "skew", "trace_of"]

INTERVALS = 10
TRANSACTIONS_PER_PARTITION = 20
"""The transactions for each partition that an interval needs: the skew of fewer is chance."""


@dataclass(frozen=True)
class Setting:
    """A benchmark and the size of its database.

    Attributes
    ----------
    benchmark : str
        Its name; ``tpce`` is a trace without a database.
    scale : object
        Its size.
    is_skewed : bool
        Whether all requests of an interval are of one warehouse.
    known : mapping
        The column by which each table is partitioned in the design that is known to be best; tables that it
        does not name are replicated. Empty if no design is known.
    indexes : mapping
        The replicated index of tables in this design.
    """

    benchmark: str
    scale: Any
    is_skewed: bool = False
    known: Mapping[str, PartitionColumns] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)


_SUBSCRIBER = ("subscribers", "access_info", "facilities", "forwarding")
_WAREHOUSE = ("warehouses", "districts", "customers", "new_orders", "orders", "order_lines", "stock")
_BY_WAREHOUSE = dict.fromkeys(_WAREHOUSE, "w_id") | {"history": "c_w_id"}
_OF_USERS = (
    "users", "user_attributes", "items", "item_attributes", "item_images", "item_comments", "item_bids",
    "item_max_bids", "item_purchases", "feedback", "user_items", "watches",
)  # fmt: skip

WORKLOADS = {
    "TATP": Setting(
        "tatp",
        TatpScale(2_000),
        known=dict.fromkeys(_SUBSCRIBER, "s_id"),
        indexes={"subscribers": "sub_nbr"},
    ),
    "TPC-C": Setting(
        "tpcc", TpccScale(warehouses=64, districts=4, customers=10, items=50), known=_BY_WAREHOUSE
    ),
    "TPC-C (skewed)": Setting("tpcc", TpccScale(warehouses=64, districts=10, customers=10, items=50), True),
    "SEATS": Setting(
        "seats",
        SeatsScale(customers=2_000, airports=30, airlines=20, flights=400, seats=40),
        known={"customers": "c_id", "frequent_flyers": "c_id", "flights": "f_id", "reservations": "f_id"},
        indexes={"customers": "id_str", "frequent_flyers": "id_str"},
    ),
    "AuctionMark": Setting(
        "auction_mark",
        AuctionMarkScale(users=1_000, items=5_000, categories=100, groups=20),
        known=dict.fromkeys(_OF_USERS, "u_id"),
    ),
    "TPC-E": Setting("tpce", tpce.TpceScale()),
    "SmallBank": Setting(
        "small_bank",
        SmallBankScale(customers=5_000, hot=500),
        known=dict.fromkeys(("accounts", "savings", "checking"), "id"),
    ),
    "YCSB": Setting("ycsb", YcsbScale(records=2_000), known={"records": "id"}),
    "Voter": Setting(
        "voter", VoterScale(), known={"votes": "phone", "callers": "phone", "totals": "contestant"}
    ),
}
"""TPC-C (skewed) and TPC-E have no known design in the paper either."""


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


def trace_of(setting: Setting, count: int, seed: int = 1) -> tuple[Trace, Trace]:
    """Return the traces to design for, and to measure."""
    if setting.benchmark == "tpce":
        trace = tpce.trace(setting.scale, 2 * count, seed)
        return trace.slice(0, count), trace.slice(count, 2 * count)
    benchmark = BENCHMARKS[setting.benchmark]
    requests = benchmark.requests(setting.scale, 2 * count, seed)
    halves = [requests.slice(0, count), requests.slice(count)]
    if setting.is_skewed:
        halves = [skew(half, setting.scale.warehouses) for half in halves]
    calls = [(benchmark.procedure.name, half) for half in halves]
    kind = "kind" if "kind" in requests.schema.names else None
    trace = record(benchmark.database, calls, benchmark.tables(setting.scale), kind=kind)
    return trace.slice(0, count), trace.slice(count, 2 * count)


def encode(
    setting: Setting,
    trace: Trace,
    partitions: int,
    options: Mapping[str, Sequence[TableOption]] | None = None,
) -> Workload:
    """Return a workload in ten intervals, as many as the skewed one has, or fewer that have enough load."""
    most = max(trace.transactions // (TRANSACTIONS_PER_PARTITION * partitions), 1)
    intervals = INTERVALS if setting.is_skewed else min(INTERVALS, most)
    return Workload.encode(trace, partitions, intervals, options=options)


def known_choice(setting: Setting, workload: Workload) -> Choice | None:
    """Return the design that is known to be best, with the routes that lead to most rows."""
    if not setting.known:
        return None
    tables = []
    for name, options in zip(workload.names, workload.options, strict=True):
        column, index = setting.known.get(name), setting.indexes.get(name)
        with_index = TableOption(column, None, None if index is None else (index,))
        tables.append(options.index(with_index if with_index in options else TableOption(column)))
    masks = workload.fixed.copy()
    for table, option in enumerate(tables):
        masks |= workload.row(table, option)
    return Choice(np.array(tables, np.int64), route_by_frequency(workload, masks))
