"""The kernel that computes the probability tables of a Markov model (H-Store §5.2.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.procedures.texts import Numbers

__all__ = ["sweep_tables"]

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]


@kernel
def sweep_tables(
    order: Numbers,
    starts: Numbers,
    children: Numbers,
    shares: Floats,
    accessed: Booleans,
    writes: Booleans,
    alone: Booleans,
    scalars: Floats,
    tables: Floats,
) -> float:
    """Compute the probabilities of each vertex from its successors; return the greatest change.

    Parameters
    ----------
    order : ndarray
        The vertices to compute, successors first.
    starts : ndarray
        The position of each vertex's first edge; the last element is the number of edges.
    children, shares : ndarray
        The vertex that each edge leads to, and its probability.
    accessed : ndarray, two-dimensional
        Whether the query of each vertex accesses each partition.
    writes : ndarray
        Whether the query of each vertex writes.
    alone : ndarray
        For each vertex, whether its query and all queries before it access at most one partition.
    scalars : ndarray, two-dimensional
        Receives, for each vertex, the probability that a transaction aborts, and the probability that it
        needs only one partition.
    tables : ndarray, three-dimensional
        Receives, for each vertex and partition, the probabilities that a transaction reads the partition,
        writes the partition, and has finished with the partition.
    """
    greatest = 0.0
    width = tables.shape[1]
    for place in range(order.shape[0]):
        vertex = order[place]
        begin, end = starts[vertex], starts[vertex + 1]
        if begin == end:
            continue
        abort = 0.0
        single = 0.0
        for k in range(begin, end):
            abort += shares[k] * scalars[children[k], 0]
            single += shares[k] * scalars[children[k], 1]
        if not alone[vertex]:
            single = 0.0
        greatest = max(greatest, abs(abort - scalars[vertex, 0]), abs(single - scalars[vertex, 1]))
        scalars[vertex, 0] = abort
        scalars[vertex, 1] = single
        for partition in range(width):
            read = 0.0
            write = 0.0
            done = 0.0
            for k in range(begin, end):
                child, share = children[k], shares[k]
                read += share * tables[child, partition, 0]
                write += share * tables[child, partition, 1]
                if not accessed[child, partition]:
                    done += share * tables[child, partition, 2]
            if accessed[vertex, partition]:
                if writes[vertex]:
                    write = 1.0
                else:
                    read = 1.0
            greatest = max(greatest, abs(done - tables[vertex, partition, 2]))
            tables[vertex, partition, 0] = read
            tables[vertex, partition, 1] = write
            tables[vertex, partition, 2] = done
    return greatest
