"""OB: bids, alterations of twenty prices and top-ups of twenty items (TStream §VI-A)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.language import abort
from penstock.procedures.programs.packaged import PackagedProgram, events_of, integers, lists, zipf

__all__ = ["ONLINE_BIDDING"]

OPEN, BID, ALTER, TOP = range(4)
_LENGTH = 20
_SKEW = 0.6
_FIRST_PRICE, _FIRST_QUANTITY = 30, 100

_ob = database("OB")
_ob.table("items", "id bigint, price bigint NOT NULL, quantity bigint NOT NULL", key="id")


@_ob.procedure(event="kind bigint NOT NULL, keys array<bigint> NOT NULL, price bigint NOT NULL")
def trade(e: Any, items: Any) -> Any:
    """Bid for an item, alter prices, or add to quantities."""
    if e.kind == OPEN:
        items.insert(id=e.keys[0], price=e.price, quantity=_FIRST_QUANTITY)
        return
    if e.kind == BID:
        item = items[e.keys[0]]
        if e.price < item.price:
            abort("too little")
        if item.quantity < 1:
            abort("sold out")
        item.quantity -= 1
    elif e.kind == ALTER:
        for key in e.keys:
            items[key].price = e.price
    else:
        for key in e.keys:
            items[key].quantity += 1


def _opening(keys: int) -> pa.RecordBatch:
    return events_of(trade, [OPEN, lists(np.arange(keys), 1), _FIRST_PRICE])


def _workload(count: int, keys: int, seed: int) -> pa.RecordBatch:
    kinds = np.maximum(integers(seed, count, 8) - 5, 0) + BID
    sizes = np.where(kinds == BID, 1, _LENGTH)
    items = lists(zipf(seed + 1, int(sizes.sum()), keys, _SKEW), sizes)
    return events_of(trade, [kinds, items, integers(seed + 2, count, 100)])


ONLINE_BIDDING = PackagedProgram(
    "OB", "bid, alter twenty prices, or top up twenty items", _ob, trade, _opening, _workload
)
"""Bids, alterations and top-ups are in the ratio 6 : 1 : 1. Keys have a Zipf distribution (exponent 0.6)."""
