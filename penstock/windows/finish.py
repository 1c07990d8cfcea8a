"""Compute the aggregates of windows, and the selections and projections after them, outside of Spark.

A column is computed when it is first read. So for rows that a selection drops, only the columns that the
selection reads are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InternalError
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.update_stream.stream import Integers
from penstock.sql.evaluate import evaluate, type_of
from penstock.sql.expression import Expression
from penstock.windows.append.pane_partials import empty
from penstock.windows.layout import START, ClosedWindows

__all__ = ["Finish", "Span", "Step", "WindowRows"]

_Column: TypeAlias = "pa.ChunkedArray[Any]"

Step: TypeAlias = str | Mapping[str, str]
"""A selection's predicate, or a projection's expressions by their names; Spark SQL."""


@dataclass(frozen=True, slots=True)
class Span:
    """The bounds of windows that begin at their first row: sessions, and windows of rows.

    Parameters
    ----------
    first, last : str
        The partials with the times of the first and last row.
    steps : int
        The number of units of the time column in a second.
    gap_ms : int
        The distance from the last row to the end of the window.
    """

    first: str
    last: str
    steps: int
    gap_ms: int = 0

    def micros(self, times: Integers) -> Integers:
        """Return times in microseconds, rounded down."""
        micros = 1_000_000
        return times * (micros // self.steps) if self.steps <= micros else times // (self.steps // micros)


@dataclass(frozen=True)
class Finish:
    """Computes results of windows. The driver creates it; workers use it for every micro-batch.

    Parameters
    ----------
    windows : pyarrow.Schema
        Schema of windows: groups, `START` and partials, in the types that Spark would see.
    output : pyarrow.Schema
        The schema of windows with their aggregates, in Spark's types.
    window : str
        The column of `output` with the window's start and end, timestamps in microseconds.
    pane_ms, size_ms : int
        The lengths of a pane and of a window. `START` is a pane number.
    assembly : Assembly
        The aggregates.
    steps : tuple of Step
        The selections and projections downstream of the windows, in order.
    span : Span, optional
        The columns with the bounds of windows, for windows whose bounds do not follow from `START`.
    marks : mapping of str to str
        Boolean columns of `output` that mark rows without aggregates, each with its Spark SQL over `windows`.
    """

    windows: pa.Schema
    output: pa.Schema
    window: str
    pane_ms: int
    size_ms: int
    assembly: Assembly
    steps: tuple[Step, ...] = ()
    span: Span | None = None
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def partials(self) -> frozenset[str]:
        """The partials that this object reads; see `WindowEmitter.partials`."""
        needed = set(self._made_names)
        for step in reversed(self.steps):
            if isinstance(step, str):
                needed |= set(Expression.parse(step).columns)
            else:
                needed = {column for name in needed for column in Expression.parse(step[name]).columns}
        texts = [text for name, text in self.assembly.aggregates.items() if name in needed]
        texts += self.marks.values()
        read = {column for text in texts for column in Expression.parse(text).columns}
        return frozenset(part for name in read for part in (name, *self.assembly.parts(name)))

    @property
    def _made_names(self) -> Iterable[str]:
        return next((step for step in reversed(self.steps) if not isinstance(step, str)), self.output.names)

    def schemas(self) -> list[pa.Schema] | None:
        """Return the schema of windows and the schema after each projection.

        Return None if only Spark can run one of the steps.

        Aggregates must have exactly the types of `output`, so that no cast is needed.
        """
        types = {field.name: field.type for field in self.windows}
        partials = pa.schema(types | dict.fromkeys(self.assembly.derived_names, pa.float64()))
        for name, text in self.assembly.aggregates.items():
            if name not in self.output.names:
                continue  # the weight, which is not in the output
            if type_of(Expression.parse(text), partials) != self.output.field(name).type:
                return None
        schemas = [self.output]
        for step in self.steps:
            if isinstance(step, str):
                if type_of(Expression.parse(step), schemas[-1]) != pa.bool_():
                    return None
                continue
            types = {name: type_of(Expression.parse(text), schemas[-1]) for name, text in step.items()}
            if any(kind is None for kind in types.values()):
                return None
            schemas.append(pa.schema(list(types.items())))
        return schemas

    def __call__(self, closed: ClosedWindows) -> pa.RecordBatch:
        """Return the results of windows.

        Raises
        ------
        InvalidUsageError
            If an expression fails, as it would in Spark.
        """
        columns = self.rows(closed).table(self._made_names).combine_chunks()
        (batch,) = columns.to_batches() or [empty(columns.schema)]
        return batch

    def finish_emitted(self, windows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of windows that an operator has emitted, in the schema `windows`.

        Raises
        ------
        InvalidUsageError
            If an expression fails, as it would in Spark.
        """
        start = windows.schema.get_field_index(START)
        closed = ClosedWindows(
            windows.columns[:start],
            pa.array(np.arange(windows.num_rows)),
            windows.column(start),
            windows.select(list(range(start + 1, windows.num_columns))),
        )
        return self(closed)

    def collect(self, parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return results unchanged; see `WindowEmitter.collect`."""
        return parts

    def rows(self, closed: ClosedWindows) -> WindowRows:
        """Return the windows after all steps. A column is computed when it is first read."""
        rows = WindowRows(self, closed)
        for step in self.steps:
            if isinstance(step, str):
                for part in Expression.parse(step).conjuncts():
                    rows.keep(part)
            else:
                rows.project(step)
        return rows


class WindowRows:
    """The columns of some windows, before and after each projection, computed when they are read."""

    def __init__(self, finish: Finish, closed: ClosedWindows) -> None:
        self._finish = finish
        self._assembly = finish.assembly
        self._groups = dict(zip(finish.windows.names, closed.groups, strict=False))
        self._values = closed.values
        self._of, self._starts = closed.of, closed.starts
        self._kept: pa.Array[Any] | None = None
        self._projections: list[Mapping[str, str]] = []
        self._known: list[dict[str, _Column]] = [{}]

    def project(self, select: Mapping[str, str]) -> None:
        """Apply a projection."""
        self._projections.append(select)
        self._known.append({})

    def keep(self, predicate: Expression) -> None:
        """Drop rows for which a predicate is not true."""
        mask = evaluate(predicate, self.table(predicate.columns))
        rows = pc.indices_nonzero(mask.combine_chunks())
        self._kept = rows if self._kept is None else self._kept.take(rows)
        for columns in self._known:
            for name, column in columns.items():
                columns[name] = column.take(rows)

    @property
    def starts(self) -> Integers:
        """The number of each window's first pane."""
        return self._take(self._starts).to_numpy()

    def groups(self, names: Sequence[str]) -> tuple[list[pa.Array[Any]], Integers]:
        """Return columns after the last projection: one row per group if possible, otherwise one per window.

        Returns
        -------
        columns : list of pyarrow.Array
            The requested columns.
        of : int64 array
            The row of each window in these columns.
        """
        level, plain = len(self._projections), list(names)
        while level and all(Expression.parse(self._projections[level - 1][name]).is_column for name in plain):
            level -= 1
            plain = [Expression.parse(self._projections[level][name]).columns[0] for name in plain]
        if level or not set(plain) <= set(self._groups):
            return [self.array(name) for name in names], np.arange(len(self.starts))
        kinds = [self._finish.windows.field(name).type for name in plain]
        columns = [self._groups[name].cast(kind) for name, kind in zip(plain, kinds, strict=True)]
        return columns, self._take(self._of).to_numpy()

    def array(self, name: str) -> pa.Array[Any]:
        """Return a column after the last projection."""
        column = self._column(len(self._projections), name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def table(self, names: Iterable[str]) -> pa.Table:
        """Return columns after the last projection."""
        level = len(self._projections)
        return self._table({name: self._column(level, name) for name in names})

    def _table(self, columns: Mapping[str, _Column]) -> pa.Table:
        # A table needs a column to have rows.
        return pa.table(columns or {START: self._take(self._starts)})

    def _take(self, column: pa.Array[Any]) -> pa.Array[Any]:
        return column if self._kept is None else column.take(self._kept)

    def _column(self, level: int, name: str) -> _Column:
        columns = self._known[level]
        if name not in columns:
            column = self._compute(level, name)
            columns[name] = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
        return columns[name]

    def _compute(self, level: int, name: str) -> _Column | pa.Array[Any]:
        if level:
            expression = Expression.parse(self._projections[level - 1][name])
            read = {column: self._column(level - 1, column) for column in expression.columns}
            return evaluate(expression, self._table(read))
        if name == self._finish.window:
            return self._windows()
        marks = self._finish.marks
        text = self._assembly.aggregates.get(name) or marks.get(name)
        if text is None:
            return self._partial(name)
        expression = Expression.parse(text)
        value = evaluate(
            expression,
            self._table({column: pa.chunked_array([self._partial(column)]) for column in expression.columns}),
        )
        if not marks or name in marks:
            return value
        for mark in marks:
            value = pc.if_else(self._column(0, mark), None, value)
        return value

    def _partial(self, name: str) -> pa.Array[Any]:
        if name in self._groups:
            column = self._groups[name].take(self._take(self._of))
        elif name not in self._values.schema.names:  # emitted windows have means and deviations already
            parts = [self._take(self._values.column(part)) for part in self._assembly.parts(name)]
            return self._assembly.compute(name, parts)
        else:
            column = self._assembly.as_spark(name, self._take(self._values.column(name)))
        kind = self._finish.windows.field(name).type
        return column if column.type.equals(kind) else column.cast(kind)

    def _windows(self) -> pa.Array[Any]:
        kind = self._finish.output.field(self._finish.window).type
        if not pa.types.is_struct(kind):
            raise InternalError("a window is a struct of its start and end")
        span = self._finish.span
        if span is None:
            start = self.starts * (1000 * self._finish.pane_ms)
            end = start + 1000 * self._finish.size_ms
        else:
            start, end = (span.micros(self._partial(name).to_numpy()) for name in (span.first, span.last))
            end = end + 1000 * span.gap_ms
        both = [pa.array(times).view(kind.field(0).type) for times in (start, end)]
        return pa.StructArray.from_arrays(both, fields=list(kind))
