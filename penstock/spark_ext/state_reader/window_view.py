"""The state of windows as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.checkpointing import PUnit
from penstock.operators.aggregates.decomposition import pane_ms
from penstock.operators.aggregates.moments import from_settings, upgrade_partials
from penstock.operators.aggregates.wide import WIDE
from penstock.operators.joins.spec import SIDES
from penstock.operators.key_blocks import KEY_BLOCK
from penstock.operators.scan.spec import Partial
from penstock.operators.scheduling.policy import Policy
from penstock.spark_ext.api.update_window import TIME
from penstock.spark_ext.border.types import spark_schema
from penstock.spark_ext.state_reader.state_view import (
    NEVER,
    Ours,
    Stored,
    displayed_schema,
    numbers,
    one_of_tables,
)
from penstock.spark_ext.worker.count_windows import FIRST_TIME, LAST_TIME
from penstock.spark_ext.worker.time_windows import DELETES, MARK, SESSION
from penstock.spark_ext.worker.window_plan import value_names
from penstock.windows.append.pane_partials import empty
from penstock.windows.append.panes import Panes
from penstock.windows.layout import ENTRY_PANE, DeletingLayout, RowLayout, SessionLayout, WindowLayout
from penstock.windows.panes import new_panes
from penstock.windows.shared_watermark import SeveralPanes
from penstock.windows.spec import WindowSpec
from penstock.windows.update.results import WindowMode
from penstock.windows.update.transitions import FREE, READY
from penstock.windows.update.windows import UpdateWindows

__all__ = ["SidesView", "WindowView", "sides_view", "window_view"]

_PANES, _ROWS, _COUNTS, _KEYS, _SETTLED = "panes", "rows", "counts", "keys", "settled"
_BLOCKS = {_PANES: "entries", _ROWS: "waiting", _COUNTS: "numbered", _KEYS: KEY_BLOCK, _SETTLED: "rows"}
_BOUNDS = {
    FIRST_TIME: Partial("min", ENTRY_PANE, FIRST_TIME),
    LAST_TIME: Partial("max", ENTRY_PANE, LAST_TIME),
}


_OWN = _BOUNDS | {MARK.name: MARK}
"""The partials of Penstock's own columns."""


@dataclass(frozen=True)
class _Places:
    """The meaning of a pane's number: a time, or the number of a row of its group.

    Parameters
    ----------
    step : int
        The length of a pane, in microseconds or rows.
    kind : DataType
        The type of the column.
    """

    step: int
    kind: DataType

    @property
    def column(self) -> str:
        """The name of the column for the start of a pane."""
        return "pane_row" if isinstance(self.kind, LongType) else "pane_start"

    def to_starts(self, panes: npt.NDArray[np.int64]) -> pa.Array[Any]:
        """Return the starts of panes; null for `NEVER`."""
        there = panes != NEVER
        begins = pa.array(np.where(there, panes, 0) * self.step, mask=~there)
        if isinstance(self.kind, LongType):
            return begins
        return begins.view(pa.timestamp("us", "UTC" if isinstance(self.kind, TimestampType) else None))


@dataclass(frozen=True)
class WindowView:
    """One row for each entry, row or group that windows hold; a `StateView`.

    Parameters
    ----------
    layout : WindowLayout
        The layout of the windows.
    mode, policy, weighted
        See `UpdateWindows`. `weighted`: whether there are weights.
    places : _Places
        The meaning of panes' numbers.
    table : str
        The table to show.
    schema : StructType
        The columns.
    """

    layout: WindowLayout
    mode: WindowMode
    policy: Policy
    weighted: bool
    places: _Places
    table: str
    schema: StructType

    def new_state(self) -> Panes | UpdateWindows:
        """See `StateView.new_state`."""
        if self.mode is WindowMode.APPEND:
            return new_panes(self.layout)
        # The stored state includes the shares of keys, so the weights themselves are not needed.
        return UpdateWindows(self.layout, self.mode, self.policy, "" if self.weighted else None)

    def rows(self, state: Panes | UpdateWindows, unit: PUnit) -> list[pa.Array[Any]] | None:
        """See `StateView.rows`."""
        block = unit.blocks.get(_BLOCKS[self.table])
        if block is None:
            return None
        if self.table == _PANES:
            return _partial_columns(block, self.layout, self.places)
        if not isinstance(state, UpdateWindows) or self.table in (_ROWS, _COUNTS):
            return list(block.columns)
        key_rows = unit.blocks[KEY_BLOCK]
        ids = key_rows.column("key").to_numpy()
        if self.table == _KEYS:
            return [*state.groups_of(ids), *self._key_columns(key_rows)]
        owner, pane, _, *values = block.columns
        return [*state.groups_of(ids[owner.to_numpy()]), self.places.to_starts(pane.to_numpy()), *values]

    def _key_columns(self, key_rows: pa.RecordBatch) -> list[pa.Array[Any]]:
        """Return the stored columns of groups in a window queue, under the names of `_key_row_columns`."""
        slide = self.layout.spec.slide
        of = {name: key_rows.column(name).to_numpy() for name in key_rows.schema.names}
        waits, busy = of["candidate"] != NEVER, of["service"] != FREE

        def starts(name: str, there: npt.NDArray[np.bool_]) -> pa.Array[Any]:
            return self.places.to_starts(np.where(there, np.where(there, of[name], 0) * slide, NEVER))

        under = np.where(of["service"] == READY, "ready", "idle")
        columns = [
            self.places.to_starts(of["newest"]),
            pa.array(waits),
            starts("candidate", waits),
            pa.array(of["rank"], mask=~waits),
            numbers(of["since_us"]),
            pa.array(under, mask=~busy),
            starts("committed", busy),
            numbers(of["pending_us"]),
        ]
        if self.policy.uses_rates:
            columns += [numbers(of["seen_us"]), numbers(of["interval_us"], 0)]
        return columns


