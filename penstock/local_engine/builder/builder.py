"""Build functions that compute the rows of a plan's nodes in this process."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql.types import ByteType, StructField, StructType

from penstock.checkpointing.p_stream import PStream
from penstock.dataflow.checkpoint import Reading
from penstock.dataflow.nodes import (
    Aggregate,
    Apply,
    Assemble,
    Join,
    Materialize,
    Node,
    PushedScan,
    Select,
    Sink,
    Source,
    StreamTableJoin,
    Transactions,
    Union,
    UpdateQueue,
    UpdateUnion,
    Where,
    Window,
    WindowJoin,
)
from penstock.ddl import parse_schema
from penstock.errors import InternalError, InvalidUsageError
from penstock.local_engine.builder.stateless import (
    NodeRows,
    concat_rows,
    keep_matching,
    look_up,
    make_parcels,
    mark_deleted,
    select_columns,
)
from penstock.local_engine.inputs import DataSourceInput, Input
from penstock.local_engine.operators import LocalOperator, MicroBatch, Rows
from penstock.local_engine.records.bad_records import RecordInput
from penstock.operators.scan.spec import Scan
from penstock.operators.update_stream.deletes import DELETED_COLUMN, delete_conditions
from penstock.operators.update_stream.operator_options import StateOptions
from penstock.operators.update_stream.stream import SOURCE_COLUMN
from penstock.spark_ext.api.update_join import plan_join
from penstock.spark_ext.api.update_queue import plan_queue
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.graph.steps import split_steps
from penstock.spark_ext.own.apply import plan_operator
from penstock.spark_ext.sources.p_stream_source import PStreamDataSource
from penstock.spark_ext.sources.pushed import Columns, Pushed
from penstock.spark_ext.worker.stateful import Stateful

if TYPE_CHECKING:
    from penstock.local_engine.builder.windows import LocalWindows
    from penstock.spark_ext.worker.requests import Answers

__all__ = ["Builder", "OpenInput"]

OpenInput: TypeAlias = Callable[[Path], Input]
"""A function that opens a source. It takes the directory for the source's log of files."""


