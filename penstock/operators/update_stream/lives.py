"""Times to live of keys without updates: options, and rows for keys that went silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.steps import steps_of
from penstock.units import parse_duration_us

__all__ = [
    "SILENT_COLUMN",
    "Ttl",
    "check_lives",
    "check_windows",
    "describe_lives",
    "life_steps",
    "mark_rows",
    "silent_field",
    "silent_rows",
]

SILENT_COLUMN: Final = "silent"
"""The boolean column, never null, that is true in rows for keys that went silent."""

Ttl = int | str | timedelta
"""A time to live: a duration such as ``"10 minutes"``, or a number in the unit of an integer time."""

_ON_SILENT: Final = (None, "row")


class LifeOptions(Protocol):
    """The options of an operator whose keys may leave."""

    @property
    def ttl(self) -> Ttl | None:
        """The time to live of keys."""

    @property
    def on_silent(self) -> str | None:
        """``"row"`` if each key that goes silent gets a row."""


def check_lives(options: LifeOptions, delete_ttl: Ttl | None = None) -> None:
    """Check the options for times to live, as far as this is possible without column types.

    Raises
    ------
    InvalidUsageError
        If a time to live is not a positive duration or number, or an option has an unknown value.
    """
    for option, life in (("ttl", options.ttl), ("delete_ttl", delete_ttl)):
        if life is None:
            continue
        number = isinstance(life, int) and not isinstance(life, bool)
        if not (number or isinstance(life, str | timedelta)):
            raise InvalidUsageError("a time to live is not a duration", option=option, got=repr(life))
        if (life if isinstance(life, int) else parse_duration_us(life)) <= 0:
            raise InvalidUsageError("a time to live is not positive", option=option, got=str(life))
    if options.on_silent not in _ON_SILENT:
        raise InvalidUsageError(
            "an option has an unknown value", option="on_silent", got=options.on_silent, known=["row"]
        )
    if options.on_silent is not None and options.ttl is None:
        raise InvalidUsageError("on_silent needs ttl, the time after which a key is silent")


class WindowLives(LifeOptions, Protocol):
    """The options of windows whose keys may leave or be deleted."""

    @property
    def delete_when(self) -> str | None:
        """The condition for deletes."""

    @property
    def budget(self) -> int | str | None:
        """The budget."""

    @property
    def freshness(self) -> Mapping[str, Any] | None:
        """The freshness contract."""


def check_windows(options: WindowLives, kind: str | None) -> None:
    """Refuse deletes and times to live for windows that do not support them.

    Parameters
    ----------
    kind : str or None
        The name of the kind of windows, if they are not windows of time, such as ``"windows of rows"``.

    Raises
    ------
    InvalidUsageError
        If these windows do not support an option.
    """
    if options.ttl is not None and kind is not None:
        raise InvalidUsageError(
            f"the keys of {kind} do not leave",
            ttl=str(options.ttl),
            hint="the number of a row counts from the key's first row; use windows of time",
        )
    if options.ttl is not None and (options.budget is not None or options.freshness is not None):
        # If several windows are ready at once, a budget serves the windows with the least numbers, and a key
        # that returns has a number that depends on what a worker had loaded.
        raise InvalidUsageError(
            "windows with a budget have no ttl", hint="leave out budget, freshness or ttl"
        )
    if options.delete_when is not None and kind is not None:
        raise InvalidUsageError(
            f"{kind} have no deletes",
            hint="use windows of time, such as size='60 s', or filter the deletes out",
        )


def life_steps(option: str, life: Ttl | None, kind: pa.DataType, unit: str | None = None) -> int | None:
    """Convert a time to live to steps of the time column (`steps`); None means for ever.

    Raises
    ------
    InvalidUsageError
        If the time to live does not fit the column's type.
    """
    if life is None:
        return None
    if isinstance(life, int):
        if not pa.types.is_integer(kind):
            raise InvalidUsageError(
                "a number is the time to live of an integer time",
                option=option,
                got=life,
                type=kind,
                hint="write a duration, such as '10 minutes'",
            )
        return life
    if pa.types.is_integer(kind) and unit is None:
        raise InvalidUsageError(
            "a duration has no meaning for an integer time",
            option=option,
            got=str(life),
            hint=f"write {option}=600, a number of steps of the time",
        )
    return steps_of(option, life, kind, unit)


def describe_lives(options: LifeOptions, delete_ttl: Ttl | None = None) -> str:
    """Return the last part of an operator's description; empty if keys live for ever."""
    parts = [f", {name} {life}" for name, life in (("ttl", options.ttl), ("deletes", delete_ttl)) if life]
    return "".join(parts) + (", silent rows" if options.on_silent else "")


def silent_field(names: Sequence[str]) -> pa.Field[Any]:
    """Return the column that marks silent rows.

    Raises
    ------
    InvalidUsageError
        If the output has a column of this name.
    """
    if SILENT_COLUMN in (name.lower() for name in names):
        raise InvalidUsageError(
            "the stream has this column already", column=SILENT_COLUMN, hint="rename it before the operator"
        )
    return pa.field(SILENT_COLUMN, pa.bool_())


def mark_rows(rows: pa.RecordBatch, *, silent: bool = False) -> pa.RecordBatch:
    """Return rows with the column that marks rows about keys that went silent."""
    return rows.append_column(SILENT_COLUMN, pa.array(np.full(rows.num_rows, silent)))


def silent_rows(
    output: pa.Schema, key: Sequence[str], keys: Sequence[pa.Array[Any]], time: str, times: pa.Array[Any]
) -> pa.RecordBatch:
    """Return a row for each silent key, with the key, the time, the marks, and null in all other columns.

    Parameters
    ----------
    output : pyarrow.Schema
        The columns, including `SILENT_COLUMN`. If the output's time column differs in type from `times`, the
        time is null.
    key, keys
        Names and values of the key columns.
    time, times
        Name and values of the time column.
    """
    count = len(times)
    known = dict(zip(key, keys, strict=True)) | {SILENT_COLUMN: pa.array(np.ones(count, np.bool_))}
    if time in output.names and output.field(time).type == times.type:
        known[time] = times
    if DELETED_COLUMN in output.names and output.field(DELETED_COLUMN).type == pa.bool_():
        known.setdefault(DELETED_COLUMN, pa.array(np.zeros(count, np.bool_)))
    arrays = [
        known[name] if name in known else pa.nulls(count, output.field(name).type) for name in output.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=output)
