"""Divide the transactions of a call: some run in a partition, the rest are forwarded to the coordinator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock._kernels import kernel
from penstock.procedures.texts import Numbers

__all__ = [
    "FORWARDED",
    "find_first",
    "find_homes",
    "forward",
    "merge_homes",
    "order_by_home",
    "take_rows",
]

FORWARDED = -1
"""The partition of a transaction that is forwarded."""


@kernel
def find_homes(starts: Numbers, partitions: Numbers, homes: Numbers) -> int:
    """Set each transaction's partition, or `FORWARDED` if it needs several; return how many need several.

    Parameters
    ----------
    starts : ndarray
        For each transaction, the position of its first partition in `partitions`; the last element is the
        length of `partitions`.
    partitions : ndarray
        The partitions that each transaction needs, in the order of the transactions.
    homes : ndarray
        Receives the partition of each transaction, or `FORWARDED`.
    """
    several = 0
    for i in range(starts.shape[0] - 1):
        begin, end = starts[i], starts[i + 1]
        home = partitions[begin] if begin < end else np.int64(0)
        for k in range(begin, end):
            if partitions[k] != home:
                home = np.int64(-1)
                several += 1
                break
        homes[i] = home
    return several


@kernel
def merge_homes(homes: Numbers, partitions: Numbers) -> int:
    """Update the result of `find_homes` in place for one more partition that each transaction needs.

    `partitions` has this partition for each transaction. Return how many transactions need several partitions
    only because of it.
    """
    several = 0
    for i in range(homes.shape[0]):
        if homes[i] >= 0 and homes[i] != partitions[i]:
            homes[i] = -1
            several += 1
    return several


@kernel
def forward(
    starts: Numbers, resources: Numbers, partitions: Numbers, tainted: npt.NDArray[np.bool_]
) -> Numbers:
    """Return the partition in which each transaction runs, or `FORWARDED`.

    A transaction is forwarded if it needs several partitions, or if it needs a resource (a row or partition)
    that an earlier forwarded transaction needs. All other transactions need no such resource. So they can run
    before the forwarded transactions, with the same results as in the given order.

    Parameters
    ----------
    starts : ndarray
        For each transaction, the position of its first resource in `resources`; the last element is the
        length of `resources`.
    resources : ndarray
        The numbers of the resources that each transaction needs, in the order of the transactions. Two
        resources may have the same number; then more transactions may be forwarded, but the results are the
        same.
    partitions : ndarray
        The partition of each resource in `resources`.
    tainted : ndarray
        Working memory with an element for each resource number; all elements are false.
    """
    count = starts.shape[0] - 1
    homes = np.zeros(count, np.int64)
    for i in range(count):
        begin, end = starts[i], starts[i + 1]
        if begin == end:
            continue
        home = partitions[begin]
        for k in range(begin, end):
            if partitions[k] != home or tainted[resources[k]]:
                home = -1
                break
        homes[i] = home
        if home < 0:
            for k in range(begin, end):
                tainted[resources[k]] = True
    return homes


@kernel
def find_first(
    starts: Numbers, resources: Numbers, homes: Numbers, tainted: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the single-partition transactions that must end before forwarded transactions begin.

    A transaction must end first if it needs a resource of a later forwarded transaction, or of a later
    transaction that must end first. All other transactions can run at the same time as the forwarded
    transactions.

    Parameters
    ----------
    starts, resources, tainted
        See `forward`.
    homes : ndarray
        The result of `forward`.
    """
    first = np.zeros(homes.shape[0], np.bool_)
    for i in range(homes.shape[0] - 1, -1, -1):
        begin, end = starts[i], starts[i + 1]
        taints = homes[i] < 0
        if not taints:
            for k in range(begin, end):
                if tainted[resources[k]]:
                    taints = True
                    break
            first[i] = taints
        if taints:
            for k in range(begin, end):
                tainted[resources[k]] = True
    return first


@kernel
def order_by_home(homes: Numbers, partitions: int) -> tuple[Numbers, Numbers, Numbers]:
    """Order transactions by their homes; forwarded transactions come first.

    Returns
    -------
    order : ndarray
        The numbers of the transactions, forwarded transactions first, then by home.
    places : ndarray
        The position of each transaction in `order`.
    begins : ndarray
        The position in `order` of the first forwarded transaction, then of the first transaction of each
        home; the last element is the number of transactions.
    """
    begins = np.zeros(partitions + 2, np.int64)
    for i in range(homes.shape[0]):
        begins[homes[i] + 2] += 1
    for home in range(partitions + 1):
        begins[home + 1] += begins[home]
    order = np.empty(homes.shape[0], np.int64)
    places = np.empty(homes.shape[0], np.int64)
    at = begins.copy()
    for i in range(homes.shape[0]):
        place = at[homes[i] + 1]
        order[place] = i
        places[i] = place
        at[homes[i] + 1] = place + 1
    return order, places, begins


def take_rows(rows: pa.RecordBatch, order: Numbers) -> pa.RecordBatch:
    """Return the rows at the positions of `order`, in this order."""
    places = pa.array(order)
    columns = [
        column if column.null_count == len(column) else pc.take(column, places, boundscheck=False)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
