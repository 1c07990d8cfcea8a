"""The first rows of TPC-C's tables and its requests (TPC-C 4.3, 2.1.6, 5.2.3).

Texts that nothing compares come from pools of 512 texts, unlike in the specification.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.programs.oltp.benchmark import Draws, OltpBenchmark, decimals, table_of, times
from penstock.procedures.programs.oltp.tpcc import (
    DELIVERY,
    DISTRICTS,
    NEW_ORDER,
    ORDER_STATUS,
    PAYMENT,
    STOCK_LEVEL,
    TPCC,
    transact,
)
from penstock.procedures.programs.oltp.tpcc_conditions import CONDITIONS
from penstock.procedures.programs.packaged import Integers, events_of, lists

__all__ = ["TPCC_BENCHMARK", "TpccScale"]

SYLLABLES = ("BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING")
LAST_NAMES = ["".join(names) for names in itertools.product(SYLLABLES, repeat=3)]
FIRST_PAYMENT = 10_00
"""The payment of each customer in the first rows, in cents."""
_KINDS = np.repeat([NEW_ORDER, PAYMENT, ORDER_STATUS, DELIVERY, STOCK_LEVEL], [45, 43, 4, 4, 4])
"""One hundred kinds: the specification's mix of transactions in per cent."""
_C_LAST_LOAD, _C_LAST_RUN, _C_ID, _C_ITEM = 100, 200, 259, 7911
"""The constants of non-uniform draws. The first two must differ by 65 to 119, but not by 96 or 112."""


@dataclass(frozen=True)
class TpccScale:
    """The size of TPC-C's database.

    Parameters
    ----------
    warehouses : int
        The number of warehouses.
    districts : int
        The number of districts of a warehouse, at most ten.
    customers : int
        The number of customers of a district, which is also the number of its first orders.
    items : int
        The number of items, which is also the number of stock rows of a warehouse.
    """

    warehouses: int = 1
    districts: int = DISTRICTS
    customers: int = 3_000
    items: int = 100_000

    @property
    def last_names(self) -> int:
        """The number of last names that the first customers of each district have."""
        return min(self.customers, len(LAST_NAMES))


def non_uniform(draws: Draws, count: int, a: int, least: int, most: int, constant: int) -> Integers:
    """Draw integers from `least` to `most`, some of them more often than others (TPC-C 2.1.6)."""
    mixed = draws.integers(count, 0, a) | draws.integers(count, least, most)
    return (mixed + constant) % (most - least + 1) + least


def first_rows(scale: TpccScale) -> dict[str, pa.Table]:
    """Return the first rows of all tables."""
    draws = Draws(1)
    w_ids = np.arange(1, scale.warehouses + 1)
    districts = _Keys(w_ids, scale.districts)
    customers = _Keys(districts.own, scale.customers, districts.owner)
    stocks = _Keys(w_ids, scale.items)
    district_ytd = FIRST_PAYMENT * scale.customers
    tables = {
        "warehouses": {
            "w_id": w_ids, **_place(draws, len(w_ids)), "tax": _tax(draws, len(w_ids)),
            "ytd": decimals(np.full(len(w_ids), district_ytd * scale.districts), 14, 2),
        },
        "districts": {
            "w_id": districts.owner, "d_id": districts.own, **_place(draws, len(districts)),
            "tax": _tax(draws, len(districts)), "ytd": decimals(np.full(len(districts), district_ytd), 14, 2),
            "next_o_id": scale.customers + 1,
        },
        "customers": _customers(draws, customers, scale),
        "history": {
            "c_w_id": customers.first, "c_d_id": customers.owner, "c_id": customers.own, "number": 1,
            "d_id": customers.owner, "w_id": customers.first, "date": times(len(customers)),
            "amount": decimals(np.full(len(customers), FIRST_PAYMENT), 6, 2),
            "w_name": draws.texts(len(customers), 6, 10), "d_name": draws.texts(len(customers), 6, 10),
        },
        "items": {
            "i_id": np.arange(1, scale.items + 1), "im_id": draws.integers(scale.items, 1, 10_000),
            "name": draws.texts(scale.items, 14, 24),
            "price": decimals(draws.integers(scale.items, 1_00, 100_00), 5, 2),
            "data": draws.texts(scale.items, 26, 50),
        },
        "stock": {
            "w_id": stocks.owner, "i_id": stocks.own, "quantity": draws.integers(len(stocks), 10, 100),
            **{f"dist_{n:02}": draws.texts(len(stocks), 24, 24) for n in range(1, DISTRICTS + 1)},
            "ytd": 0, "order_cnt": 0, "remote_cnt": 0, "data": draws.texts(len(stocks), 26, 50),
        },
        **_orders(draws, customers, scale),
    }  # fmt: skip
    return {name: table_of(TPCC, name, columns) for name, columns in tables.items()}


