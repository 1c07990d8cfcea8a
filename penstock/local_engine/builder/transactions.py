"""Run transactions in a local query."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from penstock.dataflow.nodes import Transactions
from penstock.local_engine.builder.stateless import NodeRows, make_parcels
from penstock.local_engine.operators import LocalOperator, MicroBatch, Rows
from penstock.operators.update_stream.operator_options import StateOptions
from penstock.procedures.analysis.columns import program_for
from penstock.spark_ext.api.transactions import choose_buckets, plan_procedure
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.initial_rows import InitialRows
from penstock.spark_ext.border.packing import parcel_row
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.spark_ext.worker.requests import Answers, OpenRequests
from penstock.spark_ext.worker.stateful import Stateful, arrow_schema

__all__ = ["run_transactions"]


def run_transactions(
    node: Transactions,
    node_rows: NodeRows,
    tables: Mapping[str, pa.Table],
    place_of: Callable[[StateOptions], Stateful],
    read_requests: Callable[[str, str], Rows],
    answers: Answers | None,
) -> tuple[LocalOperator, NodeRows]:
    """Return the operator that runs transactions, and its results.

    Parameters
    ----------
    node : Transactions
        The node of the transactions.
    node_rows : NodeRows
        The events that call procedures.
    tables : mapping of str to pyarrow.Table
        The initial rows of the database's tables.
    place_of : callable
        A function that returns the operator's name, buckets and state location. It takes the operator's
        options.
    read_requests : callable
        A function that returns the rows of a p-stream. It takes the p-stream's location and a reader's name.
    answers : Answers or None
        The receiver of answers to requests; see `OpenRequests.open`.

    Raises
    ------
    InvalidUsageError
        As for `penstock.transactions`.
    """
    procedure = node.procedure
    columns = arrow_schema(node_rows.schema, large=False)
    program = program_for(procedure, columns)
    options, route = choose_buckets(program, node.options)
    place = place_of(options)
    kind = None if route is None else columns.field(route).type
    initial = None
    if node.initial:
        given = {name: tables[name] for name in node.initial}
        initial = InitialRows.split(given, procedure.tables.values(), place.buckets, kind)
    planned = plan_procedure(
        node_rows.schema, columns, procedure, program, node.time, node.keep, options, place, route, initial
    )
    operator = planned.operator
    sources: list[Rows] = [make_parcels(planned.packer, node_rows.rows)]
    if options.requests is not None:
        opened = OpenRequests.open(options.requests, procedure.catalog, place.buckets, kind, answers)
        operator = replace(operator, requests=opened.packer.programs, answers=opened.answers)
        sources.append(make_parcels(opened.packer, read_requests(opened.location, place.name)))

    def parcels(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        if initial is not None and batch.number == 0:
            # The first micro-batch loads the initial rows of all buckets.
            for label in bucket_labels(place.buckets):
                yield parcel_row(label, 0, None)
        yield from itertools.chain.from_iterable(source(batch) for source in sources)

    held = LocalOperator(
        place, operator, parcels, as_arrow_of_spark(planned.schema), waits=False,
        origin=operator.origin, coordinator=planned.coordinator, publishes_first=True,
    )  # fmt: skip
    return held, NodeRows(planned.schema, held.run)
