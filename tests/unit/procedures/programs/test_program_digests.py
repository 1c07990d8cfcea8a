"""Digests of programs change only with the meaning of the programs."""

from __future__ import annotations

import ast
import hashlib
import json
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import _kernels
from penstock.procedures.compiler import program as compiler
from penstock.procedures.compiler.program import Program
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.programs import PROGRAMS
from tests.transactions.procedures import define, interpreted
from tests.transactions.workflows import state_bytes

GOLDEN = Path(__file__).parents[3] / "golden" / "programs.json"
_TAKE = """
def take(e, sums, recent):
    if e.v < 0:
        abort("negative")
    recent.insert(v=e.v)
    if e.k not in sums:
        sums.insert(k=e.k, total=0)
    for row in recent:
        sums[e.k].total += row.v
    return sums[e.k].total
"""


def workflow() -> tuple[Database, Program, pa.RecordBatch]:
    """Return a workflow with a stream, windows and triggers."""
    database = penstock.database("golden")
    database.table("sums", "k bigint, total bigint NOT NULL", key="k", indexes=["total"])
    database.table("late", "at bigint, times bigint NOT NULL", key="at")
    stream = database.stream("values", "k bigint NOT NULL, v bigint NOT NULL")
    database.window("recent", "v bigint NOT NULL", size=4, slide=2)
    database.window("timed", "at bigint NOT NULL", size=6, slide=3, time="at")
    database.trigger("recent")(
        define("def slid(e, late):\n    if e.v in late:\n        late[e.v].times += 1\n")
    )
    text = """
def put(e, values, timed, late):
    timed.insert(at=e.at)
    if e.at not in late:
        late.insert(at=e.at, times=len(timed))
    for i in range(e.at % 3):
        values.emit(k=i, v=e.v + i)
    return len(timed)
"""
    put = database.procedure(event="at bigint NOT NULL, v bigint NOT NULL", returns="n bigint")(define(text))
    take = database.procedure(event=stream, returns="total bigint")(define(_TAKE))
    program = database.workflow("flow", database.nested(put, take)).program()
    assert isinstance(program, Program)
    numbers = [number * 7 % 11 + number // 2 for number in range(60)]
    events = pa.record_batch({"at": numbers, "v": [one % 9 - 1 for one in numbers]})
    return database, program, events.cast(compiler.event_schema(program.event))


def found(database: Database, program: Program, batches: Iterable[pa.RecordBatch]) -> dict[str, str]:
    """Return the digest of a program, and a digest of its results."""
    program.__dict__["kernel"] = interpreted(program)
    state = TableSet(database.catalog.all_tables.values())
    results = [state.run(program, batch).to_pylist() for batch in batches]
    made = hashlib.sha256(repr(results).encode())
    for name, rows in sorted(state_bytes(state, database).items()):
        made.update(name.encode() + rows)
    return {"program": program.digest, "does": made.hexdigest()[:16]}


def all_found() -> dict[str, dict[str, str]]:
    made = {}
    for name, one in PROGRAMS.items():
        program = one.procedure.program()
        assert isinstance(program, Program)
        made[name] = found(one.database, program, [one.opening(20), one.workload(150, 20, 1)])
        del program.__dict__["kernel"]
    database, program, events = workflow()
    return made | {"workflow": found(database, program, [events])}


def test_a_digest_changes_only_with_what_a_program_does() -> None:
    """Change the golden file only together with `_LANGUAGE` or the text of a program: run this module."""
    assert all_found() == json.loads(GOLDEN.read_text())


def test_a_newer_language_is_another_program() -> None:
    procedure = PROGRAMS["bank"].procedure
    dependencies = procedure.catalog.find_dependencies([procedure.text])
    parts = (dependencies, procedure.event_schema(None), procedure.results)
    digests = [compiler.program_digest(*parts, language=version) for version in (1, 2)]
    assert digests[0] == compiler.program_digest(*parts) == procedure.program().digest != digests[1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x = (a, b)", "x = a, b  # a comment", True),
        ("t[(a, b)].x = 'c'", 't[a, b].x = "c"', True),
        ("x = 1", "x = 1.0", False),
        ("x = 1", "x = True", False),
        ("x = 'a'", "x = b'a'", False),
        ("x = None", "return None", False),
        ("return None", "return", False),
        ("x = a + b * c", "x = (a + b) * c", False),
        ("if a:\n    b = 1\nelse:\n    pass", "if a:\n    b = 1", False),
    ],
)
def test_layout_is_no_part_of_a_text(one: str, other: str, same: bool) -> None:
    def normal(body: str) -> Any:
        tree: Any = ast.parse("def p(e):\n" + "".join(f"    {line}\n" for line in body.splitlines())).body[0]
        return json.dumps(ProcedureText("p", tree, "", 0, 0, {}).normal)

    assert (normal(one) == normal(other)) is same


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(all_found(), indent=2) + "\n")


def test_machine_code_is_made_anew_if_a_function_in_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def load(name: str, source: str) -> SimpleNamespace:
        names.append(name)
        return SimpleNamespace(run=None)

    monkeypatch.setattr(_kernels, "load_generated", load)
    bank = PROGRAMS["bank"].procedure.program()
    assert isinstance(bank, Program)
    for text in (b"one", b"other"):
        monkeypatch.setattr(compiler, "inlined_texts", lambda text=text: text)
        bank.__dict__.pop("kernel", None)
        assert bank.kernel is None
    del bank.__dict__["kernel"]
    assert len(set(names)) == 2
    monkeypatch.undo()
    for name in compiler._INLINED:
        assert pkgutil.get_data("penstock", name)
