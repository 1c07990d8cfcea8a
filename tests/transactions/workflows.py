"""Random workflows, a checker of the order of their transactions, and windows as lists."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.procedures.databases import Database
from penstock.procedures.partitions.partitioned_tables import State
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.procedure import Procedure
from penstock.procedures.rows import from_python
from penstock.procedures.schema import TableSpec
from penstock.procedures.workflows.workflow import Workflow
from tests.transactions.procedures import define

EVENT = "round bigint NOT NULL, k bigint, v bigint, s string"
STREAM = "round bigint NOT NULL, k bigint, v bigint, s string, n smallint, f float"


class ScheduleError(AssertionError):
    """A schedule breaks an order constraint."""


def check_schedule(
    schedule: Sequence[tuple[str, int]],
    edges: Sequence[tuple[str, str]],
    groups: Sequence[Sequence[str]],
) -> None:
    """Check the order constraints of S-Store §2.2, and that nothing comes between nested transactions.

    Parameters
    ----------
    schedule : sequence of (procedure, round)
        What ran, in this order; a transaction over several rows once for each.
    edges : sequence of (procedure, procedure)
        Which procedure precedes which.
    groups : sequence of sequences of procedures
        The nested transactions.
    """
    runs = [one for one, _ in itertools.groupby(schedule)]
    if len(set(runs)) < len(runs):
        raise ScheduleError(f"a transaction is interrupted: {runs}")
    place = {one: number for number, one in enumerate(runs)}
    rounds = sorted({number for _, number in runs})
    for first, second in edges:
        for number in rounds:
            if place.get((first, number), -1) > place.get((second, number), len(runs)):
                raise ScheduleError(f"workflow order: {second} before {first} in round {number}")
    for name in {one for one, _ in runs}:
        own = [number for one, number in runs if one == name]
        if own != sorted(own):
            raise ScheduleError(f"stream order: rounds of {name} are {own}")
    for group in groups:
        for number in rounds:
            places = sorted(place[one, number] for one in group if (one, number) in place)
            if places and places[-1] - places[0] != len(places) - 1:
                raise ScheduleError(f"a transaction comes between {group} in round {number}")


@dataclass
class Drawn:
    """A random workflow, or a procedure: its database, edges and nested transactions."""

    database: Database
    flow: Workflow | Procedure
    edges: list[tuple[str, str]] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)


_keys = st.sampled_from(["e.k", "e.v % 3", "1"])
_values = st.sampled_from(["e.v", "e.v + 1", "e.v - e.k", "e.v * 3", "e.round", "len(last)", "total"])


class _Body:
    """Draws the body of a procedure."""

    def __init__(self, draw: Any, number: int, targets: Sequence[int]) -> None:
        self.draw, self.number, self.targets = draw, number, targets

    def value(self) -> str:
        made = str(self.draw(_values))
        return "e.k" if made == "len(last)" and self.number != 0 else made

    def emission(self, target: int) -> list[str]:
        optional = {
            "k": self.value(), "v": self.value(), "s": "e.s", "n": self.value(), "f": f"{self.value()} / 2"
        }  # fmt: skip
        given = {name: value for name, value in optional.items() if self.draw(st.integers(0, 3))}
        line = f"s{target}.emit(round=e.round, {', '.join(f'{k}={v}' for k, v in given.items())})"
        shape = self.draw(st.sampled_from(["plain", "plain", "if", "loop"]))
        head = {
            "if": f"if e.v % 2 == {self.draw(st.integers(0, 1))}:",
            "loop": f"for q in range({self.draw(st.sampled_from(['2', 'e.v % 4', '5']))}):",
        }
        return [line] if shape == "plain" else [head[shape], f"    {line}"]

    def statement(self) -> list[str]:
        k, x = self.draw(_keys), self.value()
        return list(
            self.draw(
                st.sampled_from([
                    [f"if {k} not in acc:", f"    acc.insert(k={k}, x={x}, s=e.s)"],
                    [f"if {k} in acc:", f"    acc[{k}].x += {x}"],
                    [f"if {k} in acc:", f"    del acc[{k}]"],
                    [f"acc[{k}].x = {x}"],
                    [f"acc[{k}].s = e.s"],
                    [f"if e.v % 5 == {self.number}:", '    abort("no")'],
                    [f"total += {x}"],
                    [f"acc.insert(k={k}, x=total)"],
                ])
            )
        )  # fmt: skip

    def kept(self, name: str) -> list[str]:
        """Keep a row of the window, read it, then insert and keep another one."""
        keep = [f"kept_{name} = None", "for row in last:", f"    if row.v != {self.draw(st.integers(0, 3))}:"]
        keep.append(f"        kept_{name} = row")
        read = [f"if kept_{name} is not None:", f"    total = total * 3 % 1000003 + kept_{name}.round"]
        insert = ["last.insert(v=e.round, round=e.round)"]
        if self.draw(st.booleans()):
            insert = [f"for q in range({self.draw(st.integers(0, 4))}):", f"    {insert[0]}"]
        return [*keep, *read, *insert, *keep, *read]

    def lines(self) -> list[str]:
        parts = [self.statement() for _ in range(self.draw(st.integers(0, 3)))]
        parts += [self.emission(target) for target in self.targets]
        if self.number == 0:
            parts.append(["last.insert(v=e.v, round=e.round)"])
            parts += [self.kept(name) for name in self.draw(st.sampled_from([(), ("a",), ("a", "b")]))]
            parts.append(["for row in last:", "    if row.v is not None:", "        total = row.v - total"])
        parts = list(self.draw(st.permutations(parts)))
        begin = ["if 0 not in clock:", "    clock.insert(id=0, n=0)", "clock[0].n += 1"]
        begin += [f"log.insert(seq=clock[0].n, stage={self.number}, round=e.round)", "total = 0"]
        return [*begin, *(line for part in parts for line in part), "return total"]


@st.composite
def workflows(draw: Any, *, plain: bool = False) -> Drawn:
    """Draw a workflow: the border procedure p0, interior ones, and maybe another border procedure."""
    database = Database("random")
    database.table("clock", "id bigint, n bigint NOT NULL", key="id")
    database.table("log", "seq bigint, stage bigint, round bigint", key="seq")
    database.table("acc", "k bigint, x bigint, s string", key="k", partition_by="k")
    database.table("seen", "n bigint, v bigint", key="n")
    size, slide = draw(st.sampled_from([(3, 1), (4, 2), (2, 2)]))
    database.window("last", "v bigint, round bigint NOT NULL", size=size, slide=slide)
    if draw(st.booleans()):
        text = "def on_acc(e, seen):\n    if e.k not in seen:\n        seen.insert(n=e.k, v=e.x)\n"
        text += "    seen[e.k].v += 1\n"
        database.trigger("acc")(define(text))
    if draw(st.booleans()):
        text = "def on_slide(e, last, seen):\n    if 99 not in seen:\n        seen.insert(n=99, v=0)\n"
        text += "    for row in last:\n        seen[99].v = seen[99].v * 3 % 1000003 + row.round\n"
        database.trigger("last")(define(text))
    count = draw(st.integers(1, 5))
    borders = 1 + draw(st.integers(0, 1)) * (count > 2)
    edges: set[tuple[int, int]] = set()
    for number in range(borders, count):
        edges |= {(source, number) for source in draw(st.sets(st.integers(0, number - 1), min_size=1))}
        database.stream(f"s{number}", STREAM)
    procedures = []
    for number in range(count):
        targets = sorted(target for source, target in edges if source == number)
        lines = _Body(draw, number, targets).lines()
        tables = ["acc", "clock", "log", *(["last"] if number == 0 else []), *(f"s{one}" for one in targets)]
        source = f"def p{number}(e, {', '.join(tables)}):\n" + "".join(f"    {line}\n" for line in lines)
        event = database.catalog.streams[f"s{number}"] if number >= borders else EVENT
        make = database.procedure(event=event, returns=f"r{number} bigint", plain=plain)
        procedures.append(make(define(source)))
    # Runs of a topological order are nested; the workflow gets all of them in any order.
    begins = sorted(draw(st.sets(st.integers(1, count), max_size=count)) | {0, count})
    runs = [procedures[begin:end] for begin, end in itertools.pairwise(begins) if end > begin]
    parts = [run[0] if len(run) == 1 else database.nested(*draw(st.permutations(run))) for run in runs]
    flow = database.workflow("flow", *draw(st.permutations(parts)))
    return Drawn(
        database,
        flow,
        [(f"p{a}", f"p{b}") for a, b in sorted(edges)],
        [[one.name for one in run] for run in runs if len(run) > 1],
    )


def _numbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number the rounds: a row may be in the round of the row before it."""
    number = -1
    made: list[dict[str, Any]] = []
    for row in rows:
        number += not (row["more"] and made)
        made.append({"round": number, **{name: row[name] for name in ("k", "v", "s")}})
    return made


