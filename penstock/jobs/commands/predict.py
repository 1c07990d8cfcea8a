"""``penstock predict``: trains a predictor of a database's transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.jobs.commands.common import DebugOption, LogOption, errors, read_tables, split_option

__all__ = ["predict"]


def predict(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A Python file that makes the database at its top. The command imports the file, so code "
            'under if __name__ == "__main__": does not run.',
            show_default=False,
        ),
    ],
    log: LogOption = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROCEDURE=FILE",
            help="Events of a procedure as Parquet, in their order. May be repeated.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE=FILE",
            help="With --requests: the first rows of a table as Parquet. May be repeated.",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[int, typer.Option(help="The number of partitions, 2 to 64.")] = 4,
    design: Annotated[
        Path | None,
        typer.Option(
            metavar="YAML", help="A design, which gives the partitions and columns.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="ATTRIBUTE", help="Train models for each value of this attribute.", show_default=False
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="The least probability at which a prediction is used.")
    ] = 0.5,
    clusters: Annotated[
        bool, typer.Option(help="Choose among several models of a procedure by features of the event.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="JSON", help="Write the predictor to this file.", show_default=False
        ),
    ] = None,
    svg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROCEDURE=FILE", help="Draw the model of a procedure to a file.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The database, if the file makes several.", show_default=False)
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Train a predictor of a database's transactions, and show how often it is right.

    The requests run in Python over a copy of the tables, so the database is not changed. To use the
    predictor, run penstock serve --partitions 4 --predictor predictor.json.

    \b
    penstock predict bank.py --log bank --partitions 4 -o predictor.json
    penstock predict bank.py --requests transfer=transfers.parquet --rows accounts=accounts.parquet
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        import penstock
        from penstock.jobs.pipelines.databases import database_in

        database = database_in(file, name)
        result = penstock.predict(
            database,
            list(read_tables(requests, "requests", "PROCEDURE")) if requests else None,
            tables=dict(read_tables(rows, "rows", "TABLE")) if rows else None,
            log=log,
            partitions=partitions,
            design=design,
            kind=kind,
            threshold=threshold,
            clustered=clusters,
        )
        typer.echo(result.explain())
        if out is not None:
            out.write_text(result.to_json(), encoding="utf-8")
        for option in svg or ():
            procedure, path = split_option(option, "drawings", "PROCEDURE")
            Path(path).write_text(result.to_svg(procedure), encoding="utf-8")
