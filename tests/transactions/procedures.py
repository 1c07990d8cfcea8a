"""Random procedures, and ways to run them without the compiler."""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet, event_schema
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.procedure import Procedure

EVENT = "k bigint, j bigint, v bigint, f double, s string, b boolean, ks array<bigint>"
RETURNS = "x bigint, y double, z string, w smallint"
HELPER = """
def helper(e, a):
    if e.amount > 40:
        abort("helper")
    row = a.get(e.key)
    if row is None:
        return None
    row.x += e.amount
    if e.amount < 0:
        del a[e.key]
        return e.amount
    return row.x
"""

_numbers = itertools.count()


def tables_of(db: OpenDatabase) -> TableSet:
    """Return the tables of a database that has one partition."""
    assert isinstance(db._state, TableSet)
    return db._state


def define(source: str, names: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Return the function that a text defines; `inspect` finds its text."""
    file = f"<procedure {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = dict(names or {})
    exec(compile(source, file, "exec"), space)
    return space[source.partition("def ")[2].partition("(")[0]]


def bank(source: str, *, plain: bool = False) -> Database:
    """Return a database with a procedure of a text, and the tables that random ones access."""
    database = Database("random")
    database.table(
        "a", "k bigint, x bigint, n tinyint, f float, s string", key="k", partition_by="k",
        indexes=["x", ("s", "x"), "f"],
    )  # fmt: skip
    database.table(
        "b",
        "k bigint, x bigint NOT NULL, j int, d double NOT NULL",
        key=("k", "j"),
        indexes=["d", ("j", "k")],
    )
    database.table("c", "s string, x smallint, b boolean", key="s", indexes=["b", "s"])
    helper = database.procedure(returns="x bigint", event="key bigint, amount bigint")(define(HELPER))
    names = {"helper": helper}
    database.procedure(event=EVENT, returns=RETURNS, plain=plain)(define(source, names))
    return database


def interpreted(program: Program | PlainProgram) -> Callable[..., int]:
    """Return the kernel of a compiled program without the compiler."""
    assert isinstance(program, Program)
    return interpreted_source(program.source)


def interpreted_source(source: str) -> Callable[..., int]:
    """Return the kernel of a generated module without the compiler."""
    space: dict[str, Any] = {}
    source = source.replace(
        "from penstock.procedures.machine_code.kernel import generated_kernel as kernel\n",
        "kernel = lambda f: f\n",
    )
    exec(compile(source, "<kernel>", "exec"), space)

    def run(*arguments: Any) -> int:
        with np.errstate(all="ignore"):  # machine code does not warn
            return int(space["run"](*arguments))

    return run


def plain(procedure: Procedure, events: pa.RecordBatch, tables: PlainTables) -> list[tuple[Any, ...]]:
    """Run a procedure by Python."""
    return tables.run(procedure.text, events, procedure.program().results)


def contents(state: TableSet | PlainTables, database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables, in the order of their keys."""
    found = {}
    for name, spec in database.tables.items():
        if isinstance(state, PlainTables):
            rows = [row for row in state.tables[name].rows.values() if row is not None]
        else:
            rows = state[name].table().to_pylist()
        found[name] = sorted(
            (comparable(tuple(row[one] for one in spec.names)) for row in rows),
            key=lambda row: [row[spec.names.index(one)] for one in spec.key],
        )
    return found


def comparable(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row in which a NaN equals a NaN, and 0.0 is not -0.0."""
    return tuple(
        "NaN" if isinstance(one, float) and math.isnan(one) else repr(one) if isinstance(one, float) else one
        for one in row
    )


def results_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return results as tuples."""
    return [comparable(tuple(row.values())) for batch in batches for row in batch.to_pylist()]


def events_of(procedure: Procedure, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return events of a procedure."""
    schema = event_schema(procedure.program().event)
    return pa.RecordBatch.from_pylist(rows, schema=schema)


_keys = st.integers(-2, 5)
_few = st.sampled_from(["a", "b", "long text", ""])
EVENTS = st.lists(
    st.fixed_dictionaries({
        "k": st.none() | _keys,
        "j": st.none() | st.integers(-1, 2),
        "v": st.one_of(st.none(), st.integers(-9, 99), st.sampled_from([(1 << 63) - 1, -(1 << 63), 1 << 40])),
        "f": st.none() | st.sampled_from([0.0, -0.0, 0.1, 3.0, 1e300, float("inf"), float("nan"), -2.5]),
        "s": st.none() | _few,
        "b": st.none() | st.booleans(),
        "ks": st.none() | st.lists(st.none() | _keys, max_size=4),
    }),
    max_size=25,
)  # fmt: skip


class _Draw:
    """Draws a procedure."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.loops: list[str] = []
        self.left = 14

    def one(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def key(self) -> str:
        return str(self.one([*["e.k"] * 6, "i", "e.v % 4", str(self.draw(_keys)), *self.loops]))

    def text(self) -> str:
        return str(self.one(["e.s", "t", '"a"', '"new"']))

    def integer(self, depth: int = 2) -> str:
        plain = ["e.v", "i", "e.j", str(self.draw(st.integers(-3, 9))), *self.loops]
        if depth == 0:
            return str(self.one(plain))
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        shape = self.one(
            ["plain"] * 3 + ["op", "row", "min", "if", "abs", "int", "len", "neg", "item", "big"]
        )
        return {
            "plain": str(self.one(plain)),
            "op": f"({a} {self.one(['+', '-', '*', '//', '%', '&', '|', '^'])} {b})",
            "row": self.one([f"a[{self.key()}].x", f"b[{self.key()}, 1].x", f"c[{self.text()}].x"]),
            "min": f"{self.one(['min', 'max'])}({a}, {b}, 3)",
            "if": f"({a} if {self.condition(depth - 1)} else {b})",
            "abs": f"abs({a})",
            "int": f"int({self.real(depth - 1)})",
            "len": "len(e.ks)",
            "neg": f"-{a}",
            "item": f"e.ks[{a}]",
            "big": "9223372036854775807",
        }[shape]

    def real(self, depth: int = 1) -> str:
        if depth == 0:
            return str(self.one(["e.f", "g", "0.5", "1e308"]))
        a, b = self.real(depth - 1), self.real(depth - 1)
        return str(
            self.one([
                "e.f", "g", f"({a} {self.one(['+', '-', '*', '/'])} {b})", f"a[{self.key()}].f",
                f"float({self.integer(0)})", f"({self.integer(0)} / {self.integer(0)})",
                f"({a} * {self.integer(0)})",
                f"min({a}, {b})",
            ])
        )  # fmt: skip

    def condition(self, depth: int = 1) -> str:
        sign = self.one(["<", "<=", ">", ">=", "==", "!="])
        plain = [
            f"{self.integer(0)} {sign} {self.integer(0)}",
            f"{self.text()} {self.one(['==', '!='])} {self.text()}",
            f"{self.key()} in a",
            f"{self.text()} not in c",
            f"({self.key()}, e.j) in b",
            "e.b",
            f"e.f {sign} g",
            f"e.s {self.one(['is', 'is not'])} None",
            f"0 < {self.integer(0)} <= {self.integer(0)}",
            f"a[{self.key()}].s is None",
        ]
        if depth == 0:
            return str(self.one(plain))
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        return str(self.one([*plain, f"({a} {self.one(['and', 'or'])} {b})", f"not ({a})"]))

    def block(self, depth: int) -> list[str]:
        lines = []
        for _ in range(self.draw(st.integers(1, 4))):
            if self.left > 0:
                self.left -= 1
                lines += self.statement(depth)
        return lines or ["pass"]

    def statement(self, depth: int) -> list[str]:
        k, x = self.key(), self.integer()
        simple = [
            [f"i = {x}"], [f"i += {x}"], [f"g = {self.real()}"], [f"t = {self.text()}"], ["t = None"],
            [f"a[{k}].x = {x}"], [f"a[{k}].x += {x}"], [f"a[{k}].n = {x}"], [f"a[{k}].s = {self.text()}"],
            [f"a[{k}].f = {self.real()}"], [f"a[{k}].x = None"], [f"a[{k}].n -= 1"],
            [f"b[{k}, e.j].x = {x}"], [f"b[{k}, e.j].d = {x}"], [f"c[{self.text()}].x = {x}"],
            [f"a.insert(k={k}, x={x}, s={self.text()})"], [f"b.insert(k={k}, j=e.j, x={x}, d={self.real()})"],
            [f"c.insert(s={self.text()}, b=e.b)"], [f"del a[{k}]"], [f"del b[{k}, 1]"],
            [f"del c[{self.text()}]"],
            [f"row = a.get({k})", "if row is not None:", f"    row.x = {x}"],
            [f"row = a.get({k})", f"row.n = {x}"],
            ["m = p"], ["p = e.f"], ["p = e.v / 2"], ["m = None"],
            ["if m is None or m < 0.5:", "    m = g"],
            [f"if m is not None and {k} in a:", f"    a[{k}].f = m"],
            ["late = None", "if e.b:", f"    late = a.get({k})", "if late is not None:",
             f"    late.x = {x}"],
            [f"if {k} not in a:", f"    a.insert(k={k}, x=1)"],
            [f"if {k} not in a:", f"    a.insert(k={k}, n={x}, f={self.real()})"],
            [f"if ({k}, e.j) not in b:", f"    b.insert(k={k}, j=e.j, x={x}, d=1)"],
            [f"helper(event(key={k}, amount={x}), a)"], [f"i = helper(event(key={k}, amount=3), a)"],
        ]  # fmt: skip
        if depth == 0 or self.draw(st.booleans()):
            return [str(line) for line in self.one(simple)]
        kind = self.one(["if", "if", "range", "list", "leave", "rows", "rows"])
        if kind == "rows":
            return self.selection()
        if kind == "leave":
            ways = [f'abort("{self.one(["one", "two"])}")', f"return {x}, g, t, i", "return 1, None, e.s, 2"]
            ways += ["break", "continue"] if self.loops else []
            return [f"if {self.condition()}:", f"    {self.one(ways)}"]
        if kind == "if":
            lines = [f"if {self.condition()}:", *_indented(self.block(depth - 1))]
            return [*lines, "else:", *_indented(self.block(depth - 1))] if self.draw(st.booleans()) else lines
        name = f"q{len(self.loops)}{self.left}"
        self.loops.append(name)
        bounds = self.one(["3", "e.v % 4", "4, 0, -2", "e.j, 2"])
        head = f"for {name} in range({bounds}):" if kind == "range" else f"for {name} in e.ks:"
        lines = [head, *_indented(self.block(depth - 1))]
        self.loops.pop()
        return lines

    def rows(self) -> tuple[str, str]:
        """Return a table and a selection of its rows."""
        i, j, t, g = self.integer(0), self.integer(0), self.text(), self.real(0)
        return self.draw(st.sampled_from([
            ("a", 'a.by("x")'), ("a", f'a.by("x")[{i}:{j}]'), ("a", f'a.by("x")[:{i}]'),
            ("a", f'a.by("x")[{i}]'),
            ("a", f'a.by("s", "x")[{t}]'), ("a", f'a.by("s", "x")[{t}, {i}:]'), ("a", 'a.by("s", "x")'),
            ("a", f'a.by("s", "x")["a":{t}]'), ("a", f'a.by("f")[{g}:]'), ("a", f'a.by("f")[{g}]'),
            ("b", f'b.by("d")[:{g}]'), ("b", 'b.by("d")'), ("b", f'b.by("j", "k")[e.j, {i}:{j}]'),
            ("c", 'c.by("b")[e.b]'), ("c", 'c.by("b")'), ("c", f'c.by("s")[{t}:]'),
        ]))  # fmt: skip

    def selection(self) -> list[str]:
        table, rows = self.rows()
        key = {"a": "r_a.k", "b": "r_b.k, r_b.j", "c": "r_c.s"}[table]
        change = {"a": "r_a.n -= 1", "b": "r_b.x += i", "c": "r_c.x = i"}[table]
        row = f"r_{table}"
        simple = [
            [f"i = len({rows})"],
            [f"{row} = {rows}.{self.one(['first', 'last'])}()", f"if {row} is not None:", f"    {change}"],
            [f"{row} = {rows}.first()", change],
        ]
        over = self.one([rows, f"reversed({rows})", f"{rows}.first({self.integer(0)})", f"{rows}.last(2)"])
        body = self.draw(st.lists(st.sampled_from([
            [change], [f"i = {row}.x"], [f"t = {row}.s" if table != "b" else "t = e.s"],
            [f"if {self.condition(0)}:", "    continue"], [f"if {self.condition(0)}:", "    break"],
            ["i += 1"],
        ]), min_size=1, max_size=3))  # fmt: skip
        lines = [line for one in body for line in one]
        end = self.one([[], [f"del {table}[{key}]"], [f"del a[{self.key()}]"]])
        return self.one([*simple, *[[f"for {row} in {over}:", *_indented([*lines, *end])]] * 3])


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@st.composite
def sources(draw: Any) -> str:
    """Draw the text of a procedure."""
    drawing = _Draw(draw)
    body = ["i = e.k", "g = 0.5", "t = e.s", "m = None", "p = None"]
    # What gives m and p their kind follows what reads them.
    body += [*drawing.block(3), *drawing.block(2), "p = 0.25"]
    if draw(st.booleans()):
        body.append(f"return {drawing.integer()}, {drawing.real()}, {drawing.text()}, i")
    return "\n".join(["def random(e, a, b, c):", *_indented(body)]) + "\n"
