"""The throughput of a design on a cluster of partitions, in virtual time (H-Store §4.6.3).

A partition runs one transaction at a time. The unit of time is that of a single-partition transaction.
Clients send a request after the answer to the one before.

- A distributed transaction holds all of its partitions for `DISTRIBUTED` units, in which they wait for each
  other's messages. With this number a tenth of distributed transactions halves the throughput of 64
  partitions, as in (H-Store Fig. 4.1a): `python -m benchmarks.designs.design_figures costs`.
- A transaction that begins in another partition than the one that has its rows is aborted and begins again
  there (§4.6.3): that costs the first partition `REDIRECT` units.
"""

from __future__ import annotations

import heapq

import numpy as np

from penstock.designing.cost_kernels import Masks
from penstock.procedures.texts import Numbers

__all__ = ["CLIENTS", "DISTRIBUTED", "REDIRECT", "throughput"]

DISTRIBUTED = 2.5
REDIRECT = 1.0
CLIENTS = 4
"""The clients for each partition."""


def throughput(needed: Masks, partitions: int, bases: Numbers | None = None) -> float:
    """Return the transactions in a unit of time.

    Parameters
    ----------
    needed : ndarray of uint64
        The partitions that each transaction needs, in the order of requests; none is any.
    partitions : int
        The number of partitions.
    bases : ndarray of int64, optional
        The partition in which each transaction begins; by default one that it needs.
    """
    free = np.zeros(partitions)
    clients = [0.0] * (CLIENTS * partitions)  # when each sends its next request
    places = np.arange(partitions, dtype=np.uint64)
    for number, mask in enumerate(needed):
        mine = np.flatnonzero((mask >> places) & np.uint64(1))
        if not len(mine):
            mine = np.array([int(np.argmin(free))])
        begin = heapq.heappop(clients)
        base = mine[0] if bases is None else bases[number]
        if base not in mine:
            free[base] = max(free[base], begin) + REDIRECT
            begin = free[base]
        spent = 1.0 if len(mine) == 1 else DISTRIBUTED
        end = max(begin, float(free[mine].max())) + spent
        free[mine] = end
        heapq.heappush(clients, end)
    return len(needed) / float(free.max())
