"""``penstock plan``: forecasts staleness from a sample, by policy, load and cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.jobs.commands.common import DebugOption, errors

__all__ = ["plan"]


def plan(
    sample: Annotated[
        str,
        typer.Argument(
            metavar="SAMPLE",
            help="A p-stream, or a file: Parquet, CSV, JSON lines or Arrow. A path, or a URI such as s3://.",
            show_default=False,
        ),
    ],
    key: Annotated[str, typer.Option(help="The update key: a column, or several with commas.")] = "key",
    time: Annotated[str, typer.Option(help="The column that orders the updates of a key.")] = "time",
    arrival: Annotated[
        str | None,
        typer.Option(help="The timestamp of a row's arrival; by default its time.", show_default=False),
    ] = None,
    cost: Annotated[str, typer.Option(help="Time to process a tuple, on one core.")] = "1ms",
    sink_cost: Annotated[str, typer.Option(help="Time to write a result to the sink.")] = "0ms",
    fixed: Annotated[str, typer.Option(help="Time of a micro-batch without rows.")] = "400ms",
    metrics: Annotated[
        Path | None,
        typer.Option(help="The metrics file of a test run, for --cost and --fixed.", show_default=False),
    ] = None,
    freshness: Annotated[
        str | None,
        typer.Option(help="A contract, such as 'p95: 2 s', as in a pipeline's YAML.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="The budget of a micro-batch: rows, or a time such as 800ms.", show_default=False),
    ] = None,
    load: Annotated[str, typer.Option(help="Multiples of the sample's load, with commas.")] = "1,3,10",
    cores: Annotated[str, typer.Option(help="Numbers of cores, with commas.")] = "1,2,4",
    policy: Annotated[
        str | None, typer.Option(help="Policies, with commas; by default all.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(help="Read at most this many rows of the sample.")] = 200_000,
    span: Annotated[str, typer.Option(help="Simulate at most this much time at each load.")] = "5min",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="JSON", help="Write the forecasts, one per line.", show_default=False
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw p95 by cores and load to this file.", show_default=False)
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Forecast how stale results get with each policy, load and number of cores.

    Runs the operators' own code under a simulated clock, without Spark. With a contract, the output shows on
    how many cores the promise holds.

    \b
    penstock plan recorded-quotes --key symbol --time ts --cost 2ms --freshness 'p95: 2 s'
    penstock plan sample.parquet --cost 500us --load 1,5 --cores 2,8 --svg plan.svg
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        from penstock.jobs.plan.run import PlanRequest, parse_numbers, run_plan
        from penstock.operators.scheduling.policy import Policy
        from penstock.operators.update_stream.options import parse_choice

        names = str(policy).split(",") if policy is not None else list(Policy)
        request = PlanRequest(
            key=tuple(key.split(",")),
            time=time,
            arrival=arrival,
            cost=cost,
            sink_cost=sink_cost,
            fixed=fixed,
            metrics=metrics,
            freshness=freshness,
            budget=budget,
            loads=parse_numbers(load, "load", float),
            cores=parse_numbers(cores, "cores", int),
            policies=tuple(parse_choice("policy", name, Policy) for name in names),
            max_rows=rows,
            span=span,
        )
        run_plan(sample, request, out=out, svg=svg)