def _events(more: st.SearchStrategy[bool]) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries({
        "more": more,
        "k": st.none() | st.integers(-1, 3),
        "v": st.one_of(st.integers(-3, 12), st.none(), st.just((1 << 63) - 1)),
        "s": st.none() | st.sampled_from(["a", "b", ""]),
    })  # fmt: skip
    return st.lists(one, max_size=25).map(_numbered)


ROUNDS = _events(st.just(value=False)) | _events(st.booleans())
"""Events with the number of their round: one each, or atomic batches."""


def state_bytes(state: State | PlainTables, database: Database) -> dict[str, bytes]:
    """Return each table's rows, by their keys, as bytes."""
    made = {}
    for name, spec in database.catalog.all_tables.items():
        if isinstance(state, PlainTables):
            if name not in state.tables:
                continue
            rows = [row for row in state.tables[name].rows.values() if row is not None]
            arrays = [from_python([row[one.name] for row in rows], one.type) for one in spec.columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=spec.schema)
        else:
            batch = state[name].table()
        made[name] = table_bytes(pa.Table.from_batches([batch]), spec)
    return made


def table_bytes(rows: pa.Table, spec: TableSpec) -> bytes:
    """Return the rows of a table, by their keys, as bytes."""
    rows = rows.select(list(spec.names)).sort_by([(key, "ascending") for key in spec.key]).combine_chunks()
    rebuilt = pa.table([pa.array(c.to_pylist(), c.type) for c in rows.cast(spec.schema).columns], spec.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, spec.schema) as writer:
        writer.write_table(rebuilt)
    return sink.getvalue().to_pybytes()


@dataclass
class NaiveWindow:
    """A window as two lists (S-Store §3.2.2)."""

    size: int
    slide: int
    time: str | None = None
    active: list[Mapping[str, Any]] = field(default_factory=list)
    staged: list[Mapping[str, Any]] = field(default_factory=list)
    boundary: int | None = None

    def insert(self, row: Mapping[str, Any]) -> list[list[Mapping[str, Any]]] | None:
        """Insert a row; return what the window had at each slide, None if the row is late."""
        if self.time is None:
            self.staged.append(row)
            if len(self.staged) < self.slide:
                return []
            self.active = (self.active + self.staged)[-self.size :]
            self.staged = []
            return [list(self.active)]
        now = row[self.time]
        aligned = now // self.slide * self.slide
        if self.boundary is None:
            self.boundary = aligned
        if now < self.boundary:
            return None
        seen = []
        while self.boundary < aligned:
            if not self.active and not self.staged:
                self.boundary = aligned
                break
            self.boundary += self.slide
            rows = self.active + self.staged
            self.active = [one for one in rows if one[self.time] >= self.boundary - self.size]
            self.staged = []
            seen.append(list(self.active))
        self.staged.append(row)
        return seen
