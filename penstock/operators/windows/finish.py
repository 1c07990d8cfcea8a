"""Final columns of windows outside of Spark: the aggregates, and the selections and projections that follow.

Columns are computed when something needs them. So what a selection leaves out costs the columns that the
selection reads, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import InternalError
from penstock.operators.assembly import Assembly
from penstock.operators.conform import conform
from penstock.operators.evaluate import evaluate, type_of
from penstock.operators.expression import Expression
from penstock.operators.windows.panes import START

__all__ = ["Finish", "Step"]

_Column: TypeAlias = "pa.ChunkedArray[Any]"

Step: TypeAlias = str | Mapping[str, str]
"""A selection's predicate, or a projection's expressions by their names; Spark SQL."""


@dataclass(frozen=True)
class Finish:
    """What makes results of windows' partials. Made on the driver, used in workers for every micro-batch.

    Parameters
    ----------
    windows : pyarrow.Schema
        Of windows: groups, `START` and partials, in the types that Spark would see.
    output : pyarrow.Schema
        Of windows with their aggregates, in Spark's types.
    window : str
        The column of `output` that has the window's start and end, timestamps in microseconds.
    pane_ms, size_ms : int
        The length of a pane, of which `START` is the number, and of a window.
    assembly : Assembly
        The aggregates.
    steps : tuple of Step
        What follows, in this order.
    """

    windows: pa.Schema
    output: pa.Schema
    window: str
    pane_ms: int
    size_ms: int
    assembly: Assembly
    steps: tuple[Step, ...] = ()

    def schemas(self) -> list[pa.Schema] | None:
        """Return the schemas of windows and after each projection; None if something is for Spark only.

        Aggregates have to come in the very types of `output`, so that nothing is to be cast.
        """
        rows = _Columns(self, self.windows.empty_table())
        partials = pa.schema([*self.windows, *((name, pa.float64()) for name in rows.divided)])
        for name, text in self.assembly.aggregates.items():
            if type_of(Expression.parse(text), partials) != self.output.field(name).type:
                return None
        for field in self.output:
            if field.name not in (*self.assembly.aggregates, self.window, *self.windows.names):
                return None
        made = [self.output]
        for step in self.steps:
            if isinstance(step, str):
                if type_of(Expression.parse(step), made[-1]) != pa.bool_():
                    return None
                continue
            types = {name: type_of(Expression.parse(text), made[-1]) for name, text in step.items()}
            if any(kind is None for kind in types.values()):
                return None
            made.append(pa.schema(list(types.items())))
        return made

    def __call__(self, windows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of windows.

        Raises
        ------
        InvalidUsageError
            If an expression fails, as it would in Spark.
        """
        if not windows.schema.equals(self.windows):
            windows = conform(windows, self.windows)
        rows = _Columns(self, pa.Table.from_batches([windows]))
        names: Iterable[str] = self.output.names
        for step in self.steps:
            if isinstance(step, str):
                for part in Expression.parse(step).conjuncts():
                    rows.keep(part)
            else:
                rows.project(step)
                names = step
        made = rows.table(names).combine_chunks()
        (batch,) = made.to_batches() or [_no_rows(made.schema)]
        return batch


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


class _Columns:
    """The columns of some windows, before and after each projection, as far as they are known."""

    def __init__(self, finish: Finish, base: pa.Table) -> None:
        self._finish = finish
        self._base = base
        self._projections: list[Mapping[str, str]] = []
        self._known: list[dict[str, _Column]] = [{}]
        self.divided = (*finish.assembly.means, *finish.assembly.deviations)

    def project(self, select: Mapping[str, str]) -> None:
        """Let later steps see other columns."""
        self._projections.append(select)
        self._known.append({})

    def keep(self, predicate: Expression) -> None:
        """Leave out rows for which a predicate is not true."""
        kept = evaluate(predicate, self.table(predicate.columns))
        self._base = self._base.filter(kept)
        for known in self._known:
            for name, column in known.items():
                known[name] = column.filter(kept)

    def table(self, names: Iterable[str]) -> pa.Table:
        """Return columns after the last projection."""
        columns = {name: self._column(len(self._projections), name) for name in names}
        # Without a column, a table would have no rows.
        return pa.table(columns or {START: self._base[START]})

    def _column(self, level: int, name: str) -> _Column:
        known = self._known[level]
        if name not in known:
            known[name] = self._computed(level, name)
        return known[name]

    def _computed(self, level: int, name: str) -> _Column:
        if level:
            expression = Expression.parse(self._projections[level - 1][name])
            read = {one: self._column(level - 1, one) for one in expression.columns}
            return evaluate(expression, pa.table(read or {START: self._base[START]}))
        if name == self._finish.window:
            return pa.chunked_array([self._windows()])
        text = self._finish.assembly.aggregates.get(name)
        if text is None:
            return self._base[name]
        expression = Expression.parse(text)
        read = {one: self._partial(one) for one in expression.columns}
        return evaluate(expression, pa.table(read or {START: self._base[START]}))

    def _partial(self, name: str) -> _Column:
        if name not in self.divided:
            return self._base[name]
        known = self._known[0]
        if name not in known:
            known[name] = pa.chunked_array([self._finish.assembly.computed(name, self._base)])
        return known[name]

    def _windows(self) -> pa.Array[Any]:
        """Return the windows' starts and ends."""
        kind = self._finish.output.field(self._finish.window).type
        if not pa.types.is_struct(kind):
            raise InternalError("a window is a struct of its start and end")
        panes = self._base[START].combine_chunks().to_numpy()
        start = panes * (1000 * self._finish.pane_ms)
        both = [
            pa.array(one).view(kind.field(0).type) for one in (start, start + 1000 * self._finish.size_ms)
        ]
        return pa.StructArray.from_arrays(both, fields=list(kind))
