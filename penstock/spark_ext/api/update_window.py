"""`update_window`: windows over any streaming DataFrame."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DateType,
    IntegralType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.ddl import quoted
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import Decomposition, decompose, pane_ms
from penstock.operators.scan.spec import WEIGHT, Fragments, Partial, TimeUnit
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.operators.update_stream.options import check_column, milliseconds
from penstock.spark_ext.border.collations import refuse_collations
from penstock.spark_ext.border.parcels import PARCEL_SCHEMA
from penstock.spark_ext.border.window_packing import RowPacker, row_fragmenter
from penstock.spark_ext.worker.count_windows import (
    CountWindowPlan,
    RowOrderPacker,
    arriving_rows,
    row_fragments,
)
from penstock.spark_ext.worker.stateful import (
    Stateful,
    arrow_schema,
    check_streaming,
    columns_of,
    key_columns,
)
from penstock.spark_ext.worker.time_windows import TimeWindowPlan
from penstock.spark_ext.worker.window_plan import (
    WINDOW,
    Windowed,
    WindowPlan,
    value_columns,
    wraps_around,
)
from penstock.state_store.bucket_store import RETAIN_VERSIONS
from penstock.units import window_rows

__all__ = ["TIME", "update_window", "windowed"]

TIME = "__penstock_time"
"""The column of the time of what windows are made of."""
_DELAY_KEY = "spark.watermarkDelayMs"


def update_window(
    df: DataFrame,
    key: str | Iterable[str],
    time: str,
    size: str | timedelta,
    slide: str | timedelta | None = None,
    aggs: Mapping[str, str | Column] | None = None,
    mode: str = "append",
    budget: int | str | None = None,
    policy: str | None = None,
    *,
    cost: str | None = None,
    weight: str | Mapping[Any, float] | None = None,
    watermark_delay: str | timedelta | None = None,
    unit: TimeUnit | None = None,
    buckets: int | None = None,
    nulls: str = "error",
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    name: str = "update_window",
) -> DataFrame:
    """Aggregate each key's tuples in windows of time.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame.
    key : str or iterable of str
        The columns of the group; none, as ``()``, makes one group. A null is a group of its own.
    time : str
        The column of event time: a timestamp, a date, or an integer with a `unit`.
    size, slide : str or timedelta
        Such as ``"60 s"``. Without a slide windows do not overlap. They are ``[start, end)`` and aligned as
        Spark's ``window()`` aligns them. Or both in rows, such as ``"100 rows"``: windows of so many tuples
        of a key in the order of their times, those of one time in order of arrival, from its first one on.
    aggs : mapping of str to str or Column
        Spark SQL by the name of its column: ``{"load": "avg(value)"}``; or Spark's column, such as
        ``functions.avg("value")``, if its text means the same. ``count(DISTINCT x)`` is exact, and
        keeps the values of each pane.
    mode : {"append", "lazy", "eager"}
        Which windows are emitted (UpStream §6.2). ``"append"``: all, each once, as the watermark passes its
        end. ``"lazy"``: of each key the newest that is complete; older ones are disregarded. ``"eager"``: a
        key is committed to the window that started last, and the others that it has until that is complete
        are disregarded.
    budget : int or str, optional
        How many windows a trigger may serve, in the order of `policy`, unless the mode is ``"append"``; or
        for how long each of Spark's parallel tasks may make windows, such as ``"800ms"``. What still waits is
        served in later triggers, also without new input, or overwritten by a newer window.
    policy : {"in_place", "fifo", "linecutting"}, optional
        Which waiting key is served next; ``"in_place"`` by default.
    cost : str, optional
        The time that one window costs, such as ``"2ms"``, for linecutting; measured by default.
    weight : str or mapping, optional
        How much each key matters, as in `update_queue`: a numeric column, of which the newest tuple's counts
        when its pane has passed the watermark, or a mapping from values of the key. A weight of a column that
        is not positive and finite fails the query, whatever `nulls` says.
    watermark_delay : str or timedelta, optional
        How long tuples may be behind the newest one. By default that of ``withWatermark`` where `df` has one
        on the column `time`, else none.
    unit : {"s", "ms", "us", "ns"}, optional
        Of an integer time, since 1970-01-01T00:00:00Z.
    buckets, state_location, retain_versions, name
        As in `update_queue`.
    nulls : {"error", "drop"}
        What happens to rows without a time: the query fails, or they are dropped and counted.

    Returns
    -------
    DataFrame
        For ``outputMode("append")``: the key's columns, ``window`` (a struct of ``start`` and ``end``; of
        windows of rows, the times of the first and the last one), and one column for each of `aggs`.

    Notes
    -----
    The watermark is the time of the newest tuple so far, this micro-batch's included, less the delay, down to
    the beginning of a pane (the greatest common divisor of size and slide). So a window is emitted with the
    micro-batch that closes it, where Spark's own comes out with the next one. A tuple that is later than the
    delay allows may still count for Spark's. Here it is in those of its windows that are open; where none is,
    or in lazy and eager mode, it is dropped and counted as late.

    Windows of rows are complete when the watermark has passed their last row; a tuple that is older than the
    watermark was before its micro-batch is late. Without a delay the watermark passes all tuples as they
    come, so that each micro-batch is put into order by itself.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong. What can only be seen later (rows without a time, a restart with other
        settings, damaged state) fails the query with an error of `penstock.errors`.

    Examples
    --------
    >>> loads = penstock.update_window(
    ...     readings, key="plug", time="time", size="60 s", slide="1 s", mode="append",
    ...     aggs={"load": "avg(value)"}, state_location="/var/lib/penstock",
    ... )  # doctest: +SKIP
    """
    check_streaming(df)
    options = WindowOptions(
        watermark_delay=watermark_delay, mode=mode, budget=budget, policy=policy, cost=cost, weight=weight,
        buckets=buckets, nulls=nulls, state_location=state_location, retain_versions=retain_versions,
    )  # fmt: skip
    place = Stateful.of(df.sparkSession, name, options)
    texts = {name: _text_of(df, name, given) for name, given in (aggs or {}).items()}
    if isinstance(weight, str) and texts:
        check_column("weight", weight, df.columns)
        texts[WEIGHT] = f"last({quoted(weight)})"
    made = windowed(df, key, time, size, slide, texts, options, unit=unit, buckets=place.buckets)
    return replace(made, plan=made.plan.served(options)).results(place)


def windowed(
    df: DataFrame,
    key: str | Iterable[str],
    time: str,
    size: str | timedelta,
    slide: str | timedelta | None,
    aggs: Mapping[str, str] | None,
    options: WindowOptions,
    *,
    unit: TimeUnit | None,
    buckets: int,
) -> Windowed:
    """Return windows before they are made; the arguments are those of `update_window`.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong.
    """
    if not aggs:
        raise InvalidUsageError("nothing is aggregated", hint="such as aggs={'load': 'avg(value)'}")
    keys = key_columns(key)
    at, unit = _time(df, time, unit)
    split = decompose(aggs, time, keys).counted(keys)
    rows, partials = _rows(df, keys, at, split)
    schema = arrow_schema(rows.schema, large=False)
    common: dict[str, Any] = {
        "decomposition": split,
        "output": _output(df, keys, time, aggs),
        "delay_ms": _delay_ms(df, time, options.delay_ms),
        "local": isinstance(df.schema[time].dataType, TimestampNTZType),
        "wraps": wraps_around(df.sparkSession),
    }
    packer: RowPacker | RowOrderPacker
    plan: WindowPlan
    if (in_rows := window_rows(size, slide)) is not None:
        arriving, fragments = arriving_rows(schema, TIME, keys), row_fragments(unit, keys, partials)
        made = row_fragmenter(arriving, fragments).schema
        plan = CountWindowPlan(
            fragments=fragments, schema=made, size_rows=in_rows[0], slide_rows=in_rows[1],
            arriving=arriving, **common,
        )  # fmt: skip
        packer = RowOrderPacker(schema, TIME, plan.packer(buckets), options.nulls)
    else:
        size_ms = milliseconds("size", size)
        slide_ms = size_ms if slide is None else milliseconds("slide", slide)
        panes = Fragments(pane_ms(size_ms, slide_ms), TIME, unit, keys, partials)
        fragments = panes.delayed(common["delay_ms"], TIME)
        made = row_fragmenter(schema, fragments).schema
        plan = TimeWindowPlan(fragments=fragments, schema=made, size_ms=size_ms, slide_ms=slide_ms, **common)
        packer = RowPacker(schema, fragments, plan.packer(buckets), options.nulls)
    return Windowed(plan, rows.mapInArrow(packer, PARCEL_SCHEMA), columns_of(rows.schema))


def _text_of(df: DataFrame, name: str, given: str | Column) -> str:
    """Return an aggregate as SQL; a column of Spark as its text, if Spark reads the same from that."""
    if isinstance(given, str):
        return given
    if isinstance(given, Column):
        with contextlib.suppress(AnalysisException, ParseException):
            asked = df.groupBy().agg(given.alias("a"))
            made = asked._jdf.queryExecution().analyzed().aggregateExpressions().apply(0)
            text = str(made.child().sql())
            if asked.sameSemantics(df.groupBy().agg(sf.expr(text).alias("a"))):
                return text
    raise InvalidUsageError(
        "an aggregate is neither Spark SQL nor a column that has the same as text",
        hint="write Spark SQL, such as 'avg(price)'",
        name=name,
        got=type(given).__name__,
    )


def _time(df: DataFrame, time: str, unit: TimeUnit | None) -> tuple[Column, TimeUnit]:
    """Return the time as windows take it, and what one step of it is."""
    check_column("time", time, df.columns)
    kind, column = df.schema[time].dataType, sf.col(quoted(time))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        if unit is not None:
            raise InvalidUsageError("only an integer time has a unit", column=time, type=kind.simpleString())
        return (column.cast("timestamp") if isinstance(kind, DateType) else column), "us"
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
    return column.cast("long"), unit


def _rows(
    df: DataFrame, keys: tuple[str, ...], at: Column, split: Decomposition
) -> tuple[DataFrame, tuple[Partial, ...]]:
    """Return time, groups and the values of partials as columns, and partials of these columns."""
    for name in keys:
        check_column("key", name, df.columns)
    values, partials = value_columns(split)
    rows = df.select(at.alias(TIME), *(sf.col(quoted(name)) for name in keys), *values)
    distinct = [one.expression for one in partials if one.kind == "distinct"]
    refuse_collations(rows.schema, (*keys, *distinct))
    return rows, partials


def _output(df: DataFrame, keys: tuple[str, ...], time: str, aggs: Mapping[str, str]) -> StructType:
    """Return the columns that Spark's own windows would have."""
    taken = sorted({WINDOW, *keys} & aggs.keys())
    if taken or WINDOW in keys:
        raise InvalidUsageError("two columns have the same name", columns=taken or [WINDOW])
    local = isinstance(df.schema[time].dataType, TimestampNTZType)
    of_window = TimestampNTZType() if local else TimestampType()
    window = StructType([StructField("start", of_window), StructField("end", of_window)])
    made = df.groupBy(*(sf.col(quoted(name)) for name in keys)).agg(
        *(sf.expr(text).alias(name) for name, text in aggs.items())
    )
    fields = made.schema.fields
    return StructType([*fields[: len(keys)], StructField(WINDOW, window), *fields[len(keys) :]])


def _delay_ms(df: DataFrame, time: str, given: int | None) -> int:
    """Return how long tuples may be late: as given, or as ``withWatermark`` says of the column."""
    return int(df.schema[time].metadata.get(_DELAY_KEY, 0)) if given is None else given
