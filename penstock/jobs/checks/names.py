"""Find unknown columns and functions in all sections of a pipeline.

The builder of a graph stops at the first mistake in a section whose columns later sections may use. This
module also checks the later sections, and every expression of a section.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from penstock.conf.pipeline import Pipeline, PStreamSink, Sink, Source, TableSection, UpsertSink
from penstock.conf.sections import (
    ByWindowSection,
    Input,
    JoinSection,
    Queue,
    ResultsSection,
    UnionSection,
    WindowJoinSection,
    WindowSection,
)
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.lives import SILENT_COLUMN
from penstock.operators.update_stream.operator_options import STALENESS_COLUMN
from penstock.sql.expression import Expression, split_alias, unknown_functions

__all__ = ["Columns", "Use", "find_uses", "sink_uses"]

Columns: TypeAlias = tuple[str, ...] | None
"""The names of the columns that a section can read; None if they are unknown."""
_Uses: TypeAlias = "Generator[Use, None, Columns]"
_ADDED: Final = {
    "delete_when": DELETED_COLUMN,
    "on_silent": SILENT_COLUMN,
    "staleness_column": STALENESS_COLUMN,
}
"""The columns that fields of an operator add."""
_WINDOW: Final = "window"


@dataclass(frozen=True, slots=True)
class Use:
    """An expression or a column that a field names.

    Parameters
    ----------
    path : tuple of str
        The field.
    text : str
        The expression, or the name of the column.
    columns : tuple of str or None
        The columns that it can read.
    kind : str
        ``expression``, ``select`` for an expression that may have a name, or ``column``.
    """

    path: tuple[str, ...]
    text: str
    columns: Columns
    kind: Literal["expression", "select", "column"] = "expression"

    def parse(self) -> Expression:
        """Return the expression.

        Raises
        ------
        InvalidUsageError
            If the expression cannot be parsed, or lacks a name that it needs.
        """
        return split_alias(self.text)[1] if self.kind == "select" else Expression.parse(self.text)

    def find_functions(self) -> Iterator[InvalidUsageError]:
        """Yield an error for each function that Spark does not have."""
        if self.kind != "column":
            try:
                yield from unknown_functions(self.parse())
            except InvalidUsageError:
                return  # the builder of the graph reports it

    def find_columns(self) -> Iterator[InvalidUsageError]:
        """Yield an error for each column that does not exist, or one error if the text is no expression."""
        columns = self.columns
        if self.kind == "column":
            if columns is not None and self.text.lower() not in map(str.lower, columns):
                yield InvalidUsageError(
                    f"there is no column {self.text!r}", hint=did_you_mean(self.text, columns)
                )
            return
        try:
            expression = self.parse()
        except InvalidUsageError as error:
            yield error
            return
        for name in expression.columns if columns is not None else ():
            try:
                replace(expression, columns=(name,)).resolve(columns or ())
            except InvalidUsageError as error:
                yield error


def find_uses(pipeline: Pipeline, columns_of: Callable[[Source | TableSection], Columns]) -> Iterator[Use]:
    """Yield the columns and expressions that a pipeline names, in the order of the stream.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    columns_of : callable
        Returns the columns of a source or table.
    """
    columns = yield from _input(pipeline, columns_of(pipeline.source))
    if (lookup := pipeline.lookup) is not None:
        table = columns_of(lookup.table)
        for side in (columns, table):
            yield from _names(side, ("lookup", "key"), lookup.key)
        columns = _join(columns, table)
    if pipeline.queue is not None:
        columns = yield from _queue(pipeline.queue, columns, "queue")
    if pipeline.union is not None:
        columns = yield from _union(pipeline.union, columns, columns_of)
    if pipeline.join is not None:
        columns = yield from _stream_join(pipeline.join, columns, columns_of)
    if (database := pipeline.database) is not None:
        yield from _names(columns, ("database", "time"), database.time)
        yield from _names(columns, ("database", "keep"), database.keep)
        columns = None  # the procedure determines the columns
    if (operator := pipeline.operator) is not None:
        yield from _names(columns, ("operator", "key"), operator.key)
        yield from _names(columns, ("operator", "time"), operator.time)
        columns = None  # the class determines the columns
    if pipeline.results is not None:
        columns = yield from _input(pipeline.results, columns, "results")
    if pipeline.window is not None:
        yield from _windows(pipeline, columns)
    yield from sink_uses(pipeline.sink, None)


def sink_uses(sink: Sink, columns: Columns) -> Iterator[Use]:
    """Yield the columns and expressions that a sink names, if it can read `columns`."""
    if isinstance(sink, (PStreamSink, UpsertSink)):
        yield from _names(columns, ("sink", "key"), sink.key)
        yield from _names(columns, ("sink", "time"), sink.time)
        yield from _conditions(columns, ("sink", "delete_when"), [sink.delete_when])


def _names(columns: Columns, path: tuple[str, ...], names: str | Iterable[str] | None) -> Iterator[Use]:
    for name in (names,) if isinstance(names, str) else names or ():
        yield Use(path, name, columns, "column")


def _conditions(columns: Columns, path: tuple[str, ...], texts: Iterable[str | None]) -> Iterator[Use]:
    for text in texts:
        if text is not None:
            yield Use(path, text, columns)


def _join(*columns: Columns) -> Columns:
    known: tuple[str, ...] = ()
    for names in columns:
        if names is None:
            return None
        known += names
    return tuple(dict.fromkeys(known))


def _added(section: Queue | JoinSection | WindowSection | None) -> tuple[str, ...]:
    return tuple(column for field, column in _ADDED.items() if getattr(section, field, None))


def _input(section: Pipeline | Input | ResultsSection, columns: Columns, *path: str) -> _Uses:
    yield from _conditions(columns, (*path, "filter"), [section.filter])
    if section.projection is None:
        return columns
    at = (*path, "projection")
    return (yield from _select(section.projection, columns, at))


def _select(texts: Iterable[str], columns: Columns, path: tuple[str, ...]) -> _Uses:
    """Yield expressions; return their names, and after a mistake also the columns in `columns`."""
    labels: Columns = ()
    for text in texts:
        if text.strip() == "*":
            labels = _join(labels, columns)
            continue
        use = Use(path, text, columns, "select")
        yield use
        wrong = next(use.find_columns(), None) is not None
        if wrong:
            labels = _join(labels, columns)
        try:
            label, expression = split_alias(text)
        except InvalidUsageError:
            labels = None
        else:
            labels = labels if wrong and expression.is_column else _join(labels, (label,))
    return labels


def _queue(queue: Queue, columns: Columns, *path: str) -> _Uses:
    weight = queue.weight if isinstance(queue.weight, str) else None
    yield from _names(columns, (*path, "key"), queue.key)
    yield from _names(columns, (*path, "time"), queue.time)
    yield from _names(columns, (*path, "arrival"), queue.arrival)
    yield from _names(columns, (*path, "weight"), weight)
    yield from _conditions(columns, (*path, "delete_when"), [queue.delete_when])
    if queue.output_schema is None:
        return _join(columns, _added(queue))
    try:
        return tuple(parse_schema(queue.output_schema).names)
    except InvalidUsageError:
        return None  # the builder of the graph reports it


def _union(union: UnionSection, columns: Columns, columns_of: Callable[[Source], Columns]) -> _Uses:
    for name, other in union.inputs.items():
        yield from _input(other, columns_of(other.source), "union", "inputs", name)
    return (yield from _queue(union, columns, "union"))


def _stream_join(join: JoinSection, columns: Columns, columns_of: Callable[[Source], Columns]) -> _Uses:
    other = yield from _input(join.other, columns_of(join.other.source), "join", "with")
    when = join.delete_when
    deletes = (when.get("left"), when.get("right")) if isinstance(when, dict) else (when, when)
    for names, delete_when in zip((columns, other), deletes, strict=True):
        yield from _names(names, ("join", "key"), join.key)
        yield from _names(names, ("join", "time"), join.time)
        yield from _conditions(names, ("join", "delete_when"), [delete_when])
    yield from _conditions(_join(columns, other), ("join", "condition"), [join.condition])
    return _join(columns, other, _added(join))


def _windows(pipeline: Pipeline, columns: Columns) -> Iterator[Use]:
    window = pipeline.window
    if window is None:
        return
    yield from _names(columns, ("window", "time"), window.time)
    if isinstance(window.weight, str):
        yield from _names(columns, ("window", "weight"), window.weight)
    yield from _conditions(columns, ("window", "delete_when"), [window.delete_when])
    results = yield from _aggregates(pipeline, columns)
    if (join := pipeline.window_join) is not None:
        if join.by_window is not None:
            other = yield from _aggregates(join.by_window, results, "window_join", "by_window")
        else:
            if join.window is not None:
                yield from _names(columns, ("window_join", "window", "time"), join.window.time)
            other = yield from _aggregates(join, columns, "window_join")
        for side in (results, other):
            yield from _names(side, ("window_join", "key"), join.key)
        results = _join(results, other)
        yield from _conditions(results, ("window_join", "condition"), [join.condition])
    if pipeline.by_window is not None:
        yield from _aggregates(pipeline.by_window, results, "by_window")


def _aggregates(
    section: Pipeline | WindowJoinSection | ByWindowSection, columns: Columns, *path: str
) -> _Uses:
    groups = yield from _select(section.group_by or (), columns, (*path, "group_by"))
    aggregates = section.aggregates or {}
    yield from _conditions(_join(columns, groups), (*path, "aggregates"), aggregates.values())
    added = _added(section.window) if isinstance(section, Pipeline) else ()
    results = _join(groups, (_WINDOW, *added), tuple(aggregates))
    yield from _conditions(results, (*path, "having"), [section.having])
    return results
