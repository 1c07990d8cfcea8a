"""Run the calls of a command log again, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import PlainProgram
from penstock.procedures.in_process.command_log import Call
from penstock.procedures.in_process.open_programs import OpenPrograms
from penstock.procedures.in_process.strong_recovery import StrongRecovery
from penstock.procedures.partitions.partitioned_tables import State
from penstock.procedures.requests.run import answer_requests

__all__ = ["ANSWER", "LOAD", "repeat", "replay"]

LOAD = "load "
"""The prefix of a table's name in the log, for calls of `OpenDatabase.load`."""
ANSWER = "answer requests"
"""The name in the log for calls of `OpenDatabase.answer`; no procedure can have it."""


def replay(calls: Iterable[Call], state: State, programs: OpenPrograms, strong: StrongRecovery) -> None:
    """Run calls or transactions of the log again; if the log ends within a round, run the rest of the round.

    Raises
    ------
    InvalidUsageError
        If a procedure has changed since its call was logged.
    """
    for call in calls:
        repeat(call, state, programs, strong)
    strong.end()


def repeat(call: Call, state: State, programs: OpenPrograms, strong: StrongRecovery) -> None:
    """Run a call, or a transaction, of the log again; see `replay`."""
    if call.events is None:
        strong.repeat(call)
        return
    if call.called == ANSWER:
        request_programs = programs.requests()
        _check_program(call, request_programs.digest)
        answer_requests(state, call.events, request_programs, 0)
        return
    table = call.called.removeprefix(LOAD)
    if table != call.called:
        state.load(table, call.events)
        return
    try:
        program = programs.find(call.called, call.events.schema)
    except InvalidUsageError as error:
        raise _changed_program_error(call, **error.context, reason=error.fact) from error
    _check_program(call, program.digest)
    if call.transaction is None:
        state.run(program, call.events, call.bounds)
        return
    if isinstance(program, PlainProgram):
        raise InvalidUsageError(
            "a workflow with plain=True cannot repeat transactions of strong recovery",
            workflow=program.name,
            hint="open the database once without plain=True, and close it: then nothing is repeated",
        )
    if call.transaction == 0:
        strong.begin(program, call.events)
    strong.repeat(call)


def _check_program(call: Call, digest: str) -> None:
    if digest != call.program:
        raise _changed_program_error(call, was=call.program, now=digest)


def _changed_program_error(call: Call, **context: Any) -> InvalidUsageError:
    return InvalidUsageError(
        "the log has calls of another program",
        **{"procedure": call.called, **context},
        hint="open it once with the procedure as it was, and close it: then no calls are repeated",
    )