class _Keys:
    """The keys of rows that belong to owners; an owner has several rows."""

    def __init__(self, owners: Integers, count: int, first: Integers | None = None) -> None:
        self.own = np.tile(np.arange(1, count + 1), len(owners))
        self.owner = np.repeat(owners, count)
        self.first = self.owner if first is None else np.repeat(first, count)

    def __len__(self) -> int:
        return len(self.own)


def _place(draws: Draws, count: int) -> dict[str, Any]:
    return {
        "name": draws.texts(count, 6, 10),
        "street_1": draws.texts(count, 10, 20),
        "street_2": draws.texts(count, 10, 20),
        "city": draws.texts(count, 10, 20),
        "state": draws.texts(count, 2, 2),
        "zip": draws.digits(count, 9),
    }


def _tax(draws: Draws, count: int) -> pa.Array[Any]:
    return decimals(draws.integers(count, 0, 2_000), 4, 4)


def _customers(draws: Draws, keys: _Keys, scale: TpccScale) -> dict[str, Any]:
    count = len(keys)
    drawn = non_uniform(draws, count, 255, 0, 999, _C_LAST_LOAD) % scale.last_names
    last = np.where(keys.own <= scale.last_names, keys.own - 1, drawn)
    bad = draws.fractions(count) < 0.1
    payments = np.full(count, FIRST_PAYMENT)
    return {
        **_place(draws, count), "w_id": keys.first, "d_id": keys.owner, "c_id": keys.own,
        "first": draws.texts(count, 8, 16), "middle": "OE", "last": pa.array(LAST_NAMES).take(pa.array(last)),
        "phone": draws.digits(count, 16), "since": times(count),
        "credit": pa.array(["GC", "BC"]).take(pa.array(bad.astype(np.int64))),
        "credit_lim": decimals(np.full(count, 50_000_00), 14, 2),
        "discount": decimals(draws.integers(count, 0, 5_000), 4, 4), "balance": decimals(-payments, 14, 2),
        "ytd_payment": decimals(payments, 14, 2), "payment_cnt": 1, "delivery_cnt": 0,
        "data": draws.texts(count, 300, 500),
    }  # fmt: skip


