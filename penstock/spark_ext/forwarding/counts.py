"""Count the transactions of a query, and how many were forwarded, while it runs or from its checkpoint."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.checkpointing.files import open_files
from penstock.checkpointing.graph.directory import GraphDirectory, read_progress
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.procedures.analysis.counts import TransactionCounts
from penstock.spark_ext.api.metrics import SeveralQueries, metrics
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.committed import pointers_of, read_pointers, specification_of
from penstock.spark_ext.state_reader.spark_state import Held, read_pointer_files
from penstock.state_store.bucket_store import BucketStore
from penstock.state_store.location import Operator, find_operators

__all__ = ["count_by_operator", "count_transactions"]

Ran = StreamingQuery | SeveralQueries | str | os.PathLike[str]
"""A query, a graph that `penstock.start` started, or the checkpoint of either."""


@check_keywords
def count_transactions(
    ran: Ran, *, state_location: str | os.PathLike[str] | None = None, operator: str | None = None
) -> TransactionCounts:
    """Count the transactions that a query has run, and how many of them it has forwarded.

    Call this function on the driver. For a query or graph, the counts cover the micro-batches that Spark
    still reports (see `penstock.metrics`); for a checkpoint, all committed micro-batches. A checkpoint is
    read without Spark if it uses Spark's default state store.

    Parameters
    ----------
    ran : StreamingQuery, RunningGraph, str or path
        The query, the graph, or the checkpoint of either.
    state_location : str or path, optional
        The state location, if `ran` is a checkpoint. For a graph, the default is the location in its
        checkpoint.
    operator : str, optional
        The `name` of the operator; needed if several run transactions.

    Raises
    ------
    InvalidUsageError
        If no operator of transactions has run, more than one fits, or the state location is missing.
    CorruptDataError
        If the checkpoint or the state is damaged.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> counts = penstock.count_transactions(query)  # doctest: +SKIP
    >>> print(transfer.explain(counts))  # doctest: +SKIP
    """
    found = count_by_operator(ran, state_location)
    fitting = [name for name in found if operator in {None, name}]
    if len(fitting) != 1:
        raise InvalidUsageError(
            "more than one operator runs transactions"
            if fitting
            else "no such operator has run transactions",
            operator=operator,
            found=sorted(found),
            hint="choose one with operator=",
        )
    return found[fitting[0]]


def count_by_operator(
    ran: Ran, state_location: str | os.PathLike[str] | None = None
) -> dict[str, TransactionCounts]:
    """Return the counts of each operator that has run transactions; see `count_transactions`."""
    if isinstance(ran, str | os.PathLike):
        return _count_stored(ran, state_location)
    counts: dict[str, TransactionCounts] = {}
    for entry in metrics(ran):
        transactions, name = entry["committed"] + entry["rejected"], entry["operator"]
        if transactions:
            before = counts.get(name, TransactionCounts(0, 0))
            counts[name] = TransactionCounts(
                before.transactions + transactions, before.forwarded + entry["forwarded"]
            )
    return counts


def _count_stored(
    checkpoint: str | os.PathLike[str], state_location: str | os.PathLike[str] | None
) -> dict[str, TransactionCounts]:
    directory = GraphDirectory(checkpoint)
    graph = directory.newest("graph")
    places = [directory.location]
    if graph is not None:
        places = [directory.query(query["name"]) for query in graph["queries"]]
        state_location = state_location or directory.place("state")
    if state_location is None:
        raise InvalidUsageError(
            "the state location is missing",
            checkpoint=directory.location,
            hint="pass state_location=, as to penstock.transactions",
        )
    operators = find_operators(open_files(state_location))
    counts: dict[str, TransactionCounts] = {}
    for place in places:
        progress = read_progress(open_files(place))
        for operator in operators:
            if operator.query == progress.id and progress.committed >= 0:
                counts |= _count_operator(place, progress.committed, operator)
    return counts


def _count_operator(checkpoint: str, batch: int, operator: Operator) -> dict[str, TransactionCounts]:
    """Return an operator's counts by its name; empty if it does not run transactions."""
    if operator.files is None:
        return {}
    specification = specification_of(operator.files)
    if "program" not in specification:
        return {}
    buckets = int(specification["buckets"])
    held: Held | None = read_pointer_files(
        open_files(checkpoint).child("state"), batch, bucket_labels(buckets)
    )
    if held is None:
        held = read_pointers(SparkSession.active(), checkpoint)
    transactions = forwarded = 0
    for bucket, pointer in (pointers_of(held, operator.files, buckets) or {}).items():
        fields = BucketStore(operator.files.child(f"{bucket:05d}")).read_version(pointer)[1].fields
        transactions += fields.count("transactions")
        forwarded += fields.count("forwarded") if fields.has("forwarded") else 0
    return {operator.name: TransactionCounts(transactions, forwarded)}
