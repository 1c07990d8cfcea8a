"""``penstock state``: works on the stored state of queries."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from penstock.errors import InvalidUsageError
from penstock.jobs.commands.common import DebugOption, errors

__all__ = ["state"]

state = typer.Typer(name="state", no_args_is_help=True, help="Work on the stored state of queries.")


CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.", show_default=False)
]
StateOption = Annotated[
    str, typer.Option("--state", metavar="PATH", help="The query's state_location.", show_default=False)
]
ToOption = Annotated[
    str,
    typer.Option(
        "--to", metavar="CHECKPOINT", help="The new checkpoint, which must not exist yet.", show_default=False
    ),
]
AtOption = Annotated[
    int | None,
    typer.Option(
        "--at",
        min=0,
        metavar="BATCH",
        help="The committed micro-batch; by default the newest.",
        show_default=False,
    ),
]


def _tables(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, columns = text.partition("=")
        if not equals:
            raise InvalidUsageError(
                "the columns of a table are missing",
                got=f"--table {text}",
                hint='write --table "last=sensor string, value double"',
            )
        if name.strip() in found:
            raise InvalidUsageError(
                "two --table options have the same table",
                table=name.strip(),
                hint="write all columns of the table in one --table",
            )
        found[name.strip()] = columns
    return found


def _show(done: int, parts: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\rcopied {done:,} of {parts:,} parts", nl=done == parts, err=True)


@state.command()
def fork(
    checkpoint: CheckpointArgument,
    path: StateOption,
    to: ToOption,
    at: AtOption = None,
    debug: DebugOption = False,
) -> None:
    """Copy a query's state and checkpoint, so that a second query continues from that state.

    The old query is only read, and may run meanwhile. If the command is interrupted, run the same command
    again, and it continues. Then start the new query with the new checkpoint, the same state_location, and a
    different sink.
    """
    with errors(debug=debug):
        from penstock.spark_ext.state_copy.fork import fork_state

        copy = fork_state(checkpoint, path, to, at=at, progress=_show)
        typer.echo(f"{copy.checkpoint}: query {copy.query}, continues after micro-batch {copy.batch}")


@state.command()
def rescale(
    checkpoint: CheckpointArgument,
    path: StateOption,
    to: ToOption,
    buckets: Annotated[
        int,
        typer.Option("--buckets", min=1, metavar="N", help="The new number of buckets.", show_default=False),
    ],
    at: AtOption = None,
    debug: DebugOption = False,
) -> None:
    """Copy a query's state and checkpoint, with a new number of buckets.

    The query may have an update queue, a union, a join, windows, or a user-defined operator.

    The old query is only read. If the command is interrupted, run the same command again, and it continues.
    Then start the query with the new checkpoint, the same state_location, and buckets=N.
    """
    with errors(debug=debug):
        from penstock.spark_ext.state_copy.rescale import rescale_state

        copy = rescale_state(checkpoint, path, to, buckets=buckets, at=at, progress=_show)
        typer.echo(
            f"{copy.checkpoint}: query {copy.query}, {copy.keys:,} keys, buckets={copy.buckets}, "
            f"continues after micro-batch {copy.batch}"
        )


@state.command()
def migrate(
    checkpoint: CheckpointArgument,
    path: StateOption,
    to: ToOption,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="COLUMNS",
            help='All columns of the new input: "symbol string, time timestamp, price double".',
            show_default=False,
        ),
    ] = None,
    left: Annotated[
        str | None,
        typer.Option(
            "--left", metavar="COLUMNS", help="The columns of a join's left side.", show_default=False
        ),
    ] = None,
    right: Annotated[
        str | None,
        typer.Option(
            "--right", metavar="COLUMNS", help="The columns of a join's right side.", show_default=False
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME=COLUMNS",
            help="All columns of a table of a user-defined operator. Repeat for each table that changes.",
            show_default=False,
        ),
    ] = None,
    at: AtOption = None,
    debug: DebugOption = False,
) -> None:
    """Copy the state and checkpoint of a query, with added or wider columns.

    The query may have a queue, a union, a join, windows or a user-defined operator.

    Columns may be added. Types may become wider: integers get more bits, float becomes double, and date
    becomes timestamp_ntz. The old query is only read. If the command is interrupted, run the same command
    again, and it continues. Then start the query with the new checkpoint, the same state_location, and the
    new input.
    """
    with errors(debug=debug):
        from penstock.spark_ext.state_copy.migrate import migrate_state

        sides = {side: text for side, text in (("left", left), ("right", right)) if text is not None}
        tables = _tables(table or ())
        if (schema is None) == (not sides) and (schema is not None or not tables):
            raise InvalidUsageError(
                "the new columns are missing" if schema is None else "there are new columns of two kinds",
                hint="pass --schema, for a join --left and --right, or for a user-defined operator --table",
            )
        copy = migrate_state(
            checkpoint, path, to, schema=schema or sides or None, tables=tables, at=at, progress=_show
        )
        typer.echo(
            f"{copy.checkpoint}: query {copy.query}, added {', '.join(copy.added) or 'no columns'}, "
            f"widened {', '.join(copy.widened) or 'none'}, continues after micro-batch {copy.batch}"
        )