def _orders(draws: Draws, customers: _Keys, scale: TpccScale) -> dict[str, dict[str, Any]]:
    """Return an order for each customer; the last 30 per cent of a district's orders are not delivered."""
    count = len(customers)
    shuffled = np.argsort(draws.fractions(count).reshape(-1, scale.customers), axis=1).reshape(-1) + 1
    w_id, d_id, o_id = customers.first, customers.owner, customers.own
    is_new = o_id > scale.customers - scale.customers * 3 // 10
    ol_cnt, entry_d = draws.integers(count, 5, 15), times(count)
    line_count = int(ol_cnt.sum())
    order = np.repeat(np.arange(count), ol_cnt)
    new_line = is_new[order]
    amount = np.where(new_line, draws.integers(line_count, 1, 9_999_99), 0)
    return {
        "orders": {
            "w_id": w_id, "d_id": d_id, "o_id": o_id, "c_id": shuffled, "entry_d": entry_d,
            "carrier_id": pa.array(draws.integers(count, 1, 10), mask=is_new), "ol_cnt": ol_cnt,
            "all_local": 1,
        },
        "new_orders": {"w_id": w_id[is_new], "d_id": d_id[is_new], "o_id": o_id[is_new]},
        "order_lines": {
            "w_id": w_id[order], "d_id": d_id[order], "o_id": o_id[order],
            "number": np.arange(line_count) - np.repeat(np.cumsum(ol_cnt) - ol_cnt, ol_cnt) + 1,
            "i_id": draws.integers(line_count, 1, scale.items), "supply_w_id": w_id[order],
            "delivery_d": pa.array(entry_d[order], mask=new_line), "quantity": 5,
            "amount": decimals(amount, 6, 2), "dist_info": draws.texts(line_count, 24, 24),
        },
    }  # fmt: skip


def requests(scale: TpccScale, count: int, seed: int) -> pa.RecordBatch:
    """Draw requests of all kinds (TPC-C 2.4.1 to 2.8.1, 5.2.3)."""
    draws = Draws(seed + 1)
    kinds = _KINDS[draws.integers(count, 0, 99)]
    w_id = draws.integers(count, 1, scale.warehouses)
    d_id = draws.integers(count, 1, scale.districts)
    is_order, is_payment = kinds == NEW_ORDER, kinds == PAYMENT
    is_remote = is_payment & (draws.fractions(count) < 0.15) & (scale.warehouses > 1)
    by_name = (is_payment | (kinds == ORDER_STATUS)) & (draws.fractions(count) < 0.6)
    c_id = non_uniform(draws, count, 1_023, 1, scale.customers, _C_ID)
    last = non_uniform(draws, count, 255, 0, 999, _C_LAST_RUN) % scale.last_names
    number = np.where(kinds == DELIVERY, draws.integers(count, 1, 10), draws.integers(count, 10, 20))

    sizes = np.where(is_order, draws.integers(count, 5, 15), 0)
    line_count = int(sizes.sum())
    items = non_uniform(draws, line_count, 8_191, 1, scale.items, _C_ITEM)
    is_invalid = is_order & (draws.fractions(count) < 0.01)
    items[np.cumsum(sizes)[is_invalid] - 1] = scale.items + 1
    home = np.repeat(w_id, sizes)
    is_far = (draws.fractions(line_count) < 0.01) & (scale.warehouses > 1)
    columns = [
        kinds, w_id, d_id, np.where(is_remote, _other(draws, w_id, scale), w_id),
        np.where(is_remote, draws.integers(count, 1, scale.districts), d_id),
        pa.array(c_id, mask=by_name), pa.array(LAST_NAMES).take(pa.array(last, mask=~by_name)),
        decimals(draws.integers(count, 1_00, 5_000_00), 6, 2), number,
        pa.array(times(count), pa.timestamp("us")),
        lists(items, sizes), lists(np.where(is_far, _other(draws, home, scale), home), sizes),
        lists(draws.integers(line_count, 1, 10), sizes),
    ]  # fmt: skip
    return events_of(transact, columns)


def _other(draws: Draws, w_id: Integers, scale: TpccScale) -> Integers:
    """Draw a different warehouse for each warehouse, if there are several."""
    step = draws.integers(len(w_id), 1, max(scale.warehouses - 1, 1))
    return (w_id - 1 + step) % scale.warehouses + 1


TPCC_BENCHMARK = OltpBenchmark(
    "tpcc",
    "new order, payment, order status, delivery, stock level",
    TPCC,
    transact,
    TpccScale(),
    TpccScale(warehouses=2, districts=2, customers=30, items=100),
    first_rows,
    requests,
    CONDITIONS,
)
"""TPC-C with the mix of its specification; the unit of scale is a warehouse."""
