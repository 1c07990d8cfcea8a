"""Describe a procedure: its operations, undo log, rejections and route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.ddl import schema_text
from penstock.procedures.analysis.counts import TransactionCounts
from penstock.procedures.analysis.operations import Operation, operations_of
from penstock.procedures.analysis.routing import routing_attribute, routing_obstacle
from penstock.procedures.compiler.program import PlainProgram, Program, event_schema
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.schema import TableSpec

__all__ = [
    "describe_procedure",
    "describe_table",
    "describe_workflow",
    "explain_procedure",
    "explain_table",
    "list_accesses",
    "list_facts",
]


def describe_table(spec: TableSpec) -> dict[str, Any]:
    """Return the declaration of a table as values that JSON can hold."""
    return spec.to_json() | {"indexes": [list(index.columns) for index in spec.indexes]}


def describe_procedure(
    text: ProcedureText, tables: Mapping[str, TableSpec], program: Program | PlainProgram | None
) -> dict[str, Any]:
    """Return the content of `explain_procedure` as values that JSON can hold."""
    operations = operations_of(text, {name: spec.key for name, spec in tables.items()})
    kernel_program = program if isinstance(program, Program) else None
    return {
        "procedure": text.name,
        "program": program and program.digest,
        "event": program and schema_text(event_schema(program.event)),
        "operations": [asdict(operation) for operation in operations],
        "compiled": kernel_program is not None,
        "undo_log": kernel_program and kernel_program.undo_log,
        "rejections": kernel_program and _reasons(kernel_program),
        "access_sets": None if kernel_program is None else _access_sets(kernel_program),
        "route": program and routing_attribute(program),
        "one_bucket_because": program and routing_obstacle(program),
    }


def describe_workflow(name: str, program: Program | PlainProgram | None) -> dict[str, Any]:
    """Return the content of `Workflow.explain` as values that JSON can hold."""
    kernel_program = program if isinstance(program, Program) else None
    return {
        "workflow": name,
        "program": program and program.digest,
        "event": program and schema_text(event_schema(program.event)),
        "procedures": program and list(program.stages),
        "accesses": kernel_program and list_accesses(kernel_program),
        "compiled": kernel_program is not None,
        "undo_log": kernel_program and kernel_program.undo_log,
        "rejections": kernel_program and _reasons(kernel_program),
        "route": program and routing_attribute(program),
        "one_bucket_because": program and routing_obstacle(program),
    }


def list_accesses(program: Program) -> list[str]:
    """Describe the accesses of a program to tables that a user declared, and to windows."""
    windows = _window_tables(program)
    return [
        *(
            f"{one.mode}: {one.table}[{', '.join(one.key)}]"
            for one in program.accesses
            if one.table not in windows
        ),
        *(f"window: {name}" for name in dict.fromkeys(windows.values())),
    ]


def _window_tables(program: Program) -> dict[str, str]:
    """Return, for each table that holds a window, the name of the window."""
    return {spec.name: spec.window for spec in program.tables if spec.window is not None}


def _reasons(program: Program) -> list[str]:
    """Return the reasons for rejections, without look-ups in a window's own tables, which never fail."""
    windows = _window_tables(program)
    return [reason for reason in program.reasons if reason.rpartition(": ")[2] not in windows]


def explain_procedure(
    text: ProcedureText,
    tables: Mapping[str, TableSpec],
    program: Program | PlainProgram | None,
    counts: TransactionCounts | None = None,
) -> str:
    """Return the text of `Procedure.explain`.

    Parameters
    ----------
    text : ProcedureText
        The text of the procedure.
    tables : mapping
        The tables that the procedure accesses, by name.
    program : Program or PlainProgram, optional
        The program made from the procedure; None while the columns of its input are unknown.
    counts : TransactionCounts, optional
        The numbers of the procedure's transactions that a query has run.
    """
    operations = operations_of(text, {name: spec.key for name, spec in tables.items()})
    lines = [text.name if program is None else f"{text.name} (program {program.digest})"]
    for operation in operations:
        lines += [f"  {line}" for line in _operation(operation)]
    if isinstance(program, Program):
        lines += [f"  WINDOW {name}" for name in dict.fromkeys(_window_tables(program).values())]
    lines += [f"  {name}: {value}" for name, value in _facts(operations, program)]
    if counts is not None:
        lines.append(f"  forwarded, measured: {counts.describe()}")
    return "\n".join(lines)


