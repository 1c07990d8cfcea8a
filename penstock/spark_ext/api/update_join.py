"""`update_join`: the newest match of each key of two update streams."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock._clock import Clock
from penstock.checkpointing.files import absolute_location
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.operators.joins.join import Matched, UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.queues.silence import with_silent_rows
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.deletes import DELETED_COLUMN, delete_conditions
from penstock.operators.update_stream.dropped import order_ties
from penstock.operators.update_stream.lives import Ttl, life_steps
from penstock.operators.update_stream.operator_options import JoinOptions
from penstock.operators.update_stream.steps import steps_of
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.api.update_queue import add_delete_column
from penstock.spark_ext.border.collations import refuse_collations
from penstock.spark_ext.border.connection import check_own_readers
from penstock.spark_ext.border.packing import DROPPED, Packer, newest_of, side_of
from penstock.spark_ext.border.parcels import PARCELS
from penstock.spark_ext.declared import Schema, declare_sides
from penstock.spark_ext.sources.task_rows import LateStream, dropped_columns
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare
from penstock.spark_ext.worker.stateful import (
    Stateful,
    arrow_schema,
    check_streaming,
    columns_of,
    key_columns,
    with_mark,
    with_safe_names,
    with_silent,
)
from penstock.sql.evaluate import needs_ansi
from penstock.sql.expression import Expression
from penstock.state_store.bucket_store import RETAIN_VERSIONS

__all__ = ["JoinOperator", "PlannedJoin", "plan_join", "run_join", "update_join"]

_LEFT, _RIGHT = "left", "right"


@check_keywords
def update_join(
    left: DataFrame,
    right: DataFrame,
    key: str | Iterable[str],
    time: str,
    within: str | timedelta,
    condition: str | None = None,
    *,
    watermark_delay: str | timedelta | None = None,
    unit: str | None = None,
    buckets: int | None = None,
    nulls: str = "error",
    delete_when: str | Mapping[str, str] | None = None,
    ttl: Ttl | None = None,
    on_silent: str | None = None,
    state_location: str | os.PathLike[str] | None = None,
    retain_versions: int = RETAIN_VERSIONS,
    late_to: str | os.PathLike[str] | None = None,
    schema: Schema | Mapping[str, Schema] | None = None,
    name: str = "update_join",
) -> DataFrame:
    """Join two update streams by key within an interval of time; emit the newest match of each key.

    Two tuples of equal key match if their times differ by at most `within`, both ends included, and the
    condition is true. After each micro-batch the newest match of each key is delivered, if it is newer than
    the last match delivered for the key. Older matches are never delivered (UpStream §3.2). A match's time is
    the greater of its tuples' times. If two matches have the same time, the match with the newer left tuple
    is newer. If the left tuples are equally new, too, the match with the newer right tuple is newer.

    Parameters
    ----------
    left, right : DataFrame
        Streaming DataFrames. Both have `key` and `time`, with the same types, and they share no other column
        name.
    key : str or iterable of str
        The update key's columns.
    time : str
        The column that orders the updates of a key: a timestamp, a date, or an integer with a `unit`.
    within : str or timedelta
        The largest difference between the times, such as ``"10 s"``.
    condition : str, optional
        A further condition for a match: SQL over the columns of the result.
    watermark_delay : str or timedelta, optional
        The allowed lateness. A bucket compares each tuple with the newest tuple that it got, from either
        side, in earlier micro-batches. If the tuple is older by more than this delay, it is dropped and
        counted. The default is `within`. If one side may run ahead of the other, the delay should be at least
        as long as the lead.
    unit : str, optional
        The unit of an integer time: ``s``, ``ms``, ``us`` or ``ns``.
    buckets, state_location, retain_versions, name
        As for `penstock.update_queue`.
    nulls : {"error", "drop"}
        The treatment of rows with a null key or time: fail the query, or drop and count them.
    delete_when : str or mapping, optional
        An SQL condition for the rows that delete their key on their side, such as ``"op = 'd'"``, for both
        sides; or a mapping of ``left`` and ``right`` to conditions. If a tuple of a delivered match is
        deleted, the match is retracted by a row with the key, a time and null in all other columns. The
        boolean column ``deleted`` is true in such rows. See "Deletes" in
        ``docs/concepts/joins-and-unions.md``.
    ttl : str, timedelta or int, optional
        How long a key stays in the state after its last tuple on either side; by default until no future
        match needs it. An integer is in the unit of the column `time`. See "Keys that go silent" in
        ``docs/concepts/joins-and-unions.md``.
    on_silent : {"row"}, optional
        As for `penstock.update_queue`.
    late_to : str or path, optional
        The location of a p-stream to which each dropped row is written exactly once. The columns are the
        columns of both sides (in a row of one side, the columns of the other side are null), ``reason``
        (``"late"``, ``"duplicate"``, or why the row is refused), ``watermark`` (the first time that would not
        have been late), and ``side`` (``"left"`` or ``"right"``). See ``docs/how-to/late-rows.md``.
    schema : StructType or str, or mapping, optional
        The columns of both sides, or their DDL; or ``{"left": ..., "right": ...}``. See
        `penstock.update_queue`.

    Returns
    -------
    DataFrame
        A streaming DataFrame with the columns of `left`, where the time is the greater of both times, and the
        other columns of `right`.

    Raises
    ------
    InvalidUsageError
        If an argument is wrong, the sides do not fit together, they share a column besides the key and the
        time, or Penstock cannot evaluate the condition.

    Examples
    --------
    >>> spread = penstock.update_join(
    ...     bids, asks, key="symbol", time="time", within="1 s", condition="ask >= bid",
    ...     state_location="/var/lib/penstock",
    ... )  # doctest: +SKIP
    """
    options = JoinOptions(
        watermark_delay=watermark_delay, buckets=buckets, nulls=nulls, state_location=state_location,
        retain_versions=retain_versions, delete_when=delete_when, ttl=ttl,
        on_silent=on_silent, late_to=late_to,
    )  # fmt: skip
    left, right, declared = declare_sides(left, right, schema)
    return run_join(left, right, key, time, within, condition, unit, options, name, declared=declared)


def run_join(
    left: DataFrame,
    right: DataFrame,
    key: str | Iterable[str],
    time: str,
    within: str | timedelta,
    condition: str | None,
    unit: str | None,
    options: JoinOptions,
    name: str,
    marked: tuple[bool, bool] = (False, False),
    *,
    declared: bool = False,
) -> DataFrame:
    """Return the output of a join; `marked` are the sides that already have the column of deletes."""
    if not declared:
        check_streaming(left)
    place = Stateful.plan(left.sparkSession, name, options, declared=declared)
    if not declared and not right.isStreaming:
        raise InvalidUsageError(
            "the right side of a join of update streams is not streaming",
            hint="use spark.readStream; a static table is joined with DataFrame.join",
        )
    check_own_readers(left, right)
    large = left.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    conditions = delete_conditions(options.delete_when)
    left, right = (
        df if condition is None else add_delete_column(df, condition, declared=declared)
        for df, condition in zip((left, right), conditions, strict=True)
    )
    marks = [
        DELETED_COLUMN if done or condition is not None else None
        for done, condition in zip(marked, conditions, strict=True)
    ]
    planned = plan_join(
        (left.schema, right.schema), key, time, within, condition, unit, options, place, marks, large=large
    )
    _check_alike(planned.operator.joined, left, right)
    packed = [
        with_safe_names(df, declared=declared).mapInArrow(packer, PARCELS)
        for df, packer in zip((left, right), planned.packers, strict=True)
    ]
    parcels = packed[0].union(packed[1])
    return place.run(parcels, planned.operator, planned.output, planned.rows, waits=False)


@dataclass(frozen=True)
class PlannedJoin:
    """A join of update streams that is planned for two schemas.

    Parameters
    ----------
    packers : pair of Packer
        The map side of each input.
    operator : JoinOperator
        The operator of the buckets.
    output : StructType
        The output's columns.
    rows : pyarrow.Schema
        The output's Arrow schema.
    """

    packers: tuple[Packer, Packer]
    operator: JoinOperator
    output: StructType
    rows: pa.Schema


def plan_join(
    schemas: tuple[StructType, StructType],
    key: str | Iterable[str],
    time: str,
    within: str | timedelta,
    condition: str | None,
    unit: str | None,
    options: JoinOptions,
    place: Stateful,
    marks: Sequence[str | None],
    *,
    large: bool = False,
) -> PlannedJoin:
    """Plan a join of update streams; needs no Spark session.

    Parameters
    ----------
    schemas : pair of StructType
        The columns of the inputs.
    key, time, within, condition, unit, options
        See `update_join`.
    place : Stateful
        The operator's name, buckets and state location.
    marks : sequence of str or None
        For each input, the column that marks its deletes.
    large : bool
        Whether texts and binary values have offsets of 64 bits.
    """
    left, right = schemas
    columns = key_columns(key, left, right)
    sides = [
        UpdateStream(arrow_schema(schema, large=large), columns, time, deleted=mark)
        for schema, mark in zip(schemas, marks, strict=True)
    ]
    kind = sides[0].schema.field(time).type
    steps, delay = steps_of("within", within, kind, unit), options.watermark_delay
    joined = JoinedStream(
        sides[0],
        sides[1],
        steps,
        steps if delay is None else steps_of("watermark_delay", delay, kind, unit),
        None if condition is None else Expression.parse(condition),
        ttl=life_steps("ttl", options.ttl, kind, unit),
        tells_silent=options.on_silent is not None,
    )
    output = _output(left, right, joined)
    late = None
    if options.late_to is not None:
        both = [*left, *(one for one in right if one.name not in left.names)]
        dropped = dropped_columns(StructType(both), left[time].dataType, sides=True)
        late = LateStream.open(absolute_location(options.late_to), place.name, dropped, place.state_location)
    form = None if late is None else late.form
    first, second = (
        Packer(
            stream, place.buckets, options.nulls, False, place.name, side,
            tells_newest=options.ttl is not None, dropped=form,
        )
        for stream, side in zip(sides, (_LEFT, _RIGHT), strict=True)
    )  # fmt: skip
    rows = joined.results
    if options.on_silent is not None:
        output = with_silent(output, (*columns, time))
        rows = arrow_schema(output, large=large)
    operator = JoinOperator(
        joined, columns_of(left), columns_of(right), rows if options.on_silent is not None else None, late
    )
    return PlannedJoin((first, second), operator, output, rows)


def _output(left: StructType, right: StructType, joined: JoinedStream) -> StructType:
    known = {*joined.left.key, joined.left.time}
    own = [one for one in left if one.name != joined.left.deleted]
    output = StructType(
        [
            *own,
            *(one for one in right if one.name not in known and one.name != joined.right.deleted),
        ]
    )
    return with_mark(output, known, DELETED_COLUMN) if joined.has_deletes else output


def _check_alike(joined: JoinedStream, left: DataFrame, right: DataFrame) -> None:
    """Refuse a condition that Spark would evaluate differently in this session."""
    if joined.condition is None:
        return
    for df in (left, right):
        refuse_collations(df.schema, joined.condition.columns)
    ansi = left.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"
    if not ansi and needs_ansi(joined.condition, joined.schema):
        raise InvalidUsageError(
            "the condition of a join needs ANSI mode",
            hint="set spark.sql.ansi.enabled to true",
            expression=joined.condition.text,
        )


@dataclass(frozen=True)
class JoinOperator:
    """A join of update streams as an `Operator`.

    Parameters
    ----------
    joined : JoinedStream
        The joined stream.
    left, right : tuple of str
        Names and Spark types of the inputs' columns, for the check at a restart.
    silent : pyarrow.Schema, optional
        The output's columns, if the output has rows of keys that went silent.
    late : LateStream, optional
        Writes the dropped rows into a p-stream.
    """

    joined: JoinedStream
    left: tuple[str, ...]
    right: tuple[str, ...]
    silent: pa.Schema | None = None
    late: LateStream | None = None

    def specification(self) -> dict[str, Any]:
        """Return the fixed settings; see `Operator.specification`."""
        condition = self.joined.condition
        return {
            "key": list(self.joined.left.key),
            "time": self.joined.left.time,
            "within": self.joined.within,
            "condition": None if condition is None else condition.text,
            "left": list(self.left),
            "right": list(self.right),
            "deletes": True if self.joined.has_deletes else None,
            "ttl": True if self.joined.ttl is not None else None,
            "on_silent": "row" if self.joined.tells_silent else None,
        }

    @property
    def may_add(self) -> Mapping[str, Collection[str]]:
        """See `GrowingOperator.may_add`."""
        found = {}
        for side, texts in ((_LEFT, self.left), (_RIGHT, self.right)):
            stream = self.joined.left if side == _LEFT else self.joined.right
            # Without descriptions of columns, no column may be added.
            named = zip(texts, stream.schema.names, strict=bool(texts))
            found[side] = [text for text, name in named if name in stream.may_add]
        return found

    @property
    def follows_clock(self) -> bool:
        """See `Operator.follows_clock`."""
        return False

    def new_state(self) -> UpdateJoin:
        """Return an empty join."""
        return UpdateJoin(self.joined)

    def run(
        self, state: UpdateJoin, parcels: Iterable[Parcel], task_share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Add the tuples and match them; see `Operator.run`."""
        begin = clock()
        dropped = 0
        newest: int | None = None
        arrivals: dict[str, list[Arrivals]] = {_LEFT: [], _RIGHT: []}
        streams = {_LEFT: self.joined.left, _RIGHT: self.joined.right}
        unusable: list[pa.RecordBatch] = []
        for parcel in parcels:
            dropped += parcel.dropped
            if parcel.batch is not None:
                side = side_of(parcel.batch)
                if side == DROPPED:
                    unusable.append(parcel.batch)
                    continue
                if (told := newest_of(parcel.batch)) is not None:
                    newest = told if newest is None else max(newest, told)
                    continue
                arrivals[side].append(Arrivals.from_batch(parcel.batch, streams[side].schema))
        matched = self._join(state, arrivals, newest, unusable, task_share)
        emitted, expired = matched.rows.num_rows, matched.expired
        batches = [matched.rows] if emitted else []
        if self.silent is not None:
            batches = with_silent_rows(batches, expired, self.silent, self.joined.left)
        metrics = BatchMetrics(
            rows_in=matched.rows_in + dropped,
            late=matched.late,
            duplicates=matched.duplicates,
            dropped=dropped,
            emitted=emitted,
            rows_out=sum(rows.num_rows for rows in batches),
            expired=len(expired),
            keys=state.keys,
            held=state.held,
            freed=matched.freed,
            duration_ms={"join": (clock() - begin) / 1000},
        )
        return batches, metrics

    def _join(
        self,
        state: UpdateJoin,
        arrivals: Mapping[str, list[Arrivals]],
        newest: int | None,
        unusable: list[pa.RecordBatch],
        task_share: TaskShare,
    ) -> Matched:
        """Join the arrivals; write the dropped tuples and the unusable rows."""
        sides = {side: Arrivals.concat(parts) for side, parts in arrivals.items() if parts}
        state.dropped = None if self.late is None else ([], [])
        if self.late is not None:
            streams = {_LEFT: self.joined.left, _RIGHT: self.joined.right}
            sides = {side: order_ties(streams[side], some) for side, some in sides.items()}
        matched = state.join(sides.get(_LEFT), sides.get(_RIGHT), newest)
        if self.late is not None and state.dropped is not None:
            rows = list(unusable)
            for side, dropped in zip((_LEFT, _RIGHT), state.dropped, strict=True):
                rows += self.late.form.fill_all(dropped, side)
            self.late.write(rows, task_share)
        return matched
