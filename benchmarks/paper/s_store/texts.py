"""Procedures whose number is a parameter of an experiment: their texts, made and defined."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.procedures.databases import Database, database
from penstock.procedures.engine import TableSet, event_schema

__all__ = [
    "by_hand",
    "define",
    "driven_voter",
    "native",
    "statements",
    "trigger_chain",
    "voter",
    "warm",
    "workflow",
]

_EXAMPLE = Path(__file__).parents[3] / "examples" / "voter.py"
_WITHOUT_STREAMS = {
    '@show.procedure(event="phone bigint, contestant bigint")\n': (
        '@show.procedure(event="phone bigint, contestant bigint", returns="valid bigint")\n'
    ),
    "def validate(e, contestants, votes, totals, valid):": "def validate(e, contestants, votes, totals):",
    "valid.emit(contestant=e.contestant)": "return 1",
    "@show.procedure(event=valid)": (
        '@show.procedure(event="contestant bigint NOT NULL", returns="votes bigint")'
    ),
    "def count(e, contestants, totals, trend, leaderboard, counted):": (
        "def count(e, contestants, totals, trend, leaderboard):"
    ),
    "counted.emit(votes=totals[0].votes)": "return totals[0].votes",
    "@show.procedure(event=counted, returns": '@show.procedure(event="votes bigint NOT NULL", returns',
}
"""The edits that make Voter's procedures return what they emit, so that a client can call them in turn."""

_BEGIN = "@db.procedure(event='id bigint, value bigint NOT NULL')\ndef begin(e, stage0):\n"


def define(text: str, **names: Any) -> dict[str, Any]:
    """Run a text that defines procedures; return what it defines."""
    file = f"<procedures {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
    return names


def _stages(count: int, name: str) -> Database:
    made = database(name)
    for at in range(count + 1):
        made.table(f"stage{at}", "id bigint, value bigint NOT NULL", key="id")
    return made


def trigger_chain(triggers: int) -> Database:
    """Return stages that a row passes by triggers, within one transaction (S-Store Fig. 5a, right)."""
    made = _stages(triggers, f"triggers{triggers}")
    for at in reversed(range(triggers)):
        define(
            f"@db.trigger('stage{at}')\n"
            f"def pass_on{at}(e, stage{at + 1}):\n{_insert(at + 1, triggers, 'e.value + 1')}",
            db=made,
        )
    define(f"{_BEGIN}{_insert(0, triggers, 'e.value')}", db=made)
    return made


def _insert(at: int, last: int, value: str) -> str:
    """Return the insert into a stage, which runs its triggers, and the deletion once they have run."""
    deletion = f"    del stage{at}[e.id]\n" if at < last else ""
    return f"    stage{at}.insert(id=e.id, value={value})\n{deletion}"


def statements(triggers: int) -> Database:
    """Return the same stages, with a procedure for each insert and delete (S-Store Fig. 5a, left)."""
    made = _stages(triggers, "statements")
    define(f"{_BEGIN}    stage0.insert(id=e.id, value=e.value)\n", db=made)
    for at in range(triggers):
        define(
            "@db.procedure(event='id bigint')\n"
            f"def pass_on{at}(e, stage{at}, stage{at + 1}):\n"
            f"    stage{at + 1}.insert(id=e.id, value=stage{at}[e.id].value + 1)\n"
            f"    del stage{at}[e.id]\n",
            db=made,
        )
    return made


def workflow(triggers: int) -> Database:
    """Return identical procedures: as a workflow, and as one that a client calls for each (S-Store Fig. 6a).

    The workflow ``flow`` has one procedure more than triggers. ``step`` is what each of them does.
    """
    made = database(f"workflow{triggers}")
    made.table("counts", "id bigint, count bigint NOT NULL", key="id")
    for at in range(1, triggers + 1):
        made.stream(f"to{at}", "value bigint NOT NULL")
    steps = []
    for at in range(triggers + 1):
        emits = f"to{at + 1}" if at < triggers else ""
        event = f"db.catalog.streams['to{at}']" if at else "'value bigint NOT NULL'"
        defined = define(
            f"@db.procedure(event={event})\n"
            f"def step{at}(e, counts{', ' + emits if emits else ''}):\n"
            f"    counts[{at}].count += e.value\n" + (f"    {emits}.emit(value=e.value)\n" if emits else ""),
            db=made,
        )
        steps.append(defined[f"step{at}"])
    made.workflow("flow", *steps)
    define(
        "@db.procedure(event='at bigint, value bigint NOT NULL')\n"
        "def step(e, counts):\n"
        "    counts[e.at].count += e.value\n",
        db=made,
    )
    return made


