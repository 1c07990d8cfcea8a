"""``penstock test``: runs the cases of a pipeline, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.jobs.commands.common import FAILED, DebugOption, errors

__all__ = ["test"]


def test(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="A YAML file.", show_default=False)],
    cases: Annotated[
        Path | None,
        typer.Option(help="The file of cases; by default NAME.cases.yaml beside it.", show_default=False),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="TEXT", help="Run the cases whose names have this text."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override a field.", show_default=False),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Run the test cases of a pipeline in milliseconds, without Spark.

    A case contains input rows, the passing of time, and the expected rows and staleness. The case replaces
    the sources, the sink and the clock. Operators, state, commits and restarts are the same as in a real run.
    The exit code is 1 if a case fails.
    """
    with errors(debug=debug):
        from penstock._clock import monotonic_s
        from penstock.conf.pipeline import load_pipeline
        from penstock.errors import InvalidUsageError
        from penstock.testing.cases import cases_beside, read_cases, run_case

        place = cases or cases_beside(pipeline)
        if not place.exists():
            load_pipeline(pipeline, overrides or [])  # if the pipeline is missing, too, its error comes first
        chosen = [case for case in read_cases(place) if only is None or only in case.name]
        if not chosen:
            raise InvalidUsageError("no case has such a name", only=only, file=place)
        failed = 0
        for case in chosen:
            begin = monotonic_s()
            result = run_case(pipeline, case, overrides or [])
            ms = 1000 * (monotonic_s() - begin)
            mark, colour = ("ok", typer.colors.GREEN) if result.passed else ("FAILED", typer.colors.RED)
            typer.echo(f"{typer.style(mark, fg=colour)}  {case.name} ({ms:.0f} ms)")
            for line in result.lines:
                typer.echo(f"    {line}")
            failed += not result.passed
        typer.echo(f"{len(chosen) - failed} passed, {failed} failed")
    if failed:
        raise typer.Exit(FAILED)
