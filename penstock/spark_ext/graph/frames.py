"""Build Spark DataFrames from a plan's operators."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

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
from penstock.dataflow.runnable import find_stateful
from penstock.errors import InternalError, InvalidUsageError
from penstock.operators.scan.spec import Scan
from penstock.operators.update_stream.operator_options import StateOptions
from penstock.spark_ext.api.transactions import PlannedTransactions, plan_transactions
from penstock.spark_ext.api.update_join import run_join
from penstock.spark_ext.api.update_queue import run_queue
from penstock.spark_ext.api.update_union import run_union
from penstock.spark_ext.border.types import same_types, spark_schema
from penstock.spark_ext.graph.checks import (
    check_frame,
    check_one_row_each,
    errors_named,
    find_ansi_expressions,
)
from penstock.spark_ext.graph.lookup_tables import join_table, lookup_in
from penstock.spark_ext.graph.state import StatePlace
from penstock.spark_ext.graph.steps import apply_step, apply_steps, split_steps, step_text
from penstock.spark_ext.graph.window_join import Side, join_windows
from penstock.spark_ext.graph.windows import (
    aggregate_windows,
    finish_aggregate,
    pack_rows,
    plan_assembly,
    plan_count_windows,
    window_accumulator,
)
from penstock.spark_ext.own.apply import run_operator
from penstock.spark_ext.sources.p_stream_rows import OperatorRows
from penstock.spark_ext.sources.parquet_reader import parquet_files, read_parquet
from penstock.spark_ext.sources.pushed import Columns, Pushed
from penstock.spark_ext.worker.stateful import Stateful
from penstock.spark_ext.worker.window_plan import PlannedWindows
from penstock.sql.expression import Expression, select_item

__all__ = ["Frames", "SinkInput"]

OptionsT = TypeVar("OptionsT", bound=StateOptions)


@dataclass(frozen=True, slots=True)
class SinkInput:
    """The input of a p-stream's sink.

    Parameters
    ----------
    rows : DataFrame
        The results, or their descriptors.
    schema : StructType
        The columns of the results.
    readings : tuple of Reading
        The subscriptions that the query reads.
    direct, deterministic : bool
        `direct`: whether the operator itself writes the results, so that `rows` are descriptors.
        `deterministic`: whether a micro-batch that runs again has the same results in the same order.
    """

    rows: DataFrame
    schema: StructType
    readings: tuple[Reading, ...]
    direct: bool
    deterministic: bool = False


class Frames:
    """Makes DataFrames from a plan's nodes. The driver makes one `Frames` for each start.

    A node with several readers is built once for each, with separate subscriptions, because Spark does not
    read two copies of a source at the same pace.

    Parameters
    ----------
    spark : SparkSession
        The session, with Penstock registered.
    name : str
        The graph's name, under which its readers subscribe.
    sources, tables : mapping of str to DataFrame
        The DataFrames of static tables, and of sources that are not p-streams.
    streams, paths : mapping of str to str
        The locations of p-streams by name: p-streams that the graph writes, and sources.
    state : str
        The location for operators' state.
    max_rows : int, optional
        The maximum number of rows that a reader takes in a micro-batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        *,
        sources: Mapping[str, DataFrame],
        tables: Mapping[str, DataFrame],
        streams: Mapping[str, str],
        paths: Mapping[str, str],
        state: str,
        max_rows: int | None = None,
    ) -> None:
        self._spark = spark
        self._name = name
        self._sources = sources
        self._tables = tables
        self._streams = streams
        self._paths = paths
        self._state = state
        self._max_rows = max_rows
        self._ansi = spark.conf.get("spark.sql.ansi.enabled") == "true"
        self._readers: Counter[str] = Counter()
        self._readings: list[Reading] = []

    def build(self, node: Node) -> tuple[DataFrame, tuple[Reading, ...]]:
        """Return a node's output, and its subscriptions to p-streams.

        Raises
        ------
        InvalidUsageError
            If a source or table is missing, or has the wrong columns.
        CorruptDataError, UnavailableError
            If a p-stream is damaged, or the file system refuses.
        """
        before = len(self._readings)
        return self._build(node), tuple(self._readings[before:])

    def build_sink_input(self, node: Node, options: Mapping[str, str]) -> SinkInput:
        """Return the input of a p-stream's sink for a node's output.

        If the last operator runs transactions, it writes its results itself, and the sink gets descriptors.
        The same holds for an operator that makes windows, if all later steps can run without Spark.

        Parameters
        ----------
        node : Node
            The node to write.
        options : mapping of str to str
            Options of the data source ``pstream``, with the path.

        Raises
        ------
        InvalidUsageError, CorruptDataError, UnavailableError
            As for `build`, or if an option is wrong or the rows do not fit the p-stream.
        """
        before = len(self._readings)
        at, steps = split_steps(node)
        if isinstance(at, Transactions) and not steps:
            with errors_named(at):
                results = self._transactions(at)
            rows, read = results.descriptors(options), tuple(self._readings[before:])
            return SinkInput(rows, results.schema, read, direct=True, deterministic=True)
        if not isinstance(at, Assemble):
            rows, readings = self.build(node)
            return SinkInput(rows, rows.schema, readings, direct=False)
        place = self._place(at)
        windows = self._plan_windows(at, place.buckets)
        rows, schemas = apply_steps(steps, windows.results(place))
        readings = tuple(self._readings[before:])
        finish = windows.plan.finish([step_text(step) for step in steps]) if self._ansi else None
        if finish is None or not same_types(finish.schemas(), schemas):
            return SinkInput(rows, rows.schema, readings, direct=False)
        target = OperatorRows.bind(options, rows.schema)
        return SinkInput(windows.write_directly(place, finish, target), rows.schema, readings, direct=True)

    def state_of(self, end: Node) -> StatePlace | None:
        """Return the location of the state of a node's query; None if the query has no state.

        Raises
        ------
        InvalidUsageError
            If no file system is known for its state location.
        """
        for node in find_stateful(end):
            with_options = Apply | UpdateQueue | UpdateUnion | Join | Transactions
            options = node.options if isinstance(node, with_options) else StateOptions()
            place = Stateful.plan(self._spark, node.state_name, self._locate(options))
            return StatePlace(place.state_location, place.name)
        return None

    def _build(self, node: Node) -> DataFrame:
        with errors_named(node):
            return self._make(node)

    def _make(self, node: Node) -> DataFrame:
        match node:
            case Source(kind="p-stream") | Materialize():
                return self._read(node, None, list(node.schema.names))
            case Source(kind="parquet"):
                return parquet_files(self._spark, node)
            case Source():
                return self._source(node)
            case PushedScan():
                return self._read_pushed(node)
            case StreamTableJoin():
                return self._lookup(node)
            case UpdateUnion():
                return self._unite(node)
            case Join():
                return self._join(node)
            case Assemble() | Aggregate() if _makes_windows(node):
                place = self._place(node)
                return self._plan_windows(node, place.buckets).results(place)
            case Transactions():
                return self._transactions(node).results()
            case Aggregate():
                return self._aggregate_by_window(node)
            case WindowJoin():
                return self._window_join(node)
            case Union():
                return reduce(lambda one, other: one.unionByName(other), map(self._build, node.inputs))
        rows = self._build(node.inputs[0])
        match node:
            case Where() | Select():
                return apply_step(node, rows)
            case UpdateQueue():
                return self._queue(node, rows)
            case Apply():
                options = self._locate(node.options)
                return run_operator(rows, node.operator, node.by, node.time, options, node.state_name)
            case Window() | Sink():
                return rows
        raise InvalidUsageError(f"{node.label}: this operator cannot run yet", node=node.name)

    def _source(self, node: Source) -> DataFrame:
        if node.name not in self._sources:
            raise InvalidUsageError(
                "a source is missing",
                hint=f"pass sources={{{node.name!r}: spark.readStream...}}",
                source=node.name,
            )
        return check_frame(self._sources[node.name], spark_schema(node.columns), node.name, streaming=True)

    def _lookup(self, node: StreamTableJoin) -> DataFrame:
        rows, table = self._build(node.inputs[0]), self._table(node)
        if node.key:
            check_one_row_each(table, node)
        return join_table(rows, table, node.on)

    def _table(self, node: StreamTableJoin) -> DataFrame:
        columns = spark_schema(node.columns)
        return check_frame(self._find_table(node.table), columns, node.table, streaming=False)

    def _find_table(self, name: str) -> DataFrame:
        if name not in self._tables:
            raise InvalidUsageError("a table is missing", hint=f"pass tables={{{name!r}: df}}", table=name)
        return self._tables[name]

    def _queue(self, node: UpdateQueue, rows: DataFrame) -> DataFrame:
        return run_queue(rows, node.update_key, node.time, self._locate(node.options), node.state_name)

    def _transactions(self, node: Transactions) -> PlannedTransactions:
        initial = {name: self._find_table(name) for name in node.initial}
        options, name = self._locate(node.options), node.state_name
        rows = self._build(node.inputs[0])
        return plan_transactions(rows, node.procedure, node.time, node.keep, options, name, initial)

    def _unite(self, node: UpdateUnion) -> DataFrame:
        rows = [self._build(above) for above in node.inputs]
        options, name = self._locate(node.options), node.state_name
        return run_union(rows, node.key, node.time, node.prefer, options, name)

    def _join(self, node: Join) -> DataFrame:
        left, right = (self._build(above) for above in node.inputs)
        within = timedelta(microseconds=node.within_us)
        condition = None if node.condition is None else node.condition.text
        return run_join(
            *(left, right, node.key, node.time, within, condition, node.unit),
            *(self._locate(node.options), node.state_name, node.marked),
        )

    def _locate(self, options: OptionsT) -> OptionsT:
        """Return the options; if they name no state location, use the graph's."""
        return replace(options, state_location=options.state_location or self._state)

    def _place(self, node: Node) -> Stateful:
        """Return the name, buckets and state location of an operator of windows."""
        return Stateful.plan(self._spark, node.state_name, self._locate(StateOptions()))

    def _plan_windows(self, node: Node, buckets: int) -> PlannedWindows:
        above = node.inputs[0]
        if isinstance(node, Aggregate):
            return plan_count_windows(node, self._build(above), buckets)
        if not isinstance(node, Assemble):
            raise InternalError("windows are of an aggregate", node=node.name)
        if isinstance(above, PushedScan):
            return plan_assembly(node, self._scan(above, buckets))
        if isinstance(above, StreamTableJoin) and isinstance(above.inputs[0], PushedScan):
            lookup = lookup_in(self._table(above), above, node.aggregate.group_by)
            if lookup is not None:
                return plan_assembly(node, self._scan(above.inputs[0], buckets, lookup))
        return plan_assembly(node, pack_rows(node, self._build(above), buckets))

    def _aggregate_by_window(self, node: Aggregate) -> DataFrame:
        """Aggregate windows by window; if possible, inside the buckets that make the windows."""
        at, steps = split_steps(node.inputs[0])
        if not _makes_windows(at):
            return aggregate_windows(node, self._build(node.inputs[0]))
        place = self._place(at)
        windows = self._plan_windows(at, place.buckets)
        rows, schemas = apply_steps(steps, windows.results(place))
        texts = [step_text(step) for step in steps]
        accumulator = window_accumulator(node, windows.plan, rows, texts, schemas) if self._ansi else None
        if accumulator is None:
            return aggregate_windows(node, rows)
        return finish_aggregate(node, windows.accumulate_windows(place, accumulator), accumulator)

    def _read_pushed(self, node: PushedScan) -> DataFrame:
        """Return a scan's output, from the reader or, if the reader's results would differ, from Spark."""
        names = list(node.scan.columns)
        if self._calculates_alike(node):
            return self._read(node.inputs[0], node.scan, names)
        rows = self._read(node.inputs[0], None, names)
        rows = rows if node.scan.where is None else rows.where(node.scan.where)
        select = node.scan.select or {}
        items = [select_item(name, Expression.parse(text)) for name, text in select.items()]
        return rows.selectExpr(*items) if items else rows

    def _calculates_alike(self, node: PushedScan) -> bool:
        """Return whether a reader computes the same results as Spark in this session.

        Raises
        ------
        InvalidUsageError
            If the results differ, and Spark cannot compute them instead.
        """
        expression = None if self._ansi else next(find_ansi_expressions(node), None)
        if expression is not None and (node.scan.fragments or node.scan.latest_by):
            raise InvalidUsageError(
                "this expression needs ANSI mode",
                hint="set spark.sql.ansi.enabled to true",
                expression=expression.text,
                node=node.name,
            )
        return expression is None

    def _scan(self, node: PushedScan, buckets: int, lookup: str | None = None) -> DataFrame:
        """Return the parcels of a reader's fragments, after the lookup in a table if one is given."""
        self._calculates_alike(node)
        return self._read(node.inputs[0], node.scan, list(node.scan.columns), buckets, lookup)

    def _window_join(self, node: WindowJoin) -> DataFrame:
        place = self._place(node)
        plans: dict[int, PlannedWindows] = {}
        sides: list[Side] = []
        for above in node.inputs:
            at, steps = above, list[Where | Select | Aggregate]()
            while at is not node.aggregate_of(above) and isinstance(at, Where | Select | Aggregate):
                steps.append(at)
                at = at.inputs[0]
            if id(at) not in plans:
                plans[id(at)] = self._plan_windows(at, place.buckets)
            sides.append(Side(plans[id(at)], tuple(reversed(steps))))
        return join_windows(node, sides, place)

    def _read(
        self,
        base: Node,
        scan: Scan | None,
        names: list[str],
        buckets: int | None = None,
        lookup: str | None = None,
    ) -> DataFrame:
        """Return a streaming DataFrame of a p-stream, with its own subscription, or of files."""
        if isinstance(base, Source) and base.kind == "parquet" and scan is not None:
            return read_parquet(self._spark, base, scan, buckets, lookup)
        places = self._streams if isinstance(base, Materialize) else self._paths
        if base.name not in places:
            raise InvalidUsageError(
                "the location of a p-stream is missing",
                hint=f"pass sources={{{base.name!r}: PATH}}",
                source=base.name,
            )
        location = places[base.name]
        stored = PStream(location).schema
        plan = Columns.select(stored, names) if scan is None else Pushed.bind(stored, scan, buckets)
        self._readers[location] += 1
        number = self._readers[location]
        reader = self._name if number == 1 else f"{self._name}-{number}"
        self._readings.append(Reading(base.name, location, reader))
        what_to_read = {"columns": json.dumps(names)} if scan is None else {"scan": scan.to_json()}
        options = {"reader": reader, **what_to_read}
        if buckets is not None:
            options["buckets"] = str(buckets)
        if lookup is not None:
            options["lookup"] = lookup
        if self._max_rows is not None:
            options["maxRows"] = str(self._max_rows)
        return self._spark.readStream.format("pstream").schema(plan.spark).options(**options).load(location)


def _makes_windows(node: Node) -> bool:
    return isinstance(node, Assemble) or (isinstance(node, Aggregate) and isinstance(node.inputs[0], Window))
