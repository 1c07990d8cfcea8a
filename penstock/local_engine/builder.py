"""Build the rows of a plan's operators, to run them in this process."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.types import ByteType, StructField, StructType

from penstock.checkpointing.p_stream import PStream
from penstock.dataflow.checkpoint import Reading
from penstock.dataflow.nodes import (
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
    Union,
    UpdateQueue,
    UpdateUnion,
    Where,
)
from penstock.ddl import parse_schema
from penstock.errors import InternalError, InvalidUsageError
from penstock.local_engine.inputs import DataSourceInput, Input
from penstock.local_engine.operators import LocalOperator, MicroBatch, Rows
from penstock.operators.scan.lookup import Lookup
from penstock.operators.scan.spec import Scan
from penstock.operators.update_stream.deletes import DELETED_COLUMN, delete_conditions, mark_deletes
from penstock.operators.update_stream.operator_options import QueueOptions, StateOptions
from penstock.operators.update_stream.stream import SOURCE_COLUMN
from penstock.spark_ext.api.update_join import plan_join
from penstock.spark_ext.api.update_queue import plan_queue
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema
from penstock.spark_ext.graph.steps import split_steps, step_text
from penstock.spark_ext.graph.windows import plan_assembled
from penstock.spark_ext.own.apply import plan_operator
from penstock.spark_ext.sources.p_stream_source import PStreamDataSource
from penstock.spark_ext.sources.pushed import Columns, Pushed
from penstock.spark_ext.worker.stateful import Stateful
from penstock.sql.evaluate import filter_rows, project, type_of
from penstock.sql.expression import Expression

__all__ = ["Builder", "OpenInput"]

OpenInput: TypeAlias = Callable[[Path], Input]
"""Opens a source, given the directory for its log of files."""


@dataclass(frozen=True, slots=True)
class _Made:
    """The rows of a node, and their columns as Spark has them."""

    schema: StructType
    rows: Rows


@dataclass(slots=True)
class Builder:
    """Builds the queries of a plan. Used for one start.

    Parameters
    ----------
    name : str
        The graph's name, under which its readers subscribe.
    sources : mapping of str to callable
        Opens the sources that are no p-streams.
    tables : mapping of str to pyarrow.Table
        The static tables.
    streams, paths : mapping of str to str
        The locations of p-streams by name: of the graph's own, and of sources.
    state : str
        The location for operators' state.
    parallel : int
        Spark's shuffle partitions: the number of buckets unless an operator names another.
    max_rows : int, optional
        The most rows that a reader of a p-stream takes in a micro-batch.
    subscribes : bool
        Whether readers of p-streams subscribe; without, nothing is written, and rows may be released.
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
    readings: list[Reading] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    operator: LocalOperator | None = None
    _readers: Counter[str] = field(default_factory=Counter)
    _logs: Path = field(default_factory=Path)

    def build(self, node: Node, logs: Path) -> _Made:
        """Return the rows of a query's end; `inputs` and `operator` are then those of the query.

        Parameters
        ----------
        node : Node
            The node.
        logs : pathlib.Path
            The directory for the logs of the query's sources.
        """
        self.inputs, self.operator, self._logs = [], None, logs
        return self._build(node)

    def _build(self, node: Node) -> _Made:
        try:
            return self._make(node)
        except InvalidUsageError as error:
            if isinstance(node, Source) or "node" in error.context:
                raise
            raise InvalidUsageError(error.fact, hint=error.hint, **error.context, node=node.name) from error

    def _make(self, node: Node) -> _Made:
        at, _ = split_steps(node)
        if isinstance(at, Assemble):
            return self._windows(node)
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
                return self._concat([self._build(above) for above in node.inputs])
        made = self._build(node.inputs[0])
        match node:
            case Where():
                return _Made(made.schema, _filter(made.rows, node.predicate))
            case Select():
                return _select(made, dict(node.columns), spark_schema(node.schema))
            case UpdateQueue():
                return self._queue(made, node.update_key, node.time, node.options, node.name)
            case Apply():
                return self._apply(made, node)
            case StreamTableJoin():
                return self._lookup(made, node)
            case Sink():
                return made
        raise InternalError("a node passed the check of the local engine", node=node.name, label=node.label)

    # ------------------------------------------------------------------------------------- inputs

    def _add(self, source: Input) -> Rows:
        number = len(self.inputs)
        self.inputs.append(source)

        def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            start, end = batch.starts[number], batch.ends[number]
            if end is not None and source.is_new(start, end):
                yield from source.read(start, end)

        return rows

    def _open(self, node: Source) -> _Made:
        if node.name not in self.sources:
            raise InvalidUsageError("a source is missing", source=node.name)
        source = self.sources[node.name](self._logs / str(len(self.inputs)))
        rows, names = self._add(source), node.schema.names
        if source.schema.names == names:
            return _Made(source.schema, rows)
        schema = StructType([source.schema[name] for name in names])
        return _Made(schema, lambda batch: (some.select(names) for some in rows(batch)))

    def _read(self, base: Node, scan: Scan | None, buckets: int | None = None) -> _Made:
        """Return the rows of a p-stream under a subscription of its own, or of files by a scan."""
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
        return _Made(plan.spark, self._add(DataSourceInput(source, plan.spark)))

    def _scan_files(self, base: Source, scan: Scan, buckets: int | None) -> _Made:
        made = self._open(base)
        pushed = Pushed.bind(as_arrow_of_spark(made.schema), scan, buckets)
        names = list(scan.columns)

        def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            tables = (pa.Table.from_batches([some.select(names)]) for some in made.rows(batch))
            return pushed.scan_tables(tables)

        return _Made(pushed.spark, rows)

    # ---------------------------------------------------------------------------------- operators

    def _place(self, name: str, options: StateOptions) -> Stateful:
        location = options.state_location or self.state
        buckets = options.buckets or self.parallel
        return Stateful(_plain(name), buckets, self.parallel, str(location), options.retain_versions)

    def _hold(self, operator: LocalOperator) -> LocalOperator:
        if self.operator is not None:
            raise InternalError("a query has two operators with state", node=operator.name)
        self.operator = operator
        return operator

    def _queue(
        self,
        made: _Made,
        key: tuple[str, ...],
        time: str,
        options: QueueOptions,
        name: str,
        source: str | None = None,
    ) -> _Made:
        if options.delete_when is not None:
            made = _mark_deletes(made, options.delete_when)
        place = self._place(name, options)
        if isinstance(options.output_schema, str):
            # Spark's own parser needs a JVM.
            results = spark_schema(parse_schema(options.output_schema))
            options = replace(options, output_schema=results)
        planned = plan_queue(made.schema, key, time, options, place, source)
        parcels = _pack(planned.packer, made.rows)
        operator = LocalOperator(place, planned.operator, parcels, planned.rows, waits=planned.waits)
        return _Made(planned.output, self._hold(operator).run)

    def _apply(self, made: _Made, node: Apply) -> _Made:
        place = self._place(node.name, node.options)
        planned = plan_operator(made.schema, node.operator, node.by, node.time, place)
        parcels = _pack(planned.packer, made.rows)
        waits = node.operator.may_wait
        held = LocalOperator(place, planned.operator, parcels, planned.rows, waits=waits)
        return _Made(planned.output, self._hold(held).run)

    def _union(self, node: UpdateUnion) -> _Made:
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

        return self._queue(_Made(schema, rows), node.key, node.time, node.options, node.name, SOURCE_COLUMN)

    def _join(self, node: Join) -> _Made:
        sides = [self._build(above) for above in node.inputs]
        conditions = delete_conditions(node.options.delete_when)
        sides = [
            made if condition is None else _mark_deletes(made, condition)
            for made, condition in zip(sides, conditions, strict=True)
        ]
        marks = [
            DELETED_COLUMN if done or condition is not None else None
            for done, condition in zip(node.marked, conditions, strict=True)
        ]
        place = self._place(node.name, node.options)
        planned = plan_join(
            (sides[0].schema, sides[1].schema), node.key, node.time,
            timedelta(microseconds=node.within_us),
            None if node.condition is None else node.condition.text,
            node.unit, node.options, place, marks,
        )  # fmt: skip
        packed = [_pack(packer, side.rows) for packer, side in zip(planned.packers, sides, strict=True)]

        def parcels(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            return itertools.chain.from_iterable(one(batch) for one in packed)

        operator = LocalOperator(place, planned.operator, parcels, planned.rows, waits=False)
        return _Made(planned.output, self._hold(operator).run)

    def _windows(self, node: Node) -> _Made:
        """Return windows and the steps after them, which the operator computes itself."""
        at, steps = split_steps(node)
        above = at.inputs[0]
        if not (isinstance(at, Assemble) and isinstance(above, PushedScan)):
            raise InternalError("windows passed the check of the local engine", node=node.name)
        place = self._place(at.name, StateOptions())
        parcels = self._read(above.inputs[0], above.scan, place.buckets)
        plan, columns = plan_assembled(at, wraps=False)
        finish = plan.finish([step_text(step) for step in steps])
        schemas = None if finish is None else finish.schemas()
        if finish is None or schemas is None:
            raise InvalidUsageError(
                "the local engine cannot compute these aggregates of windows", hint="use engine: spark"
            )
        operator = replace(plan.operator(columns, place), closing=finish)
        held = LocalOperator(place, operator, parcels.rows, schemas[-1], waits=False)
        return _Made(spark_schema(schemas[-1]), self._hold(held).run)

    # ---------------------------------------------------------------------------------- stateless

    def _concat(self, sides: list[_Made]) -> _Made:
        names = sides[0].schema.names

        def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            return (some.select(names) for side in sides for some in side.rows(batch))

        return _Made(sides[0].schema, rows)

    def _lookup(self, made: _Made, node: StreamTableJoin) -> _Made:
        table = self.tables[node.table].select(node.columns.names)
        lookup = Lookup(table, node.on, ())
        others = spark_schema(lookup.schema(pa.schema([])))

        def rows(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
            return map(lookup.join, made.rows(batch))

        return _Made(StructType([*made.schema.fields, *others.fields]), rows)


def _pack(packer: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], rows: Rows) -> Rows:
    return lambda batch: packer(rows(batch))


def _filter(rows: Rows, predicate: Expression) -> Rows:
    def run(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        for some in rows(batch):
            yield from filter_rows(pa.Table.from_batches([some]), predicate).to_batches()

    return run


def _select(made: _Made, columns: Mapping[str, Expression], schema: StructType) -> _Made:
    arrow = as_arrow_of_spark(schema)

    def run(batch: MicroBatch) -> Iterator[pa.RecordBatch]:
        for some in made.rows(batch):
            table = project(pa.Table.from_batches([some]), columns)
            yield from (convert(part, arrow) for part in table.combine_chunks().to_batches())

    return _Made(schema, run)


def _mark_deletes(made: _Made, delete_when: str) -> _Made:
    """Return rows with the column that marks deletes."""
    arrow = as_arrow_of_spark(made.schema)
    condition, columns = mark_deletes(delete_when, arrow.names)
    if type_of(condition, arrow) != pa.bool_():
        raise InvalidUsageError(
            "the local engine cannot evaluate delete_when",
            delete_when=delete_when,
            hint="it is no condition, or use engine: spark",
        )
    fields = {one.name: one for one in made.schema}
    mark = spark_schema(pa.schema([pa.field(DELETED_COLUMN, pa.bool_())])).fields[0]
    schema = StructType([fields.get(name, mark) if name != DELETED_COLUMN else mark for name, _ in columns])
    return _select(made, dict(columns), schema)


def _plain(name: str) -> str:
    """Return the name of an operator's state, as on Spark."""
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name)
