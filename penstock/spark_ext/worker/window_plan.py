"""Plans of windows as Spark's operators, for `update_window` and for running graphs."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, LongType, NullType, StructField, StructType

from penstock.checkpointing.files import absolute_location
from penstock.dataflow.nodes import Extreme
from penstock.ddl import quote
from penstock.errors import InternalError, InvalidUsageError
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import Decomposition
from penstock.operators.aggregates.moments import to_settings
from penstock.operators.scan.spec import WEIGHT, Fragments, Partial, TimeUnit
from penstock.operators.scheduling.serve import Budget
from penstock.operators.scheduling.weights import GroupKey, KeyWeights
from penstock.operators.update_stream.lives import SILENT_COLUMN
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.operators.update_stream.options import check_weight, parse_ms
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.api.failure import refusal_of
from penstock.spark_ext.border.connection import aggregate_sql
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.border.window_packing import EntryPacker
from penstock.spark_ext.sources.p_stream_rows import DESCRIPTORS, OperatorRows
from penstock.spark_ext.sources.task_rows import LateStream
from penstock.spark_ext.worker.stateful import Stateful
from penstock.spark_ext.worker.window_operator import SILENT, WindowOperator
from penstock.sql.expression import Expression
from penstock.windows.finish import Finish, Span, Step
from penstock.windows.layout import START, WindowLayout
from penstock.windows.window_aggregates import Extremes, WindowAccumulator

__all__ = [
    "WINDOW",
    "PlannedWindows",
    "WindowPlan",
    "aggregate_text",
    "cast_to_field",
    "has_own_workers",
    "partials_of_values",
    "spark_windows",
    "to_micros",
    "to_steps",
    "value_columns",
    "value_names",
    "wraps_around",
]

_MIN_WINDOWS_FOR_OWN_WORKERS = 60
"""Windows get separate workers if each pane is in at least this many windows."""

WINDOW = "window"
"""The column with the window of a result: a struct of ``start`` and ``end``."""


@dataclass(frozen=True)
class WindowPlan(ABC):
    """Windows as an operator of Spark.

    Parameters
    ----------
    fragments : Fragments
        The fragments that the map side makes, with a partial that counts all rows.
    decomposition : Decomposition
        The aggregates.
    schema : pyarrow.Schema
        The schema of the fragments, as in `Fragmenter.schema`.
    output : StructType
        The output's columns: groups, `WINDOW`, aggregates.
    delay_ms : int
        The delay of the watermark behind the newest tuple.
    local : bool
        Whether times have no zone.
    options : WindowOptions
        The windows to emit, and when.
    weights : str or KeyWeights, optional
        See `WindowOperator`.
    extreme : Extreme, optional
        The filter that keeps only the windows with an extreme value.
    wraps : bool
        As in `Assembly`.
    dropped : StructType, optional
        The columns of dropped rows, if whole rows reach the buckets; see `dropped_columns`.
    """

    fragments: Fragments
    decomposition: Decomposition
    schema: pa.Schema
    output: StructType
    delay_ms: int
    local: bool
    options: WindowOptions = field(default_factory=WindowOptions)
    weights: str | KeyWeights | None = None
    extreme: Extreme | None = None
    wraps: bool = False
    dropped: StructType | None = None

    def replace_options(self, options: WindowOptions) -> WindowPlan:
        """Return the same windows with other serving options.

        Parameters
        ----------
        options : WindowOptions
            Mode, policy, budget and weights. If the weight is a column, the windows already hold it as the
            aggregate `WEIGHT`.

        Raises
        ------
        InvalidUsageError
            If a weight is not a number, or the values do not fit the group's type.
        """
        weight = options.weight
        if weight is None:
            return replace(self, options=options)
        if not isinstance(weight, str):
            groups = pa.schema([self.schema.field(name) for name in self.fragments.group_by])
            return replace(self, options=options, weights=KeyWeights(GroupKey(groups), weight))
        (newest,) = Expression.parse(self.decomposition.assembly[WEIGHT]).columns
        check_weight(pa.field(weight, self.schema.field(newest).type))
        output = StructType([one for one in self.output if one.name != WEIGHT])
        return replace(self, options=options, weights=newest, output=output)

    @property
    @abstractmethod
    def layout(self) -> WindowLayout:
        """The layout of the windows."""

    @property
    def assembly(self) -> Assembly:
        """Computes aggregates from the partials of windows."""
        return Assembly.from_decomposition(self.decomposition, wraps=self.wraps)

    @abstractmethod
    def packer(self, buckets: int) -> EntryPacker:
        """Return the packer, which makes the input of the shuffle."""

    def results(self, place: Stateful, parcels: DataFrame, columns: Iterable[str]) -> DataFrame:
        """Return the windows that parcels make.

        Parameters
        ----------
        place : Stateful
            The operator's name, buckets and state location.
        parcels : DataFrame
            The output of `EntryPacker.pack`.
        columns : iterable of str
            Names and types of the fragments' inputs, which are fixed for the life of a checkpoint.
        """
        schema = self.emitted
        waits = self.options.limits != Budget()
        operator = self.operator(columns, place)
        own = has_own_workers(self.layout)
        windows = place.run(
            parcels, operator, schema, as_arrow_of_spark(schema), waits=waits,
            paces=self.options.contract is not None, own_workers=own,
        )  # fmt: skip
        return windows.select(*self.compute_columns())

    def write_directly(
        self,
        place: Stateful,
        parcels: DataFrame,
        columns: Iterable[str],
        finish: Finish,
        into: OperatorRows,
    ) -> DataFrame:
        """Return descriptors of results that the operator writes itself; see `results`."""
        operator = replace(self.operator(columns, place), closing=finish)
        schema = as_arrow_of_spark(DESCRIPTORS)
        own = has_own_workers(self.layout)
        return place.run(parcels, operator, DESCRIPTORS, schema, waits=False, own_workers=own, into=into)

    def accumulate_windows(
        self, place: Stateful, parcels: DataFrame, columns: Iterable[str], accumulator: WindowAccumulator
    ) -> DataFrame:
        """Return the windows accumulated by the operator; see `results`."""
        operator = replace(self.operator(columns, place), closing=accumulator)
        own = has_own_workers(self.layout)
        schema = spark_schema(accumulator.made)
        return place.run(parcels, operator, schema, accumulator.made, waits=False, own_workers=own)

    def finish(self, steps: Sequence[Step]) -> Finish | None:
        """Return a function that computes results inside the operator; None if only Spark can do so.

        Parameters
        ----------
        steps : sequence of Step
            The steps after the aggregates.
        """
        return None

    def finish_emitted(self, steps: Sequence[Step] = ()) -> Finish:
        """Return a function that computes results of emitted windows without Spark; see `finish`."""
        return Finish(
            as_arrow_of_spark(self.emitted),
            as_arrow_of_spark(self.output),
            WINDOW,
            self.fragments.pane_ms,
            self.window[0] if self._span is None else 0,
            self.assembly,
            tuple(steps),
            self._span,
            self._mark_texts,
        )

    @property
    def _span(self) -> Span | None:
        """The columns with the bounds of windows, for windows whose bounds do not follow from `START`."""
        return None

    @property
    def emitted(self) -> StructType:
        """The columns of the windows that the operator emits."""
        schema = spark_windows(self.layout)
        if self.options.on_silent is None:
            return schema
        return StructType([*schema.fields, StructField(SILENT, BooleanType())])

    def operator(self, columns: Iterable[str], place: Stateful | None = None) -> WindowOperator:
        """Return the operator of the buckets; see `results`."""
        late = None
        if self.options.late_to is not None and place is not None:
            if self.dropped is None:
                raise InternalError("the rows of windows do not reach their buckets")
            late = LateStream.open(
                absolute_location(self.options.late_to), place.name, self.dropped, place.state_location
            )
        return WindowOperator(
            self.layout,
            self.delay_panes,
            self.settings(columns),
            self.options,
            self.weights,
            self._extremes,
            late,
            self.steps,
            self.ttl_panes,
        )

    @property
    def _extremes(self) -> Extremes | None:
        """The filter that drops unwanted windows."""
        if self.extreme is None:
            return None
        (partial,) = Expression.parse(self.assembly.aggregates[self.extreme.value]).columns
        return Extremes(self.layout, partial, self.extreme.greatest, self.extreme.by)

    @property
    def delay_panes(self) -> int:
        """The delay of the watermark behind the newest row, in the unit of pane numbers."""
        return to_steps(self.delay_ms, self.fragments.time_unit)

    @property
    def ttl_panes(self) -> int | None:
        """Return the time to live of groups without tuples, in panes; None for ever."""
        if self.options.ttl is None:
            return None
        return -(-parse_ms("ttl", self.options.ttl) // self.fragments.pane_ms)

    @property
    def steps(self) -> int:
        """The length of one unit of pane numbers in units of the time column; 1 if pane numbers are times."""
        return 1

    @property
    @abstractmethod
    def window(self) -> list[Any]:
        """Size, slide and delay, as stored with the settings."""

    def settings(self, columns: Iterable[str]) -> dict[str, Any]:
        """Return the settings that are fixed for the life of a checkpoint, as JSON values."""
        return {
            "key": list(self.fragments.group_by),
            "time": self.fragments.time,
            "window": self.window,
            "aggregates": [to_settings(one) for one in self.decomposition.partials],
            "schema": list(columns),
        }

    def compute_columns(self) -> list[Column]:
        """Return groups, window and aggregates, computed by Spark from windows' partials."""
        columns: dict[str, Column] = {name: sf.col(quote(name)) for name in self.fragments.group_by}
        start, end = self._bounds()
        columns[WINDOW] = sf.struct(self._instant(start).alias("start"), self._instant(end).alias("end"))
        marks = {name: sf.expr(text) for name, text in self._mark_texts.items()}
        hidden = functools.reduce(Column.__or__, marks.values()) if marks else None
        for name, text in self.assembly.aggregates.items():
            columns[name] = sf.expr(text) if hidden is None else sf.when(~hidden, sf.expr(text))
        columns |= marks
        return [cast_to_field(columns[field.name], field) for field in self.output]

    @property
    def _mark_texts(self) -> dict[str, str]:
        """The marks of rows that have no aggregates; Spark SQL."""
        return {} if self.options.on_silent is None else {SILENT_COLUMN: quote(SILENT)}

    @abstractmethod
    def _bounds(self) -> tuple[Column, Column]:
        """Return the starts and ends of windows, in microseconds."""

    def _instant(self, micros: Column) -> Column:
        if not self.local:
            return sf.timestamp_micros(micros)
        zero = sf.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
        return zero + sf.make_dt_interval(secs=(micros / 1_000_000).cast("decimal(18, 6)"))


