"""Plan windows of rows from their columns, without asking Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pyspark.sql.types import (
    DataType,
    DateType,
    IntegralType,
    LongType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import Decomposition, decompose, pane_ms
from penstock.operators.scan.spec import Fragments, Partial, TimeUnit
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.lives import SILENT_COLUMN, check_windows
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.operators.update_stream.options import check_column, parse_ms, session_gap
from penstock.spark_ext.border.window_packing import RowPacker, WholeRows, row_fragmenter
from penstock.spark_ext.declared import TIME, aggregate_fields, whole_name, window_columns
from penstock.spark_ext.sources.task_rows import dropped_columns
from penstock.spark_ext.worker.count_windows import (
    CountWindowPlan,
    RowOrderPacker,
    arriving_rows,
    row_fragments,
)
from penstock.spark_ext.worker.stateful import arrow_schema
from penstock.spark_ext.worker.time_windows import (
    DELETES,
    DeletingWindowPlan,
    SessionWindowPlan,
    TimeWindowPlan,
    add_mark,
    deleting_fragments,
    session_fragments,
)
from penstock.spark_ext.worker.window_plan import WINDOW, WindowPlan, partials_of_values, value_names
from penstock.sql.expression import Expression, column
from penstock.units import window_rows

__all__ = [
    "CountWindows",
    "WindowColumns",
    "make_count_windows",
    "pack_windows",
    "time_unit",
    "window_output",
]


@dataclass(frozen=True)
class WindowColumns:
    """The columns of the rows that windows aggregate, before and after aggregation.

    Parameters
    ----------
    input : StructType
        The columns of the input.
    needed : StructType
        The columns of the packer: the time, the groups, the values of partials and the mark of deletes.
    output : StructType
        The columns of the results.
    split : Decomposition
        The aggregates.
    partials : tuple of Partial
        The partials of the aggregates, whose expressions are columns of `needed`.
    """

    input: StructType
    needed: StructType
    output: StructType
    split: Decomposition
    partials: tuple[Partial, ...]


def pack_windows(
    columns: WindowColumns,
    keys: tuple[str, ...],
    size: str | timedelta | None,
    slide: str | timedelta | None,
    options: WindowOptions,
    *,
    gap_ms: int | None,
    unit: TimeUnit,
    local: bool,
    delay_ms: int,
    wraps: bool,
    buckets: int,
) -> tuple[WindowPlan, RowPacker | RowOrderPacker]:
    """Return the plan of windows and the packer of their rows.

    Parameters
    ----------
    columns : WindowColumns
        The columns.
    keys : tuple of str
        The groups.
    size, slide, options, unit, buckets
        As for `penstock.update_window`.
    gap_ms : int, optional
        The gap of sessions.
    local : bool
        Whether times have no zone.
    delay_ms : int
        The delay of the watermark behind the newest tuple.
    wraps : bool
        As in `Assembly`.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong.
    """
    split, partials = columns.split, columns.partials
    schema = arrow_schema(columns.needed, large=False)
    whole = options.late_to is not None
    common: dict[str, Any] = {
        "decomposition": split,
        "output": columns.output,
        "delay_ms": delay_ms,
        "local": local,
        "wraps": wraps,
        "dropped": dropped_columns(columns.input, columns.needed[TIME].dataType) if whole else None,
    }
    packer: RowPacker | RowOrderPacker
    plan: WindowPlan
    in_rows = window_rows(size, slide)
    check_windows(options, "session windows" if gap_ms else "windows of rows" if in_rows else None)
    if options.on_silent is not None:
        common["output"] = add_mark(common["output"], SILENT_COLUMN, "on_silent")
    if in_rows is not None:
        arriving, fragments = arriving_rows(schema, TIME, keys), row_fragments(unit, keys, partials)
        with _users_expressions(split):
            made = row_fragmenter(arriving, fragments).schema
        plan = CountWindowPlan(
            fragments=fragments, schema=made, size_rows=in_rows[0], slide_rows=in_rows[1],
            arriving=arriving, **common,
        )  # fmt: skip
        packer = RowOrderPacker(schema, TIME, plan.packer(buckets), options.nulls)
    elif gap_ms is not None:
        fragments = session_fragments(gap_ms, TIME, unit, keys, partials)
        with _users_expressions(split):
            made = row_fragmenter(schema, fragments).schema
        plan = SessionWindowPlan(fragments=fragments, schema=made, gap_ms=gap_ms, **common)
        packer = RowPacker(schema, fragments, plan.packer(buckets), options.nulls)
    else:
        assert size is not None  # noqa: S101  # session_gap has checked it
        size_ms = parse_ms("size", size)
        slide_ms = size_ms if slide is None else parse_ms("slide", slide)
        if options.delete_when is not None:
            arriving = arriving_rows(schema, TIME, keys)
            fragments = deleting_fragments(pane_ms(size_ms, slide_ms), unit, keys, partials)
            with _users_expressions(split):
                made = row_fragmenter(arriving, fragments).schema
            common["output"] = add_mark(common["output"], DELETED_COLUMN, "delete_when")
            plan = DeletingWindowPlan(
                fragments=fragments, schema=made, size_ms=size_ms, slide_ms=slide_ms, arriving=arriving,
                **common,
            )  # fmt: skip
            packer = RowOrderPacker(schema, TIME, plan.packer(buckets), options.nulls)
        else:
            panes = Fragments(pane_ms(size_ms, slide_ms), TIME, unit, keys, partials)
            fragments = panes.add_watermark(delay_ms, TIME)
            with _users_expressions(split):
                made = row_fragmenter(schema, fragments).schema
            plan = TimeWindowPlan(
                fragments=fragments, schema=made, size_ms=size_ms, slide_ms=slide_ms, **common
            )
            packer = RowPacker(schema, fragments, plan.packer(buckets), options.nulls)
    if whole:
        rows = arrow_schema(columns.input, large=False)
        packer = replace(packer, whole=WholeRows(rows, plan.steps, buckets, keys))
    return plan, packer


@contextlib.contextmanager
def _users_expressions(split: Decomposition) -> Iterator[None]:
    """In errors, name the user's expression instead of the internal column with its value."""
    try:
        yield
    except InvalidUsageError as error:
        written = {column: text for text, column in value_names(split.partials).items()}
        named = {name: written.get(value, value) for name, value in error.context.items()}
        raise InvalidUsageError(error.fact, hint=error.hint, **named) from None