@dataclass(frozen=True)
class SidesView:
    """One row for each entry that the windows of one side of a join hold; a `StateView`.

    Parameters
    ----------
    layouts : tuple of WindowLayout
        The layout of each side's windows.
    side : int
        The side to show.
    places : _Places
        The meaning of panes' numbers.
    schema : StructType
        The columns.
    """

    layouts: tuple[WindowLayout, ...]
    side: int
    places: _Places
    schema: StructType

    def new_state(self) -> SeveralPanes:
        """See `StateView.new_state`."""
        return SeveralPanes(self.layouts)

    def rows(self, state: SeveralPanes, unit: PUnit) -> list[pa.Array[Any]] | None:
        """See `StateView.rows`."""
        if unit.meta["side"] != self.side:
            return None
        return _partial_columns(unit.blocks["entries"], self.layouts[self.side], self.places)


def window_view(stored: Stored, table: str | None) -> WindowView:
    """Return the view of windows.

    Raises
    ------
    InvalidUsageError
        If the windows have no such table, or nothing is stored yet.
    """
    settings = stored.specification
    mode, policy = WindowMode(settings["mode"]), Policy(settings.get("policy", Policy.IN_PLACE))
    counted = isinstance(settings["window"][0], str) and not _is_session(settings)
    waits = counted or "deletes" in settings
    tables = [_PANES] if mode is WindowMode.APPEND else [_KEYS, _SETTLED, _PANES]
    tables += [_ROWS, _COUNTS] if counted else [_ROWS] if waits else []
    chosen = one_of_tables(tables, table, of=f"windows of {mode} mode")
    blocks = stored.unit.blocks
    layout = _layout(settings, blocks["entries"].schema, blocks["waiting"].schema if waits else None)
    places = _places(settings, layout)
    groups, pane_columns = spark_schema(layout.groups), _pane_columns(layout, places)
    columns: list[StructField | Ours] = pane_columns
    if chosen == _KEYS:
        columns = [*groups, *_key_row_columns(places, policy)]
    elif chosen == _COUNTS:
        columns = [*groups, Ours("numbered", LongType())]
    elif chosen == _ROWS and isinstance(layout, RowLayout | DeletingLayout):
        values = spark_schema(pa.schema(list(layout.arriving)[len(groups) + 1 :]))
        texts = {name: text for text, name in value_names(_partials(settings)).items()}
        texts[DELETES] = "deletes"
        made = [Ours(texts[value.name], value.dataType) for value in values]
        columns = [*groups, Ours("time", _time_type(settings) or LongType()), *made]
    return WindowView(
        layout, mode, policy, settings.get("weight") is not None, places, chosen, displayed_schema(columns)
    )


def sides_view(stored: Stored, table: str | None) -> SidesView:
    """Return the view of the windows of one side of a join.

    Raises
    ------
    InvalidUsageError
        If no side is chosen, or nothing is stored yet.
    """
    side = SIDES.index(one_of_tables(SIDES, table, of="a join of windows"))
    sides, blocks = stored.specification["sides"], stored.unit.blocks
    layouts = tuple(
        _layout(settings, blocks[f"entries_{number}"].schema, None) for number, settings in enumerate(sides)
    )
    places = _places(sides[side], layouts[side])
    return SidesView(layouts, side, places, displayed_schema(_pane_columns(layouts[side], places)))


def _partial_columns(block: pa.RecordBatch, layout: WindowLayout, places: _Places) -> list[pa.Array[Any]]:
    width = len(layout.groups)
    groups, panes, values = block.columns[:width], block.column(width), block.columns[width + 1 :]
    return [*groups, places.to_starts(panes.to_numpy()), *values]