@dataclass(frozen=True)
class PlannedWindows:
    """A plan of windows and its input.

    Parameters
    ----------
    plan : WindowPlan
        The plan of the windows.
    parcels : DataFrame
        The input parcels.
    columns : tuple of str
        The names and types of the fragments' inputs.
    """

    plan: WindowPlan
    parcels: DataFrame
    columns: tuple[str, ...]

    def results(self, place: Stateful) -> DataFrame:
        """Return the windows, computed by an operator with the name and location `place`."""
        return self.plan.results(place, self.parcels, self.columns)

    def accumulate_windows(self, place: Stateful, accumulator: WindowAccumulator) -> DataFrame:
        """Return the windows accumulated by the operator."""
        return self.plan.accumulate_windows(place, self.parcels, self.columns, accumulator)

    def write_directly(self, place: Stateful, finish: Finish, into: OperatorRows) -> DataFrame:
        """Return descriptors of the results that the operator writes."""
        return self.plan.write_directly(place, self.parcels, self.columns, finish, into)


def wraps_around(spark: SparkSession) -> bool:
    """Return whether integers wrap around in a session; in ANSI mode they raise errors instead."""
    return spark.conf.get("spark.sql.ansi.enabled") != "true"


def cast_to_field(column: Column, field: StructField) -> Column:
    """Return a column with a field's name and type, by default Spark's own type."""
    return (column if isinstance(field.dataType, NullType) else column.cast(field.dataType)).alias(field.name)