def native(size: int, slide: int) -> Database:
    """Return a window that a procedure inserts into (S-Store Fig. 7a, left)."""
    made = database(f"window{size}by{slide}")
    made.window("recent", "value bigint NOT NULL", size=size, slide=slide)
    define(
        "@db.procedure(event='value bigint NOT NULL')\n"
        "def add(e, recent):\n"
        "    recent.insert(value=e.value)\n",
        db=made,
    )
    return made


def by_hand(size: int, slide: int) -> Database:
    """Return the same window of a table and one for facts, as a procedure and as its statements.

    Rows have a number, and a mark whether they are staged, as in (S-Store §4.3).
    """
    made = database(f"hand{size}by{slide}")
    made.table("rows", "number bigint, value bigint NOT NULL, staged boolean NOT NULL", key="number")
    made.table("facts", "id bigint, next bigint NOT NULL, staged bigint NOT NULL", key="id")
    define(
        "@db.procedure(event='value bigint NOT NULL')\n"
        "def add(e, rows, facts):\n"
        "    fact = facts[0]\n"
        "    rows.insert(number=fact.next, value=e.value, staged=True)\n"
        "    fact.next += 1\n"
        "    fact.staged += 1\n"
        f"    if fact.staged == {slide}:\n"
        f"        for number in range(fact.next - {slide}, fact.next):\n"
        "            rows[number].staged = False\n"
        f"        for number in range(max(fact.next - {slide} - {size}, 0), fact.next - {size}):\n"
        "            del rows[number]\n"
        "        fact.staged = 0\n"
        "\n"
        "@db.procedure(event='value bigint NOT NULL', returns='next bigint')\n"
        "def stage(e, rows, facts):\n"
        "    fact = facts[0]\n"
        "    rows.insert(number=fact.next, value=e.value, staged=True)\n"
        "    return fact.next + 1\n"
        "\n"
        "@db.procedure(event='next bigint NOT NULL', returns='staged bigint')\n"
        "def note(e, facts):\n"
        "    facts[0].next = e.next\n"
        "    facts[0].staged += 1\n"
        "    return facts[0].staged\n"
        "\n"
        "@db.procedure(event='next bigint NOT NULL')\n"
        "def slide(e, rows, facts):\n"
        f"    for number in range(e.next - {slide}, e.next):\n"
        "        rows[number].staged = False\n"
        "    facts[0].staged = 0\n"
        "\n"
        "@db.procedure(event='next bigint NOT NULL')\n"
        "def expire(e, rows):\n"
        f"    for number in range(max(e.next - {slide} - {size}, 0), e.next - {size}):\n"
        "        del rows[number]\n",
        db=made,
    )
    return made


def voter() -> Database:
    """Return the example Voter: the workflow ``vote``."""
    made: Database = define(_EXAMPLE.read_text(), __name__="voter")["show"]
    return made


def driven_voter() -> Database:
    """Return Voter's procedures for a client that calls one after the other, as it does with H-Store."""
    text = _EXAMPLE.read_text().split("vote = show.workflow", 1)[0]
    for before, after in _WITHOUT_STREAMS.items():
        if text.count(before) != 1:
            raise ValueError(f"examples/voter.py has changed: {before!r} is not in it once")
        text = text.replace(before, after)
    made: Database = define(text, __name__="voter")["show"]
    return made


def warm(made: Database, procedures: Iterable[str] = ()) -> Database:
    """Compile and load procedures of a database, by default all; return the database."""
    for name in procedures or made.procedures:
        program = (made.procedures.get(name) or made.workflows[name]).program()
        nothing = pa.RecordBatch.from_pylist([], event_schema(program.event))
        TableSet(made.catalog.all_tables.values()).run(program, nothing)
    return made
