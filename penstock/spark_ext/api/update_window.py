"""`update_window`: windows over any streaming DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DateType, IntegralType, StructType, TimestampNTZType

from penstock.ddl import quote
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import Decomposition, decompose, replace_own
from penstock.operators.scan.spec import WEIGHT, Partial, TimeUnit
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.operators.update_stream.options import check_column, session_gap
from penstock.spark_ext.api.failure import refusal_of
from penstock.spark_ext.border.collations import refuse_collations
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.declared import (
    TIME,
    Schema,
    aggregate_fields,
    declare_columns,
    whole_name,
    window_columns,
)
from penstock.spark_ext.window_plans import WindowColumns, pack_windows, time_unit, window_output
from penstock.spark_ext.worker.stateful import Stateful, check_streaming, columns_of, key_columns
from penstock.spark_ext.worker.time_windows import delete_flags
from penstock.spark_ext.worker.window_plan import (
    PlannedWindows,
    aggregate_text,
    value_columns,
    value_names,
    wraps_around,
)
from penstock.state_store.bucket_store import RETAIN_VERSIONS

__all__ = ["TIME", "plan_windows", "update_window"]

_DELAY_KEY = "spark.watermarkDelayMs"


def update_window(
    df: DataFrame,
    key: str | Iterable[str],
    time: str,
    size: str | timedelta | None = None,
    slide: str | timedelta | None = None,
    aggs: Mapping[str, str | Column] | None = None,
    mode: str = "append",
    budget: int | str | None = None,
    policy: str | None = None,
    *,
    freshness: Mapping[str, Any] | None = None,
    session: str | timedelta | None = None,
    cost: str | None = None,
    weight: str | Mapping[Any, float] | None = None,
    delete_when: str | None = None,
    ttl: str | timedelta | None = None,
    on_silent: str | None = None,
    watermark_delay: str | timedelta | None = None,
    unit: TimeUnit | None = None,
    buckets: int | None = None,
    nulls: str = "error",
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    late_to: str | os.PathLike[str] | None = None,
    schema: Schema | None = None,
    name: str = "update_window",
) -> DataFrame:
    """Aggregate each key's tuples in windows of time.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame.
    key : str or iterable of str
        The columns of the group; ``()`` makes one group. Nulls form a separate group.
    time : str
        The column of event time: a timestamp, a date, or an integer with a `unit`.
    size, slide : str or timedelta
        Durations such as ``"60 s"``. Without a slide windows do not overlap. Windows are ``[start, end)``,
        aligned like Spark's ``window()``. Or both in rows, such as ``"100 rows"``: windows of that many
        tuples of a key, from its first tuple on, in order of time and then of arrival.
    aggs : mapping of str to str or Column
        Spark SQL by the name of its column: ``{"load": "avg(value)"}``; or a Spark column, such as
        ``functions.avg("value")``, if its text is equivalent. ``count(DISTINCT x)`` is exact, and stores the
        values of each pane. ``median(x)`` and ``percentile(x, p)`` are exact up to 4,096 values of a window;
        beyond that the rank is wrong by at most a thousandth of the values, with 99 % confidence.
    mode : {"append", "lazy", "eager"}
        The windows to emit (UpStream §6.2). ``"append"``: all windows, each once, when the watermark passes
        its end. ``"lazy"``: the newest complete window of each key; older ones are dropped. ``"eager"``: a
        key commits to its newest window, and drops its other windows until that one is complete.
    budget : int or str, optional
        The number of windows that a trigger may serve, in the order of `policy`, unless the mode is
        ``"append"``; or the time that each of Spark's parallel tasks may take, such as ``"800ms"``. Windows
        that still wait are served in later triggers, even without new input, or replaced by a newer window.
    policy : {"in_place", "fifo", "linecutting", "freshest"}, optional
        The order in which waiting keys are served; ``"in_place"`` by default.
    freshness : mapping, optional
        A contract instead of a budget, such as ``{"p95": "2 s"}``; windows have no classes of keys. See
        `update_queue`.
    session : str or timedelta, optional
        The gap of session windows, such as ``"10 minutes"``, instead of `size` and `slide`; append mode only.
        Events of a key that follow each other by less than the gap are one session. Its window ends a gap
        after its last event.
    cost : str, optional
        The time that one window costs, such as ``"2ms"``, for linecutting; measured by default.
    weight : str or mapping, optional
        The weight of each key, as in `update_queue`: a numeric column, whose value in the newest tuple counts
        once the watermark has passed its pane, or a mapping from values of the key. A weight in a column that
        is not positive and finite fails the query, whatever `nulls` says.
    delete_when : str, optional
        An SQL condition on rows, such as ``"op = 'd'"``. A row for which it is true deletes its key: it and
        the key's tuples that are older, or as old and arrived before, do not count in windows that have it.
        If a window has no later tuple, its aggregates are null. The output gets the column ``deleted``, true
        in such results. Only windows of time have deletes; their rows cross the shuffle, and a row is late if
        the watermark has passed its pane.
    ttl : str or timedelta, optional
        How long a key of lazy or eager windows of time lives without a tuple, such as ``"10 minutes"``; by
        default for ever. It leaves the state when the watermark is so far past its newest pane, if none of
        its windows is open or waits. A key that returns makes the same windows as one that stayed.
        Not with a `budget`.
    on_silent : {"row"}, optional
        Whether a key that leaves is told: a row with the key, its last window, null aggregates, and true in
        the column ``silent``, which the output then has.
    watermark_delay : str or timedelta, optional
        The allowed lateness of tuples behind the newest one. By default the delay of ``withWatermark`` on the
        column `time` of `df`, else none.
    unit : {"s", "ms", "us", "ns"}, optional
        The unit of an integer time since 1970-01-01T00:00:00Z.
    buckets, state_location, retain_versions, name
        As in `update_queue`.
    nulls : {"error", "drop"}
        The treatment of rows without a time: fail the query, or drop and count them.
    late_to : str or path, optional
        The location of a p-stream for the rows that are dropped, each exactly once: all columns of `df`,
        ``reason`` (``"late"`` or ``"the time is null"``) and ``watermark``, the one that made the row late.
        Whole rows then cross the shuffle. See ``docs/how-to/late-rows.md``.
    schema : StructType or str, optional
        The columns of `df`, or their DDL; see `penstock.update_queue`. Aggregates are SQL then, and Penstock
        must know their types without Spark.

    Returns
    -------
    DataFrame
        For ``outputMode("append")``: the key's columns, ``window`` (a struct of ``start`` and ``end``; of
        windows of rows, the times of the first and the last one), and one column for each of `aggs`.

    Notes
    -----
    The watermark is the time of the newest tuple so far, including this micro-batch, less the delay, rounded
    down to the start of a pane (the greatest common divisor of size and slide). So a window is emitted by the
    micro-batch that closes it, while Spark's own windows are emitted by the next one. Spark may still count a
    tuple that is later than the delay allows. Here such a tuple counts in those of its windows that are still
    open. If none is open, or in lazy and eager mode, it is dropped and counted as late.

    Windows of rows are complete when the watermark has passed their last row. A tuple is late if it is older
    than the watermark before its micro-batch. Without a delay the watermark passes all tuples as they arrive,
    so only the tuples within a micro-batch are sorted.

    A session is emitted when the watermark, which is not rounded for sessions, passes its end. A tuple behind
    the watermark counts if it belongs to an open session, or makes one that the watermark has not passed.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong. Problems at run time (rows without a time, a restart with other settings,
        damaged state) fail the query with an error of `penstock.errors`.

    Examples
    --------
    >>> loads = penstock.update_window(
    ...     readings, key="plug", time="time", size="60 s", slide="1 s", mode="append",
    ...     aggs={"load": "avg(value)"}, state_location="/var/lib/penstock",
    ... )  # doctest: +SKIP
    """
    df, declared = declare_columns(df, schema)
    if not declared:
        check_streaming(df)
    options = WindowOptions(
        watermark_delay=watermark_delay, mode=mode, budget=budget, freshness=freshness, policy=policy,
        cost=cost, weight=weight, delete_when=delete_when, ttl=ttl, on_silent=on_silent,
        buckets=buckets, nulls=nulls, state_location=state_location,
        retain_versions=retain_versions, late_to=late_to,
    )  # fmt: skip
    place = Stateful.plan(df.sparkSession, name, options, declared=declared)
    if not isinstance(aggs, Mapping | None):
        raise InvalidUsageError(
            "aggs is not a mapping", got=type(aggs).__name__, hint="write aggs={'load': 'avg(value)'}"
        )
    asked = None if declared else df
    texts = {name: aggregate_text(asked, name, aggregate) for name, aggregate in (aggs or {}).items()}
    if isinstance(weight, str) and texts:
        check_column("weight", weight, df.columns)
        texts[WEIGHT] = f"last({quote(weight)})"
    plan = plan_windows(
        df, key, time, size, slide, texts, options, session=session, unit=unit, buckets=place.buckets,
        declared=declared,
    )  # fmt: skip
    return replace(plan, plan=plan.plan.replace_options(options)).results(place)


def plan_windows(
    df: DataFrame,
    key: str | Iterable[str],
    time: str,
    size: str | timedelta | None,
    slide: str | timedelta | None,
    aggs: Mapping[str, str] | None,
    options: WindowOptions,
    *,
    session: str | timedelta | None,
    unit: TimeUnit | None,
    buckets: int,
    declared: bool = False,
) -> PlannedWindows:
    """Return the plan of windows; the arguments are as for `update_window`.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong.
    """
    if not aggs:
        raise InvalidUsageError(
            "no aggregate is given", hint="pass an aggregate, such as aggs={'load': 'avg(value)'}"
        )
    gap_ms = session_gap(session, size, slide, options)
    keys = key_columns(key)
    check_column("time", time, df.columns)
    kind = df.schema[time].dataType
    unit = time_unit(kind, time, unit)
    split = decompose(aggs, time, keys).add_count(keys)
    deletes = {} if options.delete_when is None else delete_flags(df, options.delete_when, declared=declared)
    rows, needed, partials = _rows(
        df, keys, time, split, deletes, whole=options.late_to is not None, declared=declared
    )
    plan, packer = pack_windows(
        WindowColumns(df.schema, needed, _output(df, keys, time, aggs, declared=declared), split, partials),
        keys, size, slide, options,
        gap_ms=gap_ms, unit=unit, local=isinstance(kind, TimestampNTZType),
        delay_ms=_delay_ms(df, time, options.delay_ms), wraps=wraps_around(df.sparkSession), buckets=buckets,
    )  # fmt: skip
    return PlannedWindows(plan, rows.mapInArrow(packer, PARCELS), columns_of(needed))


def _time(df: DataFrame, time: str) -> Column:
    """Return the time as a column for windows."""
    kind, column = df.schema[time].dataType, sf.col(quote(time))
    if isinstance(kind, DateType):
        return column.cast("timestamp")
    return column.cast("long") if isinstance(kind, IntegralType) else column


def _rows(
    df: DataFrame,
    keys: tuple[str, ...],
    time: str,
    split: Decomposition,
    more: Mapping[str, Column],
    *,
    whole: bool,
    declared: bool,
) -> tuple[DataFrame, StructType, tuple[Partial, ...]]:
    """Return rows, the columns of time, groups, values of partials and `more`, and partials of the values.

    With `whole`, all columns of the input follow.
    """
    for name in keys:
        check_column("key", name, df.columns)
    values, partials = value_columns(split)
    try:
        named = [column.alias(name) for name, column in more.items()]
        needed = [_time(df, time).alias(TIME), *(sf.col(quote(name)) for name in keys), *values, *named]
        rows = df.select(*needed, *(_inputs(df) if whole else []))
        if declared:
            texts = value_names(split.partials)
            rows = rows.to(window_columns(df.schema, keys, time, texts, more, whole=whole))
    except AnalysisException as error:
        raise refusal_of(error, df.columns) from None
    distinct = [one.expression for one in partials if one.kind == "distinct"]
    schema = StructType(rows.schema.fields[: len(needed)])
    refuse_collations(schema, (*keys, *distinct))
    return rows, schema, partials


def _inputs(df: DataFrame) -> list[Column]:
    """Return the columns of the input, under names that no other column has."""
    return [sf.col(quote(name)).alias(whole_name(place)) for place, name in enumerate(df.columns)]


def _output(
    df: DataFrame, keys: tuple[str, ...], time: str, aggs: Mapping[str, str], *, declared: bool
) -> StructType:
    """Return the output columns, as Spark's own windows have them."""
    if declared:
        results = aggregate_fields(aggs, df.schema)
    else:
        result = df.groupBy(*(sf.col(quote(name)) for name in keys)).agg(
            *(sf.expr(replace_own(text)).alias(name) for name, text in aggs.items())
        )
        results = result.schema.fields[len(keys) :]
    return window_output(df.schema, keys, time, {one.name: one.dataType for one in results})


def _delay_ms(df: DataFrame, time: str, delay: int | None) -> int:
    """Return the allowed lateness: as given, or the delay of ``withWatermark`` on the column."""
    return int(df.schema[time].metadata.get(_DELAY_KEY, 0)) if delay is None else delay
