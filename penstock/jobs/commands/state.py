"""``penstock state``: works on the stored state of queries."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.jobs.commands.common import DebugOption, errors

__all__ = ["state"]

state = typer.Typer(name="state", no_args_is_help=True, help="Work on the stored state of queries.")


@state.callback()
def _group() -> None:
    """Keep ``fork`` a command of its own; typer would run a single command as the group."""


@state.command()
def fork(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.", show_default=False)
    ],
    path: Annotated[
        str,
        typer.Option("--state", metavar="PATH", help="The query's state_location.", show_default=False),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="CHECKPOINT", help="The new checkpoint; not there yet.", show_default=False
        ),
    ],
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            min=0,
            metavar="BATCH",
            help="The committed micro-batch; by default the newest.",
            show_default=False,
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Copy a query's state and checkpoint, so that a second query continues from there.

    The old query is only read, and may run meanwhile. After an interruption, run the same command again: it
    continues. Start the new query with the new checkpoint, the same state_location, and another sink.
    """
    with errors(debug=debug):
        from penstock.spark_ext.state_reader.fork import fork_state

        def show(done: int, parts: int) -> None:
            typer.echo(f"\rcopied {done:,} of {parts:,} parts", nl=done == parts, err=True)

        made = fork_state(checkpoint, path, to, at=at, progress=show)
        typer.echo(f"{made.checkpoint}: query {made.query}, continues after micro-batch {made.batch}")
