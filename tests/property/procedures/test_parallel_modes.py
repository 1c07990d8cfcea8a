"""In each mode and on each number of threads, batches leave the tables and results of the serial run."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet, event_schema
from penstock.procedures.parallel.access_sets import AccessSets
from penstock.procedures.parallel.code import parallel_source
from penstock.procedures.parallel.evaluation import Evaluation
from penstock.procedures.parallel.planning import MODES
from tests.transactions.procedures import define, interpreted, interpreted_source
from tests.transactions.workflows import state_bytes

EVENT = (
    "op int NOT NULL, k bigint, m bigint NOT NULL, s string, amount bigint NOT NULL, "
    "keys array<bigint> NOT NULL"
)
STATEMENTS = (
    ["a[e.k].x += e.amount"],
    ["a[e.m].x += e.amount"],
    ["a[e.m].y = e.s"],
    ["total += a[e.k].x"],
    ["if a[e.k].x > e.amount:", "    a[e.m].x -= e.amount", "    a[e.k].x += 1"],
    ["row = a[e.m]", "if row.x < 0:", '    abort("short")', "row.x -= e.amount"],
    ["other = a.get(e.k)", "if other is not None:", "    b[e.m, e.s].v = other.x"],
    ["if (e.m, e.s) in b:", "    b[e.m, e.s].v += e.amount", "    total += b[e.m, e.s].v"],
    ["for key in e.keys:", "    a[key].x = e.amount"],
    ["for key in e.keys:", "    total += a[key].x", "    if total > 100:", "        break"],
    ["for key in e.keys:", "    if key in a:", "        a[key].x += total", "        total += 1"],
    ["if e.op == 1:", "    return total"],
    ["if e.amount > 3:", '    abort("drawn")'],
    ["total = add(event(id=e.m, amount=e.amount), a)"],
)
EXCLUSIVE = (
    ["if e.op == 2:", "    a.insert(k=e.m + 100, x=e.amount, y=e.s)", "    return 7"],
    ["if e.op == 3:", "    del a[e.m]", "    return 8"],
    ["if e.op == 4:", "    a[e.amount * 2].x += 1"],
)


@dataclass(frozen=True)
class Case:
    """A database with its first rows, and events."""

    database: Database
    events: pa.RecordBatch
    keys: int

    def load(self, state: TableSet) -> TableSet:
        keys = list(range(self.keys))
        state.load("a", rows_of(self.database, "a", {"k": keys, "x": [5] * self.keys}))
        pairs = [(key, text) for key in range(self.keys) for text in ("s", "t")]
        columns: dict[str, list[Any]] = {
            "m": [key for key, _ in pairs],
            "s": [text for _, text in pairs],
            "v": [0] * len(pairs),
        }
        state.load("b", rows_of(self.database, "b", columns))
        return state


def rows_of(database: Database, table: str, columns: dict[str, list[Any]]) -> pa.RecordBatch:
    schema = database.tables[table].schema
    size = len(next(iter(columns.values())))
    arrays = [pa.array(columns.get(field.name, [None] * size), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@st.composite
def cases(draw: Any) -> Case:
    database = Database("random")
    database.table("a", "k bigint, x bigint NOT NULL, y string", key="k")
    database.table("b", "m bigint, s string, v bigint NOT NULL", key=("m", "s"))
    add = define("def add(e, a):\n    a[e.id].x += e.amount\n    return a[e.id].x\n")
    procedure = database.procedure(add)
    parts = list(draw(st.permutations(STATEMENTS))[: draw(st.sampled_from([1, 3, 5]))])
    parts += draw(st.sampled_from([[], [], *([one] for one in EXCLUSIVE)]))
    body = "".join(f"    {line}\n" for part in draw(st.permutations(parts)) for line in part)
    text = f"def act(e, a, b):\n    total = 0\n{body}    return total\n"
    database.procedure(event=EVENT, returns="total bigint")(define(text, {"add": procedure}))
    drawn = random.Random(draw(st.integers(0, 2**32)))
    count, keys = draw(st.sampled_from([0, 1, 60, 90])), draw(st.sampled_from([1, 4, 12]))
    most = 1 << 62 if draw(st.integers(0, 3)) == 0 else 5

    def key() -> int:
        return min(int(drawn.expovariate(1.0) * keys / 4), keys)  # `keys` itself is missing

    columns: list[list[Any]] = [
        [drawn.randrange(6) for _ in range(count)],
        [None if drawn.random() < 0.05 else key() for _ in range(count)],
        [key() for _ in range(count)],
        [drawn.choice(["s", "t", None]) for _ in range(count)],
        [drawn.randrange(most) for _ in range(count)],
        [[key() for _ in range(drawn.randrange(4))] for _ in range(count)],
    ]
    program = database.procedures["act"].program()
    schema = pa.schema([(column.name, column.type) for column in program.event])
    arrays = [pa.array(own, field.type) for own, field in zip(columns, schema, strict=True)]
    return Case(database, pa.RecordBatch.from_arrays(arrays, schema=schema), keys)


def test_a_reader_finds_the_version_before_a_later_writer() -> None:
    database = Database("versions")
    database.table("a", "k bigint, x bigint NOT NULL", key="k")
    text = "def act(e, a):\n    a[e.m].x += a[e.k].x\n"
    database.procedure(event="m bigint NOT NULL, k bigint NOT NULL")(define(text))
    program = database.procedures["act"].program()
    assert isinstance(program, Program)
    assert isinstance(program.access_sets, AccessSets)
    program.__dict__["parallel_kernel"] = interpreted_source(parallel_source(program))
    program.access_sets.facts.__dict__["kernel"] = interpreted(program.access_sets.facts)
    state = TableSet(database.tables.values())
    state.load("a", rows_of(database, "a", {"k": [0, 1, 2], "x": [10, 20, 30]}))
    state.evaluation = Evaluation("chains", 1)
    # The second waits for the first. Meanwhile the third writes what the second has to read.
    events = pa.RecordBatch.from_pydict({"m": [0, 0, 1], "k": [2, 1, 2]}, event_schema(program.event))
    state.run(program, events)
    assert state["a"].table().column("x").to_pylist() == [10 + 30 + 20, 20 + 30, 30]
    assert state.evaluation.metrics["act"].versions == 1


@pytest.fixture(scope="module", autouse=True)
def _often_switched_threads() -> Iterator[None]:
    """Let threads alternate within a transaction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def started_together(kernel: Callable[..., int], threads: int) -> Callable[..., int]:
    """Return a kernel whose threads wait for each other before their first transaction of a batch."""
    barriers: dict[int, threading.Barrier] = {}
    started: set[tuple[int, int]] = set()
    states: list[Any] = []

    def run(*arguments: Any) -> int:
        state, thread = id(arguments[9]), arguments[10]
        if (state, thread) not in started:
            started.add((state, thread))
            states.append(arguments[9])  # so that no other one gets its id
            barriers.setdefault(state, threading.Barrier(threads)).wait(60)
        return kernel(*arguments)

    return run


@given(cases(), st.sampled_from([(1, 1000), (2, 1000), (2, 20), (3, 1000)]))
def test_state_and_results_are_those_of_the_serial_run(case: Case, sizes: tuple[int, int]) -> None:
    program = case.database.procedures["act"].program()
    assert isinstance(program, Program)
    assert isinstance(program.access_sets, AccessSets)
    program.__dict__["kernel"] = interpreted(program)
    program.access_sets.facts.__dict__["kernel"] = interpreted(program.access_sets.facts)
    specs = list(case.database.tables.values())
    serial = case.load(TableSet(specs))
    expected = serial.run(program, case.events)
    blocks = serial.delta().blocks
    parallel = interpreted_source(parallel_source(program))
    for mode in MODES:
        state = case.load(TableSet(specs))
        state.evaluation = Evaluation(mode, *sizes)
        program.__dict__["parallel_kernel"] = started_together(parallel, sizes[0])
        made = state.run(program, case.events)
        state.close()
        assert made.to_pylist() == expected.to_pylist(), mode
        assert state_bytes(state, case.database) == state_bytes(serial, case.database), mode
        assert state.transactions == serial.transactions
        assert state.delta().blocks == blocks, mode