def _pane_columns(layout: WindowLayout, places: _Places) -> list[StructField | Ours]:
    # A bucket has sums of two words only if a sum exceeds 64 bits; this column must fit all buckets.
    sums = {partial.name for partial in layout.partials if partial.kind == "sum"}
    values = [
        field.with_type(WIDE) if field.name in sums and field.type == pa.int64() else field
        for field in layout.values
    ]
    return [*spark_schema(layout.groups), Ours(places.column, places.kind), *spark_schema(pa.schema(values))]


def _key_row_columns(places: _Places, policy: Policy) -> list[Ours]:
    rows = isinstance(places.kind, LongType)
    columns = [
        Ours(f"newest_{places.column}", places.kind),
        Ours("waiting", BooleanType()),
        Ours("waiting_row" if rows else "waiting_start", places.kind),
        Ours("rank", LongType()),
        Ours("waiting_since_us", LongType()),
        Ours("service", StringType()),
        Ours("committed_row" if rows else "committed_start", places.kind),
        Ours("pending_since_us", LongType()),
    ]
    if policy.uses_rates:
        columns += [Ours("seen_us", LongType()), Ours("interval_us", DoubleType())]
    return columns


def _partials(settings: Mapping[str, Any]) -> list[Partial]:
    return [from_settings(aggregate) for aggregate in settings["aggregates"]]


def _layout(settings: Mapping[str, Any], pane_schema: pa.Schema, arriving: pa.Schema | None) -> WindowLayout:
    """Return the parts of a layout that a restore needs, from settings and stored columns."""
    named = {partial.name: partial for partial in _partials(settings)}
    pane_schema = upgrade_partials(empty(pane_schema), named.values()).schema
    at = pane_schema.get_field_index(ENTRY_PANE)
    groups, values = pa.schema(list(pane_schema)[:at]), list(pane_schema)[at + 1 :]
    # Each bucket's stored columns show whether their sums have two words.
    types = tuple(
        pa.int64() if field.type == WIDE and named[field.name].kind == "sum" else field.type
        for field in values
    )
    # Only layouts of sessions need the times of first and last values, because only sessions combine entries
    # in a restore.
    if _is_session(settings):
        return _session_layout(settings, groups, pa.schema(values), types)
    size, slide, _ = settings["window"]
    if arriving is None:
        pane = pane_ms(size, slide)
        partials = tuple(named[field.name] for field in values)
        return WindowLayout(
            WindowSpec(size // pane, slide // pane), groups, partials, types, {}, partials[0].name
        )
    names = value_names(named.values())
    partials = tuple(
        _OWN[field.name] if field.name in _OWN else _rename(named[field.name], names) for field in values
    )
    if "deletes" in settings:
        pane, steps = pane_ms(size, slide), settings["deletes"]
        spec = WindowSpec(size // pane, slide // pane)
        return DeletingLayout(spec, groups, partials, types, {}, partials[0].name, arriving, steps, MARK.name)
    size, slide = (int(text.split()[0]) for text in (size, slide))
    pane = gcd(size, slide)
    spec = WindowSpec(size // pane, slide // pane)
    return RowLayout(spec, groups, partials, types, {}, partials[0].name, pane, arriving, LAST_TIME)


def _is_session(settings: Mapping[str, Any]) -> bool:
    return bool(settings["window"][0] == SESSION)


def _session_layout(
    settings: Mapping[str, Any], groups: pa.Schema, values: pa.Schema, types: tuple[pa.DataType, ...]
) -> SessionLayout:
    """Return the layout of sessions; a restore combines their entries."""
    named = {partial.name: partial for partial in _partials(settings)} | _BOUNDS
    partials = tuple(named[name] for name in values.names)
    rows = next(one.name for one in partials if (one.kind, one.expression) == ("count", "*"))
    ends = {"first": FIRST_TIME, "last": LAST_TIME}
    times = {one.name: ends[one.kind] for one in partials if one.kind in ends}
    gap = settings["window"][3]
    return SessionLayout(
        WindowSpec(1, 1), groups, partials, types, times, rows, gap, bounds=(FIRST_TIME, LAST_TIME)
    )


def _rename(partial: Partial, names: Mapping[str, str]) -> Partial:
    return replace(partial, expression=names.get(partial.expression, partial.expression))


def _places(settings: Mapping[str, Any], layout: WindowLayout) -> _Places:
    if isinstance(layout, RowLayout):
        return _Places(layout.pane_rows, LongType())
    if isinstance(layout, SessionLayout):
        return _Places(1000 * settings["window"][4], _time_type(settings) or TimestampType())
    size, slide, _ = settings["window"]
    return _Places(1000 * pane_ms(size, slide), _time_type(settings) or TimestampType())


def _time_type(settings: Mapping[str, Any]) -> DataType | None:
    """Return the type of the column of the time, if it is one of Spark's timestamps."""
    # The settings of windows of rows name the column that holds the converted time.
    for name in (settings["time"], TIME):
        for kind in (TimestampType(), TimestampNTZType()):
            if f"{name} {kind.simpleString()}" in settings["schema"]:
                return kind
    return None