@dataclass(slots=True)
class Builder:
    """Builds the queries of a plan for one start.

    Parameters
    ----------
    name : str
        The graph's name, under which its readers subscribe.
    sources : mapping of str to callable
        For each source that is not a p-stream, a function that opens the source.
    tables : mapping of str to pyarrow.Table
        The static tables by name.
    streams, paths : mapping of str to str
        The locations of p-streams by name: the graph's own p-streams, and the p-streams that are sources.
    state : str
        The location for operators' state.
    parallel : int
        The number of Spark's shuffle partitions. An operator has as many buckets, unless it sets their
        number.
    max_rows : int, optional
        The maximum number of rows that a reader of a p-stream reads in a micro-batch.
    subscribes : bool
        Whether readers of p-streams subscribe. If not, rows may be released before a reader has read them,
        and bad records are counted but not written to their p-stream.
    answers : Answers, optional
        The receiver of answers to requests. By default, answers are published, and the p-streams of requests
        and answers are created if they do not exist.
    """

    name: str
    sources: Mapping[str, OpenInput]
    tables: Mapping[str, pa.Table]
    streams: Mapping[str, str]
    paths: Mapping[str, str]
    state: str
    parallel: int
    max_rows: int | None = None
    subscribes: bool = True
    answers: Answers | None = None
    readings: list[Reading] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    operator: LocalOperator | None = None
    _readers: Counter[str] = field(default_factory=Counter)
    _logs: Path = field(default_factory=Path)

    def build(self, node: Node, logs: Path) -> NodeRows:
        """Build a query and return its results. Then `inputs` and `operator` hold the parts of this query.

        Parameters
        ----------
        node : Node
            The last node of the query.
        logs : pathlib.Path
            The directory for the logs of the query's sources.
        """
        self.inputs, self.operator, self._logs = [], None, logs
        return self._build(node)

    def _build(self, node: Node) -> NodeRows:
        try:
            return self._make(node)
        except InvalidUsageError as error:
            if isinstance(node, Source) or "node" in error.context:
                raise
            raise InvalidUsageError(error.fact, hint=error.hint, **error.context, node=node.name) from error

    def _make(self, node: Node) -> NodeRows:
        at, steps = split_steps(node)
        if isinstance(at, Assemble) or (isinstance(at, Aggregate) and isinstance(at.inputs[0], Window)):
            return self._run_windows(at, steps)
        match node:
            case Source(kind="p-stream") | Materialize():
                return self._read(node, None)
            case PushedScan():
                return self._read(node.inputs[0], node.scan)
            case Source():
                return self._open(node)
            case UpdateUnion():
                return self._union(node)
            case Join():
                return self._join(node)
            case Union():
                return concat_rows([self._build(above) for above in node.inputs])
            case WindowJoin():
                return self._join_windows(node)
        node_rows = self._build(node.inputs[0])
        match node:
            case Where():
                return keep_matching(node_rows, node.predicate)
            case Select():
                return select_columns(node_rows, dict(node.columns), spark_schema(node.schema))
            case Aggregate():
                from penstock.local_engine.builder.windows import aggregate_by_window

                return aggregate_by_window(node, node_rows)
            case Transactions():
                return self._transactions(node, node_rows)
            case UpdateQueue():
                return self._queue(node_rows, node.update_key, node.time, node)
            case Apply():
                return self._apply(node_rows, node)
            case StreamTableJoin():
                return look_up(node_rows, self.tables[node.table].select(node.columns.names), node.on)
            case Sink():
                return node_rows
        raise InternalError(
            "the local engine cannot build a node that passed its check", node=node.name, label=node.label
        )

    # ------------------------------------------------------------------------------------- inputs

    def _add_input(self, source: Input) -> Rows:
        number = len(self.inputs)
        self.inputs.append(source)

        def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            start, end = batch.starts[number], batch.ends[number]
            if end is None or not source.is_new(start, end):
                return
            if isinstance(source, RecordInput):
                records = source.read_records(start, end)
                yield from source.bad_records.treat(records, batch, writes=self.subscribes)
            else:
                yield from source.read(start, end)

        return rows

    def _open(self, node: Source) -> NodeRows:
        if node.name not in self.sources:
            raise InvalidUsageError("a source is missing", source=node.name)
        source = self.sources[node.name](self._logs / str(len(self.inputs)))
        rows, names = self._add_input(source), node.schema.names
        if source.schema.names == names:
            return NodeRows(source.schema, rows)
        schema = StructType([source.schema[name] for name in names])
        return NodeRows(schema, lambda batch: (some.select(names) for some in rows(batch)))

    def _read(self, base: Node, scan: Scan | None, buckets: int | None = None) -> NodeRows:
        """Return the rows of a p-stream, with a new subscription, or of files that a scan reads."""
        if isinstance(base, Source) and base.kind == "parquet" and scan is not None:
            return self._scan_files(base, scan, buckets)
        places = self.streams if isinstance(base, Materialize) else self.paths
        location = places[base.name]
        stored = PStream(location).schema
        names = list(base.schema.names)
        plan = Columns.select(stored, names) if scan is None else Pushed.bind(stored, scan, buckets)
        self._readers[location] += 1
        number = self._readers[location]
        reader = self.name if number == 1 else f"{self.name}-{number}"
        self.readings.append(Reading(base.name, location, reader))
        options = {"path": location} | ({"reader": reader} if self.subscribes else {})
        if scan is not None:
            options["scan"] = scan.to_json()
        if buckets is not None:
            options["buckets"] = str(buckets)
        if self.max_rows is not None:
            options["maxRows"] = str(self.max_rows)
        source = PStreamDataSource(options).streamReader(plan.spark)
        return NodeRows(plan.spark, self._add_input(DataSourceInput(source, plan.spark)))

    def _scan_files(self, base: Source, scan: Scan, buckets: int | None) -> NodeRows:
        node_rows = self._open(base)
        pushed = Pushed.bind(as_arrow_of_spark(node_rows.schema), scan, buckets)
        names = list(scan.columns)

        def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            tables = (pa.Table.from_batches([some.select(names)]) for some in node_rows.rows(batch))
            return pushed.scan_tables(tables)

        return NodeRows(pushed.spark, rows)

    # ---------------------------------------------------------------------------------- operators

    def _place(self, node: Node, options: StateOptions) -> Stateful:
        location = options.state_location or self.state
        buckets = options.buckets or self.parallel
        return Stateful(node.state_name, buckets, self.parallel, str(location), options.retain_versions)

    def _set_operator(self, operator: LocalOperator) -> LocalOperator:
        if self.operator is not None:
            raise InternalError("a query has two operators with state", node=operator.name)
        self.operator = operator
        return operator

    def _queue(
        self,
        node_rows: NodeRows,
        key: tuple[str, ...],
        time: str,
        node: UpdateQueue | UpdateUnion,
        source: str | None = None,
    ) -> NodeRows:
        options = node.options
        if options.delete_when is not None:
            node_rows = mark_deleted(node_rows, options.delete_when)
        place = self._place(node, options)
        if isinstance(options.output_schema, str):
            # Spark's own parser needs a JVM.
            results = spark_schema(parse_schema(options.output_schema))
            options = replace(options, output_schema=results)
        planned = plan_queue(node_rows.schema, key, time, options, place, source)
        parcels = make_parcels(planned.packer, node_rows.rows)
        operator = LocalOperator(place, planned.operator, parcels, planned.rows, waits=planned.waits)
        return NodeRows(planned.output, self._set_operator(operator).run)

    def _apply(self, node_rows: NodeRows, node: Apply) -> NodeRows:
        place = self._place(node, node.options)
        planned = plan_operator(node_rows.schema, node.operator, node.by, node.time, place)
        parcels = make_parcels(planned.packer, node_rows.rows)
        waits = node.operator.may_wait
        held = LocalOperator(
            place, planned.operator, parcels, planned.rows, waits=waits, publishes_first=True
        )
        return NodeRows(planned.output, self._set_operator(held).run)

    def _union(self, node: UpdateUnion) -> NodeRows:
        sides = [self._build(above) for above in node.inputs]
        names = sides[0].schema.names
        mark = StructField(SOURCE_COLUMN, ByteType(), nullable=False)
        schema = StructType([*sides[0].schema.fields, mark])

        def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            for place, side in enumerate(sides):
                loses = int(node.prefer is not None and place != node.prefer)
                for some in side.rows(batch):
                    number = pa.array([loses], pa.int8()).take(pa.array([0] * some.num_rows, pa.int32()))
                    field = pa.field(SOURCE_COLUMN, pa.int8(), nullable=False)
                    yield some.select(names).append_column(field, number)

        return self._queue(NodeRows(schema, rows), node.key, node.time, node, SOURCE_COLUMN)

    def _join(self, node: Join) -> NodeRows:
        sides = [self._build(above) for above in node.inputs]
        conditions = delete_conditions(node.options.delete_when)
        sides = [
            node_rows if condition is None else mark_deleted(node_rows, condition)
            for node_rows, condition in zip(sides, conditions, strict=True)
        ]
        marks = [
            DELETED_COLUMN if done or condition is not None else None
            for done, condition in zip(node.marked, conditions, strict=True)
        ]
        place = self._place(node, node.options)
        planned = plan_join(
            (sides[0].schema, sides[1].schema), node.key, node.time,
            timedelta(microseconds=node.within_us),
            None if node.condition is None else node.condition.text,
            node.unit, node.options, place, marks,
        )  # fmt: skip
        packed = [
            make_parcels(packer, side.rows) for packer, side in zip(planned.packers, sides, strict=True)
        ]

        def parcels(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            return itertools.chain.from_iterable(one(batch) for one in packed)

        operator = LocalOperator(place, planned.operator, parcels, planned.rows, waits=False)
        return NodeRows(planned.output, self._set_operator(operator).run)

    def _transactions(self, node: Transactions, node_rows: NodeRows) -> NodeRows:
        # Few graphs have transactions.
        from penstock.local_engine.builder.transactions import run_transactions

        operator, results = run_transactions(
            node, node_rows, self.tables, partial(self._place, node), self._read_requests, self.answers
        )
        self._set_operator(operator)
        return results

    def _read_requests(self, location: str, reader: str) -> Rows:
        schema = spark_schema(PStream(location).schema)
        options = {"path": location} | ({"reader": reader} if self.subscribes else {})
        source = PStreamDataSource(options).streamReader(schema)
        return self._add_input(DataSourceInput(source, schema))

    def _run_windows(self, node: Node, steps: list[Where | Select]) -> NodeRows:
        """Return the rows of windows after the filters and projections in `steps`."""
        # Few graphs have windows.
        from penstock.local_engine.builder.windows import run_windows

        place = self._place(node, StateOptions())
        operator, node_rows = run_windows(self._plan_windows(node, place.buckets), place, steps)
        self._set_operator(operator)
        return node_rows

    def _plan_windows(self, node: Node, buckets: int) -> LocalWindows:
        from penstock.local_engine.builder.windows import pack_fragments, pack_rows

        above = node.inputs[0]
        if isinstance(node, Aggregate):
            return pack_rows(node, self._build(above.inputs[0]), buckets)
        if not isinstance(node, Assemble):
            raise InternalError("a window has no aggregate", node=node.name)
        if isinstance(above, PushedScan):
            return pack_fragments(node, None, self._read(above.inputs[0], above.scan, buckets).rows, buckets)
        return pack_fragments(node, self._build(above), None, buckets)

    def _join_windows(self, node: WindowJoin) -> NodeRows:
        from penstock.local_engine.builder.window_join import WindowSide, join_windows

        place = self._place(node, StateOptions())
        plans: dict[int, LocalWindows] = {}
        sides: list[WindowSide] = []
        for above in node.inputs:
            at, steps = above, list[Where | Select | Aggregate]()
            while at is not node.aggregate_of(above) and isinstance(at, Where | Select | Aggregate):
                steps.append(at)
                at = at.inputs[0]
            if id(at) not in plans:
                plans[id(at)] = self._plan_windows(at, place.buckets)
            sides.append(WindowSide(plans[id(at)], steps[::-1]))
        operator, node_rows = join_windows(node, sides, place)
        self._set_operator(operator)
        return node_rows
