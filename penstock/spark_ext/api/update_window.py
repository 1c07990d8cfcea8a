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

from penstock.conf.arguments import check_keywords
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


@check_keywords
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
        Durations such as ``"60 s"``. By default the slide equals the size, and windows do not overlap.
        Windows are ``[start, end)``, aligned like Spark's ``window()``. If both are numbers of rows, such as
        ``"100 rows"``, a window has that many tuples of a key, counted from its first tuple, in order of time
        and then of arrival.
    aggs : mapping of str to str or Column
        Spark SQL expressions by output column: ``{"load": "avg(value)"}``; or a Spark column, such as
        ``functions.avg("value")``, if its text form is such an expression. ``count(DISTINCT x)`` is exact,
        and stores all distinct values of each pane. ``median(x)`` and ``percentile(x, p)`` are exact up to
        4,096 values of a window; in larger windows the rank of the result is wrong by at most 0.1 % of the
        values, with 99 % confidence.
    mode : {"append", "lazy", "eager"}
        The windows to emit (UpStream §6.2). ``"append"``: every window, once, when the watermark passes its
        end. ``"lazy"``: the newest complete window of each key; older windows are dropped. ``"eager"``: when
        it is a key's turn, the queue chooses the key's window that started last, and emits this window once
        it is complete; of the key's newer windows, only the newest waits.
    budget : int or str, optional
        For lazy and eager mode: how much to serve in a trigger. Either a number of windows, served in the
        order of `policy`, or a duration such as ``"800ms"``, as for `update_queue`. Windows that still wait
        are served in later triggers, even without new input, unless a newer window replaces them.
    policy : {"in_place", "fifo", "linecutting", "freshest"}, optional
        The order in which waiting keys are served; ``"in_place"`` by default.
    freshness : mapping, optional
        A contract instead of a budget, such as ``{"p95": "2 s"}``; windows have no classes of keys. See
        `update_queue`.
    session : str or timedelta, optional
        The gap of session windows, such as ``"10 minutes"``, instead of `size` and `slide`; append mode only.
        Events of a key belong to one session if consecutive events are less than the gap apart. The session's
        window ends one gap after its last event.
    cost : str, optional
        The time to serve one window, such as ``"2ms"``, for linecutting; measured by default.
    weight : str or mapping, optional
        The weight of each key, as in `update_queue`: a numeric column, or a mapping from key values. The
        column's value in a key's newest tuple becomes the weight once the watermark has passed the tuple's
        pane. A value that is not positive and finite fails the query, whatever `nulls` is.
    delete_when : str, optional
        An SQL condition on rows, such as ``"op = 'd'"``. A row for which the condition is true deletes its
        key. Windows that contain the row ignore it and the key's older tuples, including tuples of equal time
        that arrived before it. If a window has no later tuple, its aggregates are null. The output gets the
        column ``deleted``, true in such results. Only windows of time have deletes. With this option whole
        rows cross the shuffle, and a row is late if the watermark has passed its pane.
    ttl : str or timedelta, optional
        How long a key of lazy or eager windows of time lives after its last tuple, such as ``"10 minutes"``;
        by default for ever. A key leaves the state when the watermark is this far past the key's newest pane,
        and none of its windows is open or waits. If the key returns later, its windows are the same as if the
        key had stayed. Cannot be combined with `budget`.
    on_silent : {"row"}, optional
        With ``"row"``, the output gets a row when a key leaves after `ttl`: the key, its last window and null
        aggregates. The output has the boolean column ``silent``, which is true in such rows.
    watermark_delay : str or timedelta, optional
        The allowed lateness of tuples relative to the newest tuple. The default is the delay of
        ``withWatermark`` on the column `time` of `df` or, without it, no delay.
    unit : {"s", "ms", "us", "ns"}, optional
        The unit of an integer time since 1970-01-01T00:00:00Z.
    buckets, state_location, retain_versions, name
        As in `update_queue`.
    nulls : {"error", "drop"}
        The treatment of rows without a time: fail the query, or drop and count them.
    late_to : str or path, optional
        The location of a p-stream to which each dropped row is written exactly once. The columns are all
        columns of `df`, ``reason`` (``"late"`` or ``"the time is null"``), and ``watermark``, the watermark
        at which the row was late. With this option whole rows cross the shuffle. See
        ``docs/how-to/late-rows.md``.
    schema : StructType or str, optional
        The columns of `df`, or their DDL; see `penstock.update_queue`. If given, aggregates must be SQL, with
        types that Penstock can determine without Spark.

    Returns
    -------
    DataFrame
        For ``outputMode("append")``: the key's columns, ``window`` (a struct of ``start`` and ``end``; for
        windows of rows, the times of the first and the last row), and one column for each of `aggs`.

    Notes
    -----
    The watermark is the time of the newest tuple so far, including this micro-batch, less the delay, rounded
    down to the start of a pane (the greatest common divisor of size and slide). So Penstock emits a window in
    the micro-batch that closes the window, while Spark emits its own windows one micro-batch later. Spark
    sometimes still aggregates a tuple that is later than the delay allows. In append mode, Penstock
    aggregates such a tuple in those of its windows that are still open. If no window is open, and always in
    lazy and eager mode, the tuple is dropped and counted as late.

    Windows of rows are complete when the watermark has passed their last row. A tuple is late if it is older
    than the watermark was before the tuple's micro-batch. If there is no delay, the watermark passes all
    tuples as they arrive, so tuples are sorted only within a micro-batch.

    A session is emitted when the watermark passes its end; for sessions the watermark is not rounded. A tuple
    older than the watermark is used in two cases: it belongs to an open session, or it starts a session whose
    end the watermark has not passed.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong. Problems at run time (rows without a time, a restart with different settings,
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
    """Return the rows that windows read, the schema of their columns, and the partials.

    The columns are time, groups, values and `more`. With `whole`, the rows also have all columns of the
    input, at the end.
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
    """Return the columns of the input under unique names; see `whole_name`."""
    return [sf.col(quote(name)).alias(whole_name(place)) for place, name in enumerate(df.columns)]


def _output(
    df: DataFrame, keys: tuple[str, ...], time: str, aggs: Mapping[str, str], *, declared: bool
) -> StructType:
    """Return the output columns, in the form that Spark's own windows give them."""
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
