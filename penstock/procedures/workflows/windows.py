"""Windows of a procedure: two tables that only this procedure sees (S-Store §3.2.2).

The table ``<name>_rows`` holds the rows; its key is the place of a row. The single row of ``<name>_facts``
records which rows are active and which are staged. Rows get consecutive numbers. The facts are the row
numbers `first`, `active` and `next`::

    first ........ active ........ next
      active rows        staged rows

Each insert runs a procedure that this module generates, in the same Python that users may write. The
procedure stages the row. When the staged rows fill a slide, the procedure removes the oldest rows, makes the
staged rows active, and calls the window's triggers. So windows are undone, stored and recovered like tables.

A window of rows keeps row number n at place n % (size + slide), so that it deletes nothing. A window of time
keeps row number n at place n.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.ddl import parse_schema, schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures import language
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.schema import Column, Kind, RelationSpec, TableSpec, columns_of
from penstock.units import parse_duration_us

__all__ = ["PLACE", "WindowSpec"]

PLACE = "_place"
"""The column with the position of a row in its window's ring."""

_ROWS = """
def {name}_insert(_e, {tables}):
    if 0 not in {facts}:
        {facts}.insert(_id=0, first=0, active=0, next=0)
    _facts = {facts}[0]
    _at = _facts.next % {places}
    _row = {rows}.get(_at)
    if _row is None:
        {rows}.insert({place}=_at, {values})
    else:
        {assignments}
    _facts.next += 1
    if _facts.next - _facts.active < {slide}:
        return False
    _facts.active = _facts.next
    if _facts.active - _facts.first > {size}:
        _facts.first = _facts.active - {size}
    {triggers}
    return True
"""
_TIME = """
def {name}_insert(_e, {tables}):
    if 0 not in {facts}:
        {facts}.insert(_id=0, first=0, active=0, next=0, boundary=_e.{time} // {slide} * {slide})
    _facts = {facts}[0]
    if _e.{time} < _facts.boundary:
        abort("late row: {name}")
    _slid = False
    for _step in range({steps}):
        if _e.{time} - _facts.boundary < {slide}:
            break
        if _facts.first == _facts.next:
            _facts.boundary = _e.{time} // {slide} * {slide}
            break
        _facts.boundary += {slide}
        _facts.active = _facts.next
        for _at in range(_facts.first, _facts.active):
            if {rows}[_at].{time} >= _facts.boundary - {size}:
                break
            del {rows}[_at]
            _facts.first += 1
        {triggers}
        _slid = True
    {rows}.insert({place}=_facts.next, {values})
    _facts.next += 1
    return _slid
"""


@dataclass(frozen=True)
class WindowSpec(RelationSpec):
    """The declaration of a window.

    Parameters
    ----------
    name, columns
        See `RelationSpec`.
    size, slide : int
        Numbers of rows; in a window of time, numbers of units of the time column.
    time : str, optional
        The column of time; None for a window of rows.
    """

    size: int
    slide: int
    time: str | None

    @staticmethod
    def parse(
        name: str, ddl: str, size: int | str | timedelta, slide: int | str | timedelta, time: str | None
    ) -> WindowSpec:
        """Make a window from a user's declaration.

        Raises
        ------
        InvalidUsageError
            If a name, type, size or slide is unusable.
        """
        columns = columns_of(parse_schema(ddl), owner=name, lists=False)
        if PLACE in [column.name for column in columns] or not columns:
            raise InvalidUsageError(
                "a window needs columns, but none of this name", window=name, not_allowed=PLACE
            )
        if time is None:
            return WindowSpec(
                name, columns, _check_integer(name, size), _check_integer(name, slide), None
            )._check()
        by_name = {column.name: column for column in columns}
        if time not in by_name or by_name[time].kind is not Kind.INTEGER:
            raise InvalidUsageError(
                "the time of a window is not a column of integers, dates or timestamps",
                window=name,
                time=time,
            )
        columns = tuple(
            replace(column, nullable=False) if column.name == time else column for column in columns
        )
        is_timestamp = pa.types.is_timestamp(by_name[time].type)
        lengths = [
            parse_duration_us(length) if is_timestamp else _check_integer(name, length)  # type: ignore[arg-type]
            for length in (size, slide)
        ]
        return WindowSpec(name, columns, lengths[0], lengths[1], time)._check()

    def _check(self) -> WindowSpec:
        if not 0 < self.slide <= self.size:
            raise InvalidUsageError(
                "a window slides by at least one and at most its size",
                window=self.name,
                size=self.size,
                slide=self.slide,
            )
        if self.time is not None and self.size % self.slide:
            raise InvalidUsageError(
                "the size of a window of time is not a multiple of its slide",
                window=self.name,
                size=self.size,
                slide=self.slide,
            )
        return self

    @property
    def rows(self) -> TableSpec:
        """The table of the window's rows."""
        place = Column(PLACE, pa.int64(), Kind.INTEGER, nullable=False)
        return TableSpec(f"{self.name}_rows", (place, *self.columns), (PLACE,), None, window=self.name)

    @property
    def facts(self) -> TableSpec:
        """The table of the window's single row of facts."""
        columns = "_id bigint, first bigint NOT NULL, active bigint NOT NULL, next bigint NOT NULL"
        if self.time is not None:
            columns += ", boundary bigint NOT NULL"
        return replace(TableSpec.parse(f"{self.name}_facts", columns, "_id", None), window=self.name)

    @property
    def places(self) -> int | None:
        """The number of positions in the ring that stores a window of rows; None for a window of time."""
        return self.size + self.slide if self.time is None else None

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as JSON values for digests."""
        schema = pa.schema([pa.field(column.name, column.type, column.nullable) for column in self.columns])
        return {
            "name": self.name,
            "columns": schema_text(schema),
            "size": self.size,
            "slide": self.slide,
            "time": self.time,
        }

    def insertion(self, triggers: Sequence[ProcedureText]) -> ProcedureText:
        """Return the text of the procedure that inserts a row; the procedure's event is the row.

        Parameters
        ----------
        triggers : sequence of ProcedureText
            The procedures that run when the window slides.
        """
        tables = dict.fromkeys([self.rows.name, self.facts.name])
        tables |= dict.fromkeys(name for trigger in triggers for name in trigger.tables)
        callees = {f"_trigger{number}": trigger for number, trigger in enumerate(triggers)}
        calls = [f"{name}({', '.join(['_e', *program.tables])})" for name, program in callees.items()]
        source = (_ROWS if self.time is None else _TIME).format(
            name=self.name,
            tables=", ".join(tables),
            rows=self.rows.name,
            facts=self.facts.name,
            places=self.places,
            place=PLACE,
            values=", ".join(f"{name}=_e.{name}" for name in self.names),
            assignments="; ".join(f"_row.{name} = _e.{name}" for name in self.names),
            size=self.size,
            slide=self.slide,
            time=self.time,
            steps=self.size // self.slide + 2,
            triggers="; ".join(calls) or "pass",
        )
        tree = ast.parse(textwrap.dedent(source)).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise TypeError(f"{self.name}: no function")
        names: dict[str, Any] = {
            "abort": language.abort,
            **{name: _Called(program) for name, program in callees.items()},
        }
        return ProcedureText(tree.name, tree, f"<window {self.name}>", 0, 0, names)


@dataclass(frozen=True)
class _Called:
    """A procedure that a generated text calls."""

    text: ProcedureText


def _check_integer(window: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidUsageError(
            "the size or slide of a window is not an integer",
            window=window,
            got=repr(value),
            hint='durations such as "60s" are for a timestamp: time="ts"',
        )
    return value