def time_unit(kind: DataType, time: str, unit: TimeUnit | None) -> TimeUnit:
    """Return the unit of a time, given its type.

    Raises
    ------
    InvalidUsageError
        If the type cannot be a time, or the unit is missing or not allowed.
    """
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        if unit is not None:
            raise InvalidUsageError("only an integer time has a unit", column=time, type=kind.simpleString())
        return "us"
    if not isinstance(kind, IntegralType):
        raise InvalidUsageError(
            "a column of this type cannot be the time",
            column=time,
            type=kind.simpleString(),
            hint="use a timestamp, a date or an integer with a unit; cast others first",
        )
    if unit is None:
        raise InvalidUsageError(
            "an integer time needs a unit", column=time, hint="unit='s', 'ms', 'us' or 'ns'"
        )
    return unit


def window_output(
    columns: StructType, keys: tuple[str, ...], time: str, aggregates: Mapping[str, DataType]
) -> StructType:
    """Return the output columns, in the form of Spark's own windows.

    Raises
    ------
    InvalidUsageError
        If two columns have the same name.
    """
    clashes = sorted({WINDOW, *keys} & aggregates.keys())
    if clashes or WINDOW in keys:
        raise InvalidUsageError("two columns have the same name", columns=clashes or [WINDOW])
    local = isinstance(columns[time].dataType, TimestampNTZType)
    of_window = TimestampNTZType() if local else TimestampType()
    window = StructType([StructField("start", of_window), StructField("end", of_window)])
    results = [StructField(name, kind) for name, kind in aggregates.items()]
    return StructType([*(columns[name] for name in keys), StructField(WINDOW, window), *results])


@dataclass(frozen=True)
class CountWindows:
    """Windows over rows that Penstock projects, without Spark.

    Parameters
    ----------
    plan : WindowPlan
        The plan.
    packer : RowPacker or RowOrderPacker
        Packs rows with the columns of `select`.
    select : mapping of str to Expression
        The columns of the packer's input.
    needed : StructType
        The columns of `select` without the columns of whole rows.
    """

    plan: WindowPlan
    packer: RowPacker | RowOrderPacker
    select: Mapping[str, Expression]
    needed: StructType


def make_count_windows(
    columns: StructType,
    keys: tuple[str, ...],
    time: str,
    size: str | timedelta | None,
    slide: str | timedelta | None,
    aggregates: Mapping[str, str],
    options: WindowOptions,
    *,
    session: str | timedelta | None,
    unit: TimeUnit | None,
    buckets: int,
) -> CountWindows:
    """Plan windows over rows with these columns; the arguments are as for `penstock.update_window`.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong, or only Spark can determine the type of an expression.
    """
    gap_ms = session_gap(session, size, slide, options)
    check_column("time", time, columns.names)
    for name in keys:
        check_column("key", name, columns.names)
    at = columns[time].dataType
    split = decompose(aggregates, time, keys).add_count(keys)
    texts = value_names(split.partials)
    flags = () if options.delete_when is None else (DELETES,)
    whole = options.late_to is not None
    needed = window_columns(columns, keys, time, texts, (), whole=False)
    # As in Spark, the marks of deletes are never null.
    needed = StructType([*needed, *(StructField(name, LongType(), nullable=False) for name in flags)])
    select = {TIME: column(time)} | {name: column(name) for name in keys}
    select |= {name: Expression.parse(text) for text, name in texts.items()}
    if options.delete_when is not None:
        select[DELETES] = Expression.parse(f"CASE WHEN {options.delete_when} THEN 1 ELSE 0 END")
    if whole:
        select |= {whole_name(place): column(name) for place, name in enumerate(columns.names)}
    types = {one.name: one.dataType for one in aggregate_fields(aggregates, columns)}
    output = window_output(columns, keys, time, types)
    plan, packer = pack_windows(
        WindowColumns(columns, needed, output, split, partials_of_values(split.partials)),
        keys, size, slide, options,
        gap_ms=gap_ms, unit=time_unit(at, time, unit), local=isinstance(at, TimestampNTZType),
        delay_ms=options.delay_ms or 0, wraps=False, buckets=buckets,
    )  # fmt: skip
    return CountWindows(plan, packer, select, needed)
