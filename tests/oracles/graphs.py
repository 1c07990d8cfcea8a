"""The meaning of a graph in DuckDB: every operator as SQL, so that results can be compared."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot

from penstock.dataflow.nodes import (
    Aggregate,
    Assemble,
    Materialize,
    Node,
    PushedScan,
    RowWindow,
    Select,
    Sink,
    Source,
    StreamTableJoin,
    Union,
    UpdateQueue,
    Where,
    Window,
    WindowJoin,
)
from penstock.operators.scan.spec import PANE, Partial
from penstock.sql.expression import column

_CONNECTION = duckdb.connect(config={"threads": 1})


def duck_sql(text: str) -> str:
    """Return Spark SQL as DuckDB's."""
    return sqlglot.transpile(f"SELECT {text}", read="spark", write="duckdb")[0].removeprefix("SELECT ")


def _quoted(name: str) -> str:
    return f'"{name}"'


def _list(names: Any) -> str:
    return ", ".join(map(_quoted, names))


class Oracle:
    """Turns nodes into SQL; window columns are where the window starts."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def sql(self, node: Node) -> str:
        """Return a query of a node's output."""
        above = [f"({self.sql(input)}) AS q{next(self._numbers)}" for input in node.inputs]
        match node:
            case Source():
                return f"SELECT {_list(node.schema.names)} FROM {_quoted(node.name)}"
            case Where():
                return f"SELECT * FROM {above[0]} WHERE {duck_sql(node.predicate.text)}"
            case Select():
                made = ", ".join(f"{duck_sql(one.text)} AS {_quoted(name)}" for name, one in node.columns)
                return f"SELECT {made} FROM {above[0]}"
            case Union():
                return " UNION ALL ".join(f"SELECT {_list(node.schema.names)} FROM {one}" for one in above)
            case StreamTableJoin():
                using = _list(node.on)
                joined = f"{above[0]} JOIN {_quoted(node.table)} USING ({using})"
                return f"SELECT {_list(node.schema.names)} FROM {joined}"
            case Materialize() | Window() | Sink():
                return f"SELECT * FROM {above[0]}"
            case UpdateQueue():
                return self._newest(above[0], node.schema.names, node.update_key, node.time)
            case WindowJoin():
                return self._joined(node, *above)
            case PushedScan():
                return self._scan(node, above[0])
            case Aggregate():
                return self._windows(node, above[0])
            case Assemble():
                return self._assemble(node, above[0])
        raise AssertionError(f"the oracle has no SQL for {node.label}")

    def _joined(self, node: WindowJoin, left: str, right: str) -> str:
        left, right = (
            re.sub(r" AS q\d+$", f" AS {name}", side) for name, side in (("a", left), ("b", right))
        )
        sizes = [node.window_of(side).size_ms // 1000 for side in node.inputs]
        slide = node.window_of(node.inputs[0]).slide_ms // 1000
        same = [f"a.{_quoted(name)} = b.{_quoted(name)}" for name in node.on]
        pairs = " AND ".join([f'a."window" + {sizes[0]} = b."window" + {sizes[1]}', *same])
        sides = {name: "a" if name in node.inputs[0].schema.names else "b" for name in node.schema.names}
        columns = ", ".join(f"{side}.{_quoted(name)}" for name, side in sides.items() if name != "window")
        window = f'a."window" + {sizes[0] - slide} AS "window"'
        made = f"SELECT {columns}, {window} FROM {left} JOIN {right} ON {pairs}"
        where = "" if node.condition is None else f" WHERE {duck_sql(node.condition.text)}"
        return f"SELECT * FROM ({made}) AS j{where}"

    def _newest(self, above: str, names: Any, key: Any, time: str) -> str:
        newest = f"row_number() OVER (PARTITION BY {_list(key)} ORDER BY {_quoted(time)} DESC) = 1"
        return f"SELECT {_list(names)} FROM {above} QUALIFY {newest}"

    def _scan(self, node: PushedScan, above: str) -> str:
        scan = node.scan
        texts = scan.select or {name: column(name).text for name in scan.columns}
        made = ", ".join(f"{duck_sql(text)} AS {_quoted(name)}" for name, text in texts.items())
        where = "" if scan.where is None else f" WHERE {duck_sql(scan.where)}"
        # Only what the scan reads is there.
        inner = f"SELECT {made} FROM (SELECT {_list(scan.columns)} FROM {above}) AS r{where}"
        if scan.latest_by is not None:
            return self._newest(f"({inner}) AS s", scan.selected, scan.latest_by.key, scan.latest_by.time)
        if scan.fragments is None:
            return inner
        found = scan.fragments
        pane = f"CAST(floor({_quoted(found.time)} / {found.pane_steps}.0) AS BIGINT) * {found.pane_steps}"
        partials = ", ".join(f"{_partial(one, found.time)} AS {_quoted(one.name)}" for one in found.partials)
        groups = ", ".join([_quoted(PANE), *map(_quoted, found.group_by)])
        panes = f"SELECT {pane} AS {PANE}, * FROM ({inner}) AS s"
        return f"SELECT {groups}, {partials} FROM ({panes}) AS p GROUP BY {groups}"

    def _windows(self, node: Aggregate, above: str) -> str:
        window = node.inputs[0]
        if not isinstance(window, Window):
            by_window = ", ".join(f"{duck_sql(one.text)} AS {_quoted(name)}" for name, one in node.aggregates)
            return f"SELECT {_list(node.group_by)}, {by_window} FROM {above} GROUP BY {_list(node.group_by)}"
        made = ", ".join(
            f"{duck_sql(_timed(one.text, window.time))} AS {_quoted(name)}" for name, one in node.aggregates
        )
        if isinstance(window, RowWindow):
            return self._row_windows(node, window, made, above)
        groups = _list([*node.group_by, "window"])
        starts = _starts(_quoted(window.time), window)
        opened = f'SELECT *, unnest({starts}) AS "window" FROM {above}'
        return f"SELECT {groups}, {made} FROM ({opened}) AS w GROUP BY {groups}"

    def _row_windows(self, node: Aggregate, window: RowWindow, made: str, above: str) -> str:
        """Return windows by the time of their first row; rows of one time differ in nothing but `c`."""
        groups, size, slide = _list(node.group_by), window.size_rows, window.slide_rows
        order = _list(name for name in (window.time, "c") if name in window.schema.names)
        parts = f"PARTITION BY {groups} " if groups else ""
        numbered = f"SELECT *, row_number() OVER ({parts}ORDER BY {order}) - 1 AS i FROM {above}"
        numbers = f"[w FOR w IN range(0, i // {slide} + 1) IF w * {slide} + {size} > i]"
        opened = f"SELECT *, unnest({numbers}) AS number FROM ({numbered}) AS n"
        columns = ", ".join([*([groups] if groups else []), f'min({_quoted(window.time)}) AS "window"', made])
        by = ", ".join([*([groups] if groups else []), "number"])
        return f"SELECT {columns} FROM ({opened}) AS w GROUP BY {by} HAVING count(*) = {size}"

    def _assemble(self, node: Assemble, above: str) -> str:
        times = node.decomposition.times
        combined = ", ".join(
            f"{_combined(one, times, node.decomposition.partials)} AS {_quoted(one.name)}"
            for one in node.decomposition.partials
        )
        groups = _list([*node.aggregate.group_by, "window"])
        starts = _starts(_quoted(PANE), node.window)
        opened = f'SELECT *, unnest({starts}) AS "window" FROM {above}'
        panes = f"SELECT {groups}, {combined} FROM ({opened}) AS w GROUP BY {groups}"
        made = ", ".join(
            f"{duck_sql(text)} AS {_quoted(name)}" for name, text in node.decomposition.assembly.items()
        )
        return f"SELECT {groups}, {made} FROM ({panes}) AS a"


def _starts(time: str, window: Window) -> str:
    """Return the list of starts of the windows that a time is in; times are whole seconds."""
    size, slide = window.size_ms // 1000, window.slide_ms // 1000
    last = f"(CAST(floor({time} / {slide}.0) AS BIGINT) * {slide})"
    first = f"{last} - {math.ceil(size / slide) * slide}"
    return f"[s FOR s IN range({first}, {last} + 1, {slide}) IF s > {time} - {size}]"


def _timed(text: str, time: str) -> str:
    """Return an aggregate whose first and last are by time."""

    def order(node: Any) -> Any:
        if isinstance(node, sqlglot.exp.First | sqlglot.exp.Last):
            name = "first" if isinstance(node, sqlglot.exp.First) else "last"
            return sqlglot.parse_one(f'{name}({node.this.sql()} ORDER BY "{time}")', dialect="duckdb")
        return node

    return sqlglot.parse_one(text, dialect="spark").transform(order).sql(dialect="spark")


def _partial(partial: Partial, time: str) -> str:
    text = partial.expression if partial.expression == "*" else duck_sql(partial.expression)
    if partial.kind == "m2":
        return f"var_pop({text}) * count({text})"
    if partial.kind == "distinct":
        return f"coalesce(list(DISTINCT {text}), [])"
    if partial.kind in ("first", "last"):
        return f"{partial.kind}({text} ORDER BY {_quoted(time)})"
    return f"{partial.kind}({text})"


def _combined(partial: Partial, times: Mapping[str, str], partials: Iterable[Partial]) -> str:
    name = _quoted(partial.name)
    if partial.kind == "m2":
        beside = {one.kind: _quoted(one.name) for one in partials if one.expression == partial.expression}
        n, s = beside["count"], beside["sum"]
        return (
            f"sum({name} + CAST({s} AS DOUBLE) * {s} / {n}) - CAST(sum({s}) AS DOUBLE) * sum({s}) / sum({n})"
        )
    if partial.kind in ("first", "last"):
        return f"{partial.kind}({name} ORDER BY {_quoted(times[partial.name])})"
    if partial.kind == "distinct":
        return f"len(list_distinct(flatten(list({name}))))"
    return f"{partial.kind if partial.kind in ('min', 'max') else 'sum'}({name})"


def rows_of(root: Node, tables: Mapping[str, pa.Table]) -> list[tuple[Any, ...]]:
    """Return a graph's output over tables, sorted; floats to nine digits, the window by its start."""
    with _CONNECTION.cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        query = Oracle().sql(root)
        names = ", ".join(_quoted(name) for name in root.schema.names)
        found = connection.sql(f"SELECT {names} FROM ({query}) AS q").fetchall()
    return sorted((tuple(map(rounded, row)) for row in found), key=repr)


def rounded(value: Any) -> Any:
    """Return a value as `rows_of` has it."""
    if isinstance(value, bool | str) or value is None:
        return value
    return f"{value + 0.0:.9g}" if abs(value) > 1e-9 else "0"
