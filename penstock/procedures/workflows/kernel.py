"""A workflow as one kernel (S-Store §3.2.4).

For each atomic batch of events a round runs. In a round, each procedure runs in the order of the workflow,
once for each event or each row of the stream that it takes. All runs of a procedure in a round are one
transaction; nested procedures together are one transaction. A rejection undoes the transaction and the rows
that it emitted, and the round continues with the next transaction. If an array is too small, the round is
undone, and runs again with a larger array.

Round g has the events from ``bounds[g]`` up to, but not including, ``bounds[g + 1]``. The results of an
interior procedure are the results for its last row.

A call of the kernel runs the procedures from ``steps[0]`` up to, but not including, ``steps[1]``; usually
these are all procedures. From ``steps[2]`` on, ``steps`` holds the number of rows of each stream at the start
of the call, followed by the number of rows of each stream at the end of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.procedures.compiler.layout import Layout, StreamCode
from penstock.procedures.compiler.output import ROOM, Output
from penstock.procedures.compiler.program import (
    Program,
    event_values,
    make_program,
    run_passes,
)
from penstock.procedures.compiler.scope import Facts, Scope
from penstock.procedures.compiler.statements import Statements
from penstock.procedures.indexes.undo import free_lines, undo_lines
from penstock.procedures.schema import Column
from penstock.procedures.workflows.dependencies import Dependencies
from penstock.procedures.workflows.stages import Stage, transactions_of

__all__ = ["compile_workflow"]

_EVENTS = "range(bounds[g], bounds[g + 1])"


def compile_workflow(
    name: str, stages: Sequence[Stage], dependencies: Dependencies, event: tuple[Column, ...], digest: str
) -> Program:
    """Compile a workflow.

    Parameters
    ----------
    name : str
        The name of the workflow.
    stages : sequence of Stage
        The procedures in the order in which they run.
    dependencies : Dependencies
        The dependencies of the procedures.
    event : tuple of Column
        The attributes of the event.
    digest : str
        The digest of the program.

    Raises
    ------
    InvalidUsageError
        If a procedure uses Python that cannot be compiled; the error names file, line and column.
    """
    results = tuple(column for stage in stages for column in stage.results)

    def one_pass(facts: Facts) -> Statements:
        return _Rounds(Layout.build(dependencies, event, results), facts, stages).compiler

    compiler = run_passes(stages[0].text, one_pass)
    lines, logs = compiler.out.finish()
    body = _kernel(compiler.layout, compiler.out, stages, lines[1:], logs=logs)
    program = make_program(name, compiler, body, logs=logs, digest=digest)
    return replace(
        program,
        stages=tuple(stage.text.name for stage in stages),
        takes=tuple(stage.stream for stage in stages),
        transactions=tuple(transactions_of(stages)),
    )


class _Rounds:
    """Compiles the transactions of a round."""

    def __init__(self, layout: Layout, facts: Facts, stages: Sequence[Stage]) -> None:
        self.compiler = Statements(layout, facts)
        first, begins = 0, [transaction.start for transaction in transactions_of(stages)]
        with self.compiler.out.block(""):
            for place, stage in enumerate(stages):
                self._stage(place, stage, first, begins=place in begins)
                first += len(stage.results)

    def _stage(self, place: int, stage: Stage, first: int, *, begins: bool) -> None:
        compiler = self.compiler
        out, layout = compiler.out, compiler.layout
        number = compiler.facts.calls.setdefault(("stage", place), len(compiler.facts.calls) + 1)
        results = tuple(enumerate(stage.results, first))
        if begins:
            out.begin_transaction()
        with out.block(f"{'if' if place == 0 else 'elif'} stage == {place}:"):
            if begins:
                out.line("mark = u")
                for stream in layout.streams.values():
                    out.line(f"{stream.mark} = {stream.used}")
            if stage.stream is None:
                head, event = f"for i in {_EVENTS}:", event_values(layout.event)
            else:
                stream, row = layout.streams[stage.stream], f"j{number}"
                out.line("i = bounds[g + 1] - 1")
                head, event = f"for {row} in range({stream.used}):", compiler.stream_event(stream, row)
            with out.block(head, loop=True):
                self._body(Scope(stage.text, number, event, None, results))
                with out.block("if code != 0:"):
                    out.line("break")

    def _body(self, scope: Scope) -> None:
        out = self.compiler.out
        # For an interior procedure, only the results of the last row are kept.
        for result, _ in scope.results:
            out.line(f"r{result}_null[i] = True")
        self.compiler.scopes.stack.append(scope)
        out.line(f"c{scope.number} = 0")
        with out.block("while True:"):
            self.compiler.body(scope.text.tree.body)
            out.line("break")
        self.compiler.scopes.stack.pop()


def _kernel(
    layout: Layout, out: Output, stages: Sequence[Stage], body: list[str], *, logs: bool
) -> list[str]:
    streams = list(layout.streams.values())
    sizes_before = {stream.used: f"steps[{place}]" for place, stream in enumerate(streams, 2)}
    sizes_after = {window.used: f"steps[{place}]" for place, window in enumerate(streams, 2 + len(streams))}
    undo = undo_lines(layout, out.undo_ops, "mark") if logs else []
    return [
        "@kernel",
        f"def run(begin, end, bounds, steps, {', '.join(layout.arguments)}):",
        "    for g in range(begin, end):",
        "        u = 0",
        "        mark = 0",
        *(f"        {stream.mark} = {stream.used} = {sizes_before[stream.used]}" for stream in streams),
        "        code = 0",
        "        stage = steps[0]",
        "        while stage < steps[1]:",
        "            code = 0",
        *(f"        {line}" for line in body),
        "            if code == 0:",
        "                codes[g, stage] = 0",
        "                stage += 1",
        "                continue",
        f"            if code == {ROOM}:",
        "                mark = 0",
        *(f"            {line}" for line in undo),
        f"            if code == {ROOM}:",
        "                break",
        *(f"            {line}" for line in _rejection_lines(streams, stages)),
        f"        if code == {ROOM}:",
        "            return g",
        *(f"        {place} = {used}" for used, place in sizes_after.items()),
        *(f"        {line}" for line in (free_lines(layout, out.undo_ops) if logs else [])),
        "    return end",
    ]


def _rejection_lines(streams: Sequence[StreamCode], stages: Sequence[Stage]) -> list[str]:
    """Return the code that runs after a transaction was undone."""
    lines = [f"{stream.used} = {stream.mark}" for stream in streams]
    first = 0
    for members in transactions_of(stages):
        lines.append(f"{'if' if members.start == 0 else 'elif'} stage < {members.stop}:")
        lines += [f"    codes[g, {member}] = 0" for member in members]
        lines.append("    codes[g, stage] = code")
        results = range(first, first + sum(len(stages[member].results) for member in members))
        if results:
            lines.append(f"    for i in {_EVENTS}:")
            lines += [f"        r{result}_null[i] = True" for result in results]
        first = results.stop
        lines.append(f"    stage = {members.stop}")
    return lines