def aggregate_text(df: DataFrame | None, name: str, aggregate: str | Column) -> str:
    """Return an aggregate as SQL text.

    A Spark column becomes text only if Spark parses the text to the same column.

    Parameters
    ----------
    df : DataFrame, optional
        The rows; None if Spark must not be asked.
    name : str
        The name of the aggregate.
    aggregate : str or Column
        The aggregate.

    Raises
    ------
    InvalidUsageError
        If the aggregate has no SQL.
    """
    if isinstance(aggregate, str):
        return aggregate
    if df is not None and isinstance(aggregate, Column):
        try:
            asked = df.groupBy().agg(aggregate.alias("a"))
        except AnalysisException as error:
            raise refusal_of(error, df.columns, name=name) from None
        if (text := aggregate_sql(df, asked)) is not None:
            return text
    raise InvalidUsageError(
        "an aggregate is neither SQL text nor a Spark column that can be written as SQL text",
        hint="write Spark SQL, such as 'avg(price)'",
        name=name,
        got=type(aggregate).__name__,
    )


def value_columns(split: Decomposition) -> tuple[list[Column], tuple[Partial, ...]]:
    """Return the inputs of partials as columns, and the same partials over these columns."""
    names = value_names(split.partials)
    return [sf.expr(text).alias(name) for text, name in names.items()], partials_of_values(split.partials)


def partials_of_values(partials: Sequence[Partial]) -> tuple[Partial, ...]:
    """Return partials of the columns that `value_names` names."""
    names = value_names(partials)
    return tuple(replace(one, expression=names.get(one.expression, one.expression)) for one in partials)


def value_names(partials: Iterable[Partial]) -> dict[str, str]:
    """Map each input of partials to the name of the column that `value_columns` makes for this input."""
    texts = dict.fromkeys(one.expression for one in partials if one.expression != "*")
    return {text: f"{RESERVED_PREFIX}value_{number}" for number, text in enumerate(texts)}


def has_own_workers(layout: WindowLayout) -> bool:
    """Return whether windows overlap so much that a bucket's state is slow to reload."""
    return layout.spec.overlap >= _MIN_WINDOWS_FOR_OWN_WORKERS


def spark_windows(layout: WindowLayout) -> StructType:
    """Return the schema of the windows' partials in Spark."""
    names = pa.schema([*layout.groups, *layout.results])
    fields = {field.name: field for field in spark_schema(names)}
    fields[START] = StructField(START, LongType())
    return StructType([fields[name] for name in layout.window.names])


_STEPS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


def to_steps(duration_ms: int, unit: TimeUnit) -> int:
    """Return a duration in units of a time column, rounded up."""
    return -(-duration_ms * _STEPS[unit] // 1000)


def to_micros(name: str, unit: TimeUnit) -> Column:
    """Return a column of times as microseconds, rounded down."""
    if unit == "ns":
        return sf.expr(f"({name} - pmod({name}, 1000)) div 1000")
    return sf.col(quote(name)) * sf.lit(1_000_000 // _STEPS[unit])
