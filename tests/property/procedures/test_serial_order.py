"""For random tables, skews, abort ratios and micro-batches, the result equals the serial run's bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.plain.tables import PlainTables
from tests.samples.streams import through_bytes
from tests.transactions.procedures import comparable, define, interpreted, results_of
from tests.transactions.workflows import state_bytes

ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
KEYS = ("bigint", "int", "string", "date", "timestamp")
SUMS = ("bigint", "smallint", "int")


@dataclass(frozen=True)
class Table:
    """A random table: the types of its key and of its other columns, and which of those are not null."""

    name: str
    key: tuple[str, ...]
    values: tuple[tuple[str, bool], ...]
    indexes: tuple[str, ...]

    def declare(self, database: Database) -> None:
        columns = [f"k{place} {kind}" for place, kind in enumerate(self.key)]
        columns += [
            f"v{place} {kind}{' NOT NULL' * strict}" for place, (kind, strict) in enumerate(self.values)
        ]
        keys = [f"k{place}" for place in range(len(self.key))]
        database.table(self.name, ", ".join(columns), key=keys, indexes=self.indexes)

    @property
    def event(self) -> list[tuple[str, str]]:
        """The attributes of the event for this table: their names and types."""
        keys = [(f"{self.name}_k{place}", kind) for place, kind in enumerate(self.key)]
        return keys + [(f"{self.name}_v{place}", kind) for place, (kind, _) in enumerate(self.values)]

    def statements(self) -> list[str]:
        """Return what a transaction does: it inserts a row, changes it, or deletes it."""
        name = self.name
        key = ", ".join(f"e.{name}_k{place}" for place in range(len(self.key)))
        has = f"({key})" if len(self.key) > 1 else key
        given = [f"k{place}=e.{name}_k{place}" for place in range(len(self.key))]
        given += [f"v{place}=e.{name}_v{place}" for place in range(len(self.values))]
        lines = [f"if {has} not in {name}:", f"    {name}.insert({', '.join(given)})"]
        lines += [f"elif e.op == {len(name)}:", f"    del {name}[{key}]", "    done += 10", "else:"]
        for place, (kind, _) in enumerate(self.values):
            sign = "+=" if kind in SUMS else "="
            lines.append(f"    {name}[{key}].v{place} {sign} e.{name}_v{place}")
        if self.indexes:
            lines += [f"for row_{name} in {name}.by('{self.indexes[0]}').first(3):", "    done += 100"]
        return [*lines, "done += 1"]


@st.composite
def tables(draw: Any, name: str) -> Table:
    key = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    values = draw(st.lists(st.tuples(st.sampled_from(list(ARROW)), st.booleans()), min_size=1, max_size=3))
    indexes = draw(st.sampled_from([(), (), ("v0",), ("k0",)]))
    return Table(name, tuple(key), tuple(values), indexes)


@dataclass(frozen=True)
class Case:
    """A database and its events."""

    database: Database
    events: pa.RecordBatch


def value(kind: str, number: int) -> Any:
    """Return a value of a type for a number."""
    if kind == "string":
        return f"text {number}" if number % 3 else "t" * (number % 40)
    if kind == "boolean":
        return number % 2 == 0
    return number / 4 if kind == "double" else number


@st.composite
def cases(draw: Any) -> Case:
    """Draw tables, a procedure over them, and events with a skew and a ratio of aborts."""
    chosen = [draw(tables(name)) for name in ("a", "bb", "ccc")[: draw(st.integers(1, 3))]]
    database = Database("random")
    for one in chosen:
        one.declare(database)
    parts = [one.statements() for one in chosen]
    parts.insert(draw(st.integers(0, len(parts))), ["if e.why < 0:", '    abort("drawn")'])
    body = "\n".join(f"    {line}" for part in draw(st.permutations(parts)) for line in part)
    text = f"def act(e, {', '.join(one.name for one in chosen)}):\n    done = 0\n{body}\n    return done\n"
    attributes = [("op", "int"), ("why", "int"), *(pair for one in chosen for pair in one.event)]
    event = ", ".join(f"{name} {kind}" for name, kind in attributes)
    database.procedure(event=event, returns="done bigint")(define(text))
    count, keys = draw(st.integers(0, 120)), draw(st.integers(1, 40))
    skew, aborts = draw(st.sampled_from([0.0, 0.6, 1.5, 4.0])), draw(st.sampled_from([0.0, 0.1, 0.5, 0.9]))
    nulls, drawn = draw(st.sampled_from([0.0, 0.05])), random.Random(draw(st.integers(0, 2**32)))
    weights = [1 / rank**skew for rank in range(1, keys + 1)]
    columns = []
    for name, kind in attributes:
        if name == "op":
            numbers = [drawn.randrange(6) for _ in range(count)]
        elif name == "why":
            numbers = [-1 if drawn.random() < aborts else 1 for _ in range(count)]
        elif "_k" in name:
            numbers = drawn.choices(range(keys), weights, k=count)
        else:
            numbers = [drawn.randrange(20_000) for _ in range(count)]
        own = [None if drawn.random() < nulls else value(kind, one) for one in numbers]
        storage = {"date": pa.int32(), "timestamp": pa.int64()}.get(kind, ARROW[kind])
        columns.append(pa.array(own, storage).cast(ARROW[kind]))
    schema = pa.schema([(name, ARROW[kind]) for name, kind in attributes])
    return Case(database, pa.RecordBatch.from_arrays(columns, schema=schema))


CUTS = st.lists(st.tuples(st.integers(0, 120), st.booleans()), max_size=4)


@given(cases(), CUTS)
def test_state_and_results_are_those_of_the_serial_run(case: Case, cuts: list[tuple[int, bool]]) -> None:
    procedure, specs = case.database.procedures["act"], case.database.tables.values()
    program = procedure.program()
    assert isinstance(program, Program)
    program.__dict__["kernel"] = interpreted(program)
    oracle = PlainTables(specs)
    expected = [comparable(row) for row in oracle.run(procedure.text, case.events, program.results)]
    state, made, begin = TableSet(specs), [], 0
    for place, restarts in [*sorted(cuts), (case.events.num_rows, False)]:
        end = min(max(place, begin), case.events.num_rows)
        made.append(state.run(program, case.events.slice(begin, end - begin)))
        state.delta()
        if restarts:
            units = [through_bytes(one) for one in state.snapshot()]
            state = TableSet(specs)
            state.restore(units)
        begin = end
    assert results_of(made) == expected
    assert state_bytes(state, case.database) == state_bytes(oracle, case.database)
    assert (
        np.count_nonzero([row[-1] is None for row in expected]) + sum(row[-1] is not None for row in expected)
        == state.transactions
    )
