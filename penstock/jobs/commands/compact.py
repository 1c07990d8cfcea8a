"""``penstock compact``: keeps the newest row of each key of an update log."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.jobs.commands.common import DebugOption, errors

__all__ = ["compact"]


def compact(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="An update log: a p-stream with a key.", show_default=False)
    ],
    goal: Annotated[
        str, typer.Option(help="What compression minimises: fast, balanced, small, or a bandwidth.")
    ] = "balanced",
    debug: DebugOption = False,
) -> None:
    """Compact an update log now: replace its rows by the newest row of each key.

    Writers and Spark's sinks also compact the log by themselves, when enough rows have arrived. Writers,
    sinks and readers may run during this command.
    """
    with errors(debug=debug):
        from penstock.checkpointing.p_stream import PStream
        from penstock.checkpointing.p_stream.update_log import compaction

        found = compaction.compact(PStream(path), goal=goal)
    if found is None:
        typer.echo("nothing to compact: no rows came since the last compaction")
    else:
        typer.echo(
            f"{found.before:,} rows became {found.rows:,}, of which {found.deletes:,} delete their key; "
            f"deleted {found.segments:,} older segments"
        )
