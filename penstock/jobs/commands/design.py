"""``penstock design``: chooses the partitions of a database for its transactions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.jobs.commands.common import DebugOption, LogOption, errors, read_tables

if TYPE_CHECKING:
    from penstock.designing.search import Progress

__all__ = ["design"]


def design(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A Python file that makes the database at its top; or the directory of a p-stream. The "
            'command imports a Python file, so code under if __name__ == "__main__": does not run.',
            show_default=False,
        ),
    ],
    log: LogOption = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROCEDURE=FILE",
            help="Events of a procedure or workflow as Parquet, in their order. May be repeated.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE=FILE",
            help="With --requests: the initial rows of a table, as Parquet. May be repeated. They are needed "
            "if a procedure reads keys from rows: the search then runs the procedure to see its keys.",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[int, typer.Option(help="The number of partitions, 2 to 64.")] = 4,
    seconds: Annotated[float, typer.Option(help="The longest duration of the search.")] = 10.0,
    intervals: Annotated[
        int, typer.Option(help="The number of parts of the trace; skew is measured in each part.")
    ] = 10,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            help="With --log or --table: the memory of a partition. Designs that need more for these "
            "rows are excluded.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the search.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="YAML", help="Write the design to this file.", show_default=False
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the tables and their columns to this file.", show_default=False)
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="For a p-stream: the time of updates.", show_default=False),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="For a p-stream: the key. May be repeated.", show_default=False),
    ] = None,
    cost: Annotated[str, typer.Option(help="For a p-stream: the time to process a tuple.")] = "50us",
    staleness: Annotated[str, typer.Option(help="For a p-stream: the mean staleness allowed.")] = "1s",
    cores: Annotated[int, typer.Option(help="For a p-stream: the maximum number of buckets.")] = 8,
    size: Annotated[
        str | None, typer.Option(help="For a p-stream: the size of windows.", show_default=False)
    ] = None,
    slide: Annotated[
        str | None, typer.Option(help="For a p-stream: the slide of windows.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The database, if the file makes several.", show_default=False)
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Choose the partitions of a database for its transactions, or the key of a queue, and give the reasons.

    This command does not change the database. To use the design, call database.open(design="design.yaml").
    Ctrl-C ends the search with the best design so far.

    \b
    penstock design bank.py --log bank --partitions 4 -o design.yaml
    penstock design bank.py --requests transfer=transfers.parquet --svg design.svg
    penstock design updates --time ts --staleness 100ms
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        import penstock
        from penstock.errors import InvalidUsageError
        from penstock.jobs.pipelines.databases import database_in

        if file.is_dir():
            if time is None:
                raise InvalidUsageError("a p-stream needs the time of updates", hint="give --time COLUMN")
            proposal = penstock.design_queue(
                file, time=time, key=key, cost=cost, staleness=staleness, cores=cores, size=size, slide=slide
            )
            typer.echo(proposal.explain())
            return

        if (log is None) == (not requests):
            raise InvalidUsageError(
                "a trace comes from requests or from a log", hint="give one of --requests and --log"
            )
        database = database_in(file, name)
        result = penstock.design(
            database,
            list(read_tables(requests, "rows", "PROCEDURE")) if requests else None,
            log=log,
            tables=dict(read_tables(table, "rows", "TABLE")) if table else None,
            partitions=partitions,
            seconds=seconds,
            intervals=intervals,
            memory_bytes=memory,
            seed=seed,
            progress=_print_progress if sys.stderr.isatty() else None,
        )
        if sys.stderr.isatty():
            typer.echo("", err=True)
        typer.echo(result.explain())
        if out is not None:
            out.write_text(result.to_yaml(), encoding="utf-8")
        if svg is not None:
            svg.write_text(result.to_svg(), encoding="utf-8")


def _print_progress(progress: Progress) -> None:
    typer.echo(
        f"\r{progress.seconds:5.1f} s, {progress.designs:,} designs, cost {progress.cost.total:.4f}, "
        f"{progress.cost.single:.1%} single-partition ",
        err=True,
        nl=False,
    )
