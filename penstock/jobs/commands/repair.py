"""``penstock repair``: repairs a checkpoint that a power cut damaged, so that its query can start again."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.errors import InvalidUsageError
from penstock.jobs.commands.common import DebugOption, errors

__all__ = ["repair"]


def repair(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The query's checkpointLocation. Graphs and penstock run repair theirs when they start.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Delete the torn files that a power cut has left in a query's checkpoint, so that Spark can start.

    Spark does not sync its files. After a power cut the newest files may be empty or truncated, and the query
    ends with "Incomplete log file" or a similar error. After the repair, the query continues from the newest
    complete micro-batch. If no file is torn, nothing changes. The query must not run during the repair.
    """
    with errors(debug=debug):
        from penstock.checkpointing.spark_checkpoint import local_path, repair_checkpoint

        report = repair_checkpoint(checkpoint, dry_run=dry_run)
        for file in report.files:
            typer.echo(file)
        if not report.files:
            path = local_path(checkpoint)
            if path is not None and not path.is_dir():
                raise InvalidUsageError("there is no such checkpoint", checkpoint=checkpoint)
            typer.echo("no file is torn")
            return
        verb = "would delete" if dry_run else "deleted"
        goes_on = (
            "starts from the beginning"
            if report.batch is None
            else f"continues with or after micro-batch {report.batch}"
        )
        typer.echo(f"{verb} {len(report.files)} torn files; the query {goes_on}")
