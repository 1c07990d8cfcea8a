"""``penstock gc``: deletes files that are no longer needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.jobs.commands.common import (
    FAILED,
    RETAIN_VERSIONS,
    CheckpointOption,
    DebugOption,
    RetainOption,
    amount,
    errors,
)

__all__ = ["gc"]


@dataclass(slots=True)
class _Freed:
    """The files that garbage collection deleted, or would delete."""

    files: int = 0
    size_bytes: int = 0
    buckets: int = 0
    looked_at: int = 0


def gc(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A p-stream, the directory of a database, a state location (a path, or a URI such as "
            "s3://bucket/state), or the directory of a query, operator or bucket in it.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
    checkpoint: CheckpointOption = None,
    retain_versions: RetainOption = RETAIN_VERSIONS,
    drop_reader: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="For a p-stream: a reader that is gone for good. No rows are kept for it. May be repeated.",
            show_default=False,
        ),
    ] = None,
    orphans: Annotated[
        bool,
        typer.Option(
            "--orphans",
            help="List files that no committed pointer reaches, including state of queries that are gone. "
            "PATH may also be a checkpoint. Deletes only with --delete.",
        ),
    ] = False,
    drop_query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="With --orphans: a query whose checkpoint is gone for good. May be repeated.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --orphans: delete the listed files.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Delete files of state or of a p-stream that are no longer needed.

    State: with --checkpoint, gc deletes exactly what the query itself would delete. Without it, gc keeps
    every version that can be loaded, because the checkpoint may need any of them.

    P-stream: gc deletes rows that all readers have released, and files of attempts that have ended.

    Database: gc deletes files of its tables that no loadable version needs.

    Queries, writers and readers may run during this command. Ctrl-C stops it cleanly; run it again to delete
    the rest.
    """
    if orphans:
        with errors(debug=debug):
            sound = _orphans(
                path, checkpoint, drop_query or [], retain_versions, delete=delete and not dry_run
            )
        if not sound:
            raise typer.Exit(FAILED)
        return
    with errors(debug=debug):
        from penstock.checkpointing.files import open_files
        from penstock.checkpointing.p_stream.survey import is_p_stream

        of_p_stream = is_p_stream(open_files(path))
        _check(
            of_p_stream=of_p_stream,
            checkpoint=checkpoint,
            drop_reader=drop_reader,
            only_orphans=bool(drop_query) or delete,
        )
    if of_p_stream:
        with errors(debug=debug):
            from penstock.jobs.inspect.p_stream import collect_garbage

            sound = collect_garbage(path, drop_reader or [], dry_run=dry_run)
    else:
        sound = _collect_state(path, checkpoint, retain_versions, dry_run=dry_run, debug=debug)
    if not sound:
        raise typer.Exit(FAILED)


def _orphans(
    path: str, checkpoint: str | None, gone: list[str], retain_versions: int, *, delete: bool
) -> bool:
    """Print the orphans, and delete them if `delete` is true; return whether nothing is damaged."""
    from penstock.jobs.inspect.orphans import delete_orphans, find_orphans

    report = find_orphans(path, checkpoint, gone, retain_versions)
    for orphan in report.orphans:
        typer.echo(f"{orphan.location}: {amount(len(orphan.files), orphan.size_bytes)}: {orphan.reason}")
    for text in report.kept:
        typer.echo(f"kept: {text}")
    for text in report.damage:
        typer.secho(text, err=True, fg=typer.colors.RED)
    if delete:
        freed = list(delete_orphans(report))
        typer.echo(f"freed {amount(len(freed), sum(facts.size_bytes for facts in freed))}")
    else:
        files = sum(len(orphan.files) for orphan in report.orphans)
        more = "; --delete does" if files else ""
        typer.echo(f"would free {amount(files, sum(orphan.size_bytes for orphan in report.orphans))}{more}")
    return not report.damage


def _check(
    *, of_p_stream: bool, checkpoint: str | None, drop_reader: list[str] | None, only_orphans: bool
) -> None:
    from penstock.errors import InvalidUsageError

    if only_orphans:
        raise InvalidUsageError("--drop-query and --delete need --orphans", hint="add --orphans")
    if of_p_stream and checkpoint is not None:
        raise InvalidUsageError("--checkpoint does not apply to a p-stream", hint="leave it out")
    if drop_reader and not of_p_stream:
        raise InvalidUsageError("--drop-reader applies only to a p-stream", hint="leave it out")


def _collect_state(
    path: str, checkpoint: str | None, retain_versions: int, *, dry_run: bool, debug: bool
) -> bool:
    """Delete garbage in state; return whether nothing is damaged."""
    freed, sound = _Freed(), True
    try:
        with errors(debug=debug):
            from penstock.jobs.inspect.state import survey_buckets, tell_findings
            from penstock.state_store.survey import delete_garbage

            for operator, number, survey in survey_buckets(path, checkpoint, retain_versions):
                freed.looked_at += 1
                before = (freed.files, freed.size_bytes)
                freed.buckets += bool(survey.garbage)
                for facts in survey.garbage if dry_run else delete_garbage(operator.buckets[number], survey):
                    freed.files += 1
                    freed.size_bytes += facts.size_bytes
                if survey.garbage:
                    files, size_bytes = freed.files - before[0], freed.size_bytes - before[1]
                    typer.echo(f"{survey.location}: {amount(files, size_bytes)}")
                sound = tell_findings(operator, number, survey) and sound
    finally:
        if freed.looked_at:
            where = f"in {freed.buckets:,} of {freed.looked_at:,} buckets"
            verb = "would free" if dry_run else "freed"
            typer.echo(f"{verb} {amount(freed.files, freed.size_bytes)} {where}")
    return sound