def explain_table(spec: TableSpec) -> str:
    """Return a table's declaration as one line."""
    parts = [f"table {spec.name}: {schema_text(spec.schema)}", f"key {', '.join(spec.key)}"]
    if spec.partition_by is not None:
        parts.append(f"partitioned by {spec.partition_by}")
    parts += [f"index by {', '.join(index.columns)}" for index in spec.indexes]
    return "; ".join(parts)


def _operation(operation: Operation) -> list[str]:
    lines = [f"{operation.mode} {operation.target}"]
    if operation.function:
        lines.append(f"  {operation.function}{_from(operation.reads)}")
    if operation.conditions:
        lines.append(
            f"  if {' and '.join(map(_parenthesize, operation.conditions))}{_from(operation.condition_reads)}"
        )
    return lines


def _from(rows: Iterable[str]) -> str:
    names = ", ".join(rows)
    return f"  <- {names}" if names else ""


def _parenthesize(condition: str) -> str:
    return f"({condition})" if any(f" {word} " in condition for word in ("and", "or", "if")) else condition


def _facts(
    operations: Sequence[Operation], program: Program | PlainProgram | None
) -> Iterable[tuple[str, str]]:
    late = {operation.target: operation.key_reads for operation in operations if operation.key_reads}
    yield "keys", "; ".join(f"{key} after {', '.join(rows)}" for key, rows in late.items()) or "of the event"
    yield from list_facts(program)


def list_facts(program: Program | PlainProgram | None) -> Iterable[tuple[str, str]]:
    """Return the compiler's findings: undo log, rejections, route and forwarded transactions."""
    if program is None:
        yield "compiled", "no, the attributes of its event are unknown"
        return
    if isinstance(program, PlainProgram):
        yield "compiled", "no, Python runs it"
    else:
        yield "undo log", "yes" if program.undo_log else "no"
        yield "rejections", ", ".join(_reasons(program)) or "none"
        yield "access sets", _access_sets(program)
    route = routing_attribute(program)
    yield "route", f"one bucket: {routing_obstacle(program)}" if route is None else f"the bucket of {route}"
    yield "sent to the bucket", ", ".join(attribute.name for attribute in program.event) or "nothing"
    yield "forwarded to other buckets", _forwarded(program)


def _forwarded(program: Program | PlainProgram) -> str:
    """Describe which transactions are forwarded if there are several buckets."""
    if routing_attribute(program) is not None:
        return "nothing"
    # The placement of rows imports Numba, which a graph without procedures does not need.
    from penstock.procedures.partitions.bucket_forwarding import (
        ARRIVAL,
        Forwarding,
        bucket_route,
        forwarding_obstacle,
    )

    obstacle = forwarding_obstacle(program)
    if obstacle is not None or isinstance(program, PlainProgram):
        return f"nothing, there is one bucket: {obstacle}"
    route = bucket_route(program)
    names = " and ".join(route.partitions)
    tables = " or ".join(dict.fromkeys(keys.table for keys in route.writes))
    if route.is_single and not tables:
        return f"nothing, with buckets= each transaction is in the bucket of {names}"
    over = "over copies of the tables, " if Forwarding(program, 1, ARRIVAL).copies_buckets else ""
    cases = [] if route.is_single else [f"where {names} are of several buckets"]
    cases += [f"where the event may write {tables}"] if tables else []
    return f"with buckets=, {over}{', and '.join(cases)}"


def _access_sets(program: Program) -> str:
    """Describe whether transactions may run on several threads, and which transactions run alone."""
    sets = program.access_sets
    if isinstance(sets, str):
        return f"unknown, all run serially: {sets}"
    return f"known, except where {' or '.join(sets.because)}" if sets.because else "known"
