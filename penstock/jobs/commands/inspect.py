"""``penstock inspect``: shows stored data, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from penstock.jobs.commands.common import (
    FAILED,
    RETAIN_VERSIONS,
    CheckpointOption,
    DebugOption,
    JsonOption,
    RetainOption,
    StateArgument,
    console,
    errors,
)

__all__ = ["inspect"]

inspect = typer.Typer(
    name="inspect", help="Show what Penstock has stored.", no_args_is_help=True, add_completion=False
)


@inspect.callback()
def _inspect() -> None:
    """Show what Penstock has stored."""


@inspect.command()
def state(
    path: StateArgument,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
    retain_versions: RetainOption = RETAIN_VERSIONS,
    debug: DebugOption = False,
) -> None:
    """Show versions, chains, sizes, damage and garbage of every bucket.

    Every file is read and checked. The exit code is 1 if a file is damaged.

    \b
    newest         files of the highest version: <version>-<start of file id>
    proven         newest version that was certainly committed
    versions       versions that can be loaded
    chain          files that a load reads: base + deltas
    rows, waiting  keys, and keys that wait; for windows, entries of panes
    expired        keys that have left after their ttl
    files, size    all files on disk
    garbage        files that penstock gc would delete
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        from penstock.jobs.inspect.state import describe_bucket, show_buckets, survey_buckets, tell_findings

        surveys = list(survey_buckets(path, checkpoint, retain_versions))
    sound = not any(survey.damage or operator.damage for operator, _, survey in surveys)
    if as_json:
        typer.echo(json.dumps({"buckets": [describe_bucket(*entry) for entry in surveys]}, indent=2))
    else:
        show_buckets(surveys)
        for entry in surveys:
            tell_findings(*entry)
    if not sound:
        raise typer.Exit(FAILED)


@inspect.command()
def database(
    path: StateArgument,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
    retain_versions: RetainOption = RETAIN_VERSIONS,
    debug: DebugOption = False,
) -> None:
    """Show the tables of transactions: columns, keys, rows, memory, and versions.

    The current version of every bucket is loaded: the checkpoint's version, or else the newest version. The
    exit code is 1 if a file is damaged.
    """
    with errors(debug=debug):
        from penstock.jobs.inspect.database import describe_database, read_databases, show_databases
        from penstock.jobs.inspect.state import tell_findings

        databases = read_databases(path, checkpoint, retain_versions)
        if as_json:
            typer.echo(json.dumps({"databases": [describe_database(one) for one in databases]}, indent=2))
        else:
            show_databases(databases)
            for one in databases:
                for number, bucket in enumerate(one.buckets):
                    tell_findings(one.operator, number, bucket.survey)
    if not all(one.is_sound for one in databases):
        raise typer.Exit(FAILED)


@inspect.command()
def block(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A file of state or of a p-stream, or a file that BlockWriter wrote."
        ),
    ],
    why: Annotated[
        bool, typer.Option("--why", help="Show the codecs that were considered, and their costs.")
    ] = False,
    goal: Annotated[
        str, typer.Option(help="The goal of --why: fast, balanced, small, or a bandwidth such as 500MB/s.")
    ] = "balanced",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how each column of a file of blocks is coded, and why."""
    with errors(debug=debug):
        from penstock.jobs.inspect.block import describe_column, explain_choice, read_blocks, show_blocks

        if not as_json:
            show_blocks(console(), file, goal, why=why)
            return
        columns = [
            describe_column(*entry) | (explain_choice(entry[2], goal) if why else {})
            for entry in read_blocks(file)
        ]
        typer.echo(json.dumps({"columns": columns}, indent=2))


@inspect.command()
def pstream(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A p-stream: a path or a URI.", show_default=False)
    ],
    check: Annotated[bool, typer.Option("--check", help="Read all rows, and check every column.")] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a p-stream: rows, compression of its columns, writers, readers, and what can be freed.

    Writers and readers may run meanwhile. The exit code is 1 if a file is damaged.
    """
    with errors(debug=debug):
        from penstock.jobs.inspect import p_stream

        stream, survey = p_stream.open_and_survey(path)
        columns = p_stream.newest_columns(stream)
        if as_json:
            typer.echo(json.dumps(p_stream.describe_p_stream(survey, columns), indent=2))
        else:
            p_stream.show_p_stream(console(), survey, columns)
        p_stream.tell_damage(survey)
        if check:
            p_stream.check_rows(stream)
    if survey.damage:
        raise typer.Exit(FAILED)


@inspect.command()
def graph(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="The checkpoint of a graph, or of a pipeline.", show_default=False
        ),
    ],
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a graph's plan, its p-streams with offsets and lag, its markers and its last recovery.

    The graph may run meanwhile. Spark is not started.
    """
    with errors(debug=debug):
        from penstock.checkpointing.graph.directory import GraphDirectory
        from penstock.checkpointing.graph.facts import facts_of

        facts = facts_of(GraphDirectory(checkpoint))
        if as_json:
            typer.echo(json.dumps(facts.as_dict(), indent=2))
            return
        from penstock.jobs.inspect.graph import show_graph

        show_graph(console(), facts)
