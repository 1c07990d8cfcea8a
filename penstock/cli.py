"""The command ``penstock``.

Nothing heavy is imported before a command needs it, so ``--help`` and ``check`` are quick. These commands
start no JVM: ``check``, ``design``, ``ingest``, ``pack``, ``predict``, ``replay``, ``serve``, and, without
``--checkpoint``, ``gc`` and ``inspect``. Exit codes: 0 for success, 1 when a run fails or data is damaged or
cannot be read, 2 for a wrong command line or configuration, 130 and 143 when SIGINT or SIGTERM stopped the
run.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from shutil import get_terminal_size
from signal import Signals
from textwrap import fill
from typing import Annotated

import typer

from penstock._version import __version__
from penstock.errors import redact
from penstock.jobs.checks.checking import check_with_options
from penstock.jobs.commands.common import SIGNALLED, DebugOption, JsonOption, errors, size, unwrap
from penstock.jobs.commands.compact import compact
from penstock.jobs.commands.design import design
from penstock.jobs.commands.gc import gc
from penstock.jobs.commands.ingest import ingest
from penstock.jobs.commands.inspect import inspect
from penstock.jobs.commands.pack import pack
from penstock.jobs.commands.predict import predict
from penstock.jobs.commands.repair import repair
from penstock.jobs.commands.serve import serve
from penstock.jobs.commands.state import state
from penstock.jobs.dashboard.command import dashboard
from penstock.jobs.local.command import test
from penstock.jobs.plan.command import plan
from penstock.jobs.replay.command import replay

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Process streams of updates with Spark, and keep results fresh when rows arrive too fast.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="A YAML file, or the name of a packaged example.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field, such as queue.budget=100. The value is YAML. May be repeated.",
        show_default=False,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        metavar="spark|local",
        help="Run on Spark, or in this process without Java. Overrides the field engine.",
        show_default=False,
    ),
]

OWN_PROCESS = "own process"
"""The value of a context's ``obj`` if the command has the process to itself."""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Process streams of updates with Spark, and keep results fresh when rows arrive too fast."""


@app.command()
def run(
    context: typer.Context,
    pipeline: PipelineArgument,
    overrides: SetOption = None,
    engine: EngineOption = None,
    progress: Annotated[bool, typer.Option(help="Print a line for each micro-batch.")] = True,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Run on a cluster: spark://HOST:PORT, yarn or k8s://URL. Its workers get the pipeline's "
            "modules from here, and Penstock if they lack it; their Python needs Penstock's dependencies.",
            show_default=False,
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of Spark. May be repeated.", show_default=False),
    ] = None,
    deploy_mode: Annotated[
        str | None,
        typer.Option(metavar="client", help="The driver always runs here.", show_default=False),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Offer metrics to Prometheus at a port of 127.0.0.1, or at HOST:PORT.",
            show_default=False,
        ),
    ] = None,
    opentelemetry: Annotated[
        bool, typer.Option("--opentelemetry", help="Send metrics by OTLP, configured by OTEL_* variables.")
    ] = False,
    dashboard_at: Annotated[
        str | None,
        typer.Option(
            "--dashboard",
            metavar="ADDRESS",
            help="Serve the dashboard at a port of 127.0.0.1, or at HOST:PORT; the value off turns it off. "
            "By default, a run in a terminal serves it at a free port.",
            show_default=False,
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Run a pipeline until it ends, fails, or is stopped.

    Ctrl-C and SIGTERM stop it cleanly. Started again with the same checkpoint, it continues where it stopped.
    """
    with errors(debug=debug):
        from penstock.jobs.cluster.master import cluster_pipeline, spark_settings

        settings = spark_settings(master, conf or [], deploy_mode)
        overrides = list(overrides or [])
        options = {"engine": engine, "query.prometheus": prometheus}
        if opentelemetry:
            overrides.append("query.opentelemetry=true")
        own_process = context.obj == OWN_PROCESS
        loaded, document = check_with_options(
            pipeline, overrides, options, inputs=True, settings=settings, own_process=own_process
        )
        from penstock.jobs.dashboard.dashboard import pipeline_dashboard
        from penstock.jobs.following.batches import batch_printer, summary_line

        steps = loaded.later_steps
        printer = batch_printer(later_steps=steps) if progress else nullcontext(lambda batch: None)
        with (
            pipeline_dashboard(loaded, dashboard_at) as shown,
            cluster_pipeline(loaded, settings) as configured,
            printer as on_batch,
        ):
            level = "ERROR" if debug else "FATAL"
            if configured.engine == "local":
                from penstock._kernels import on_first_compilation
                from penstock.jobs.local.run import run_local  # loads no part of Spark's engine

                with on_first_compilation(lambda line: typer.echo(line, err=True) if progress else None):
                    totals = run_local(configured, on_batch, document=document, dashboard=shown)
            else:
                from penstock.jobs.pipelines.run import run_to_end

                totals = run_to_end(configured, on_batch, document=document, log_level=level, dashboard=shown)
    if totals.signal is not None:
        typer.echo(f"stopped by {Signals(totals.signal).name}", err=True)
    typer.echo(summary_line(totals, steps), err=True)
    if totals.all_waiting_keys:
        where = (
            "is gone with the temporary checkpoint; set query.checkpoint to keep it"
            if loaded.query.checkpoint is None
            else "is in the state, and the next run with this checkpoint serves it"
        )
        typer.echo(f"{totals.all_waiting_keys:,} keys still wait: the newest row of each {where}.", err=True)
    if totals.signal is not None:
        raise typer.Exit(SIGNALLED + totals.signal)


@app.command()
def check(
    pipeline: PipelineArgument,
    overrides: SetOption = None,
    engine: EngineOption = None,
    debug: DebugOption = False,
) -> None:
    """Check a pipeline's configuration, columns and expressions without running it.

    The modules of its functions, and the Python file of its database, are imported. Modules may lie beside
    the pipeline's file.

    Only Spark can check some things, such as the options of a source; it does so when the pipeline runs.
    """
    with errors(debug=debug):
        from penstock.jobs.pipelines.places import missing_inputs

        loaded, document = check_with_options(pipeline, overrides or [], {"engine": engine})
        missing = missing_inputs(loaded, document)
    steps: list[str] = [loaded.source.type]
    queue, window = loaded.queue or loaded.union, loaded.window
    if loaded.lookup is not None:
        steps.append(f"lookup by ({', '.join(loaded.lookup.key)})")
    if loaded.database is not None:
        steps.append(f"transactions of {loaded.database.procedure}")
    if loaded.union is not None:
        steps.append(f"union with {', '.join(loaded.union.inputs)}")
    if loaded.join is not None:
        join = loaded.join
        steps.append(f"join with {join.other.source.type} by ({', '.join(join.key)}) within {join.within}")
    if queue is not None:
        steps.append(f"{queue.policy} queue of ({', '.join(queue.key)}), {_budget(queue.budget)}")
    if window is not None:
        windows = f"windows of {window.size} by {window.slide or window.size}"
        if window.mode != "append":
            windows = f"{window.mode} {windows}, {window.policy}, {_budget(window.budget)}"
        steps.append(windows)
    if loaded.window_join is not None:
        other = loaded.window_join.window
        steps.append("join by window" if other is None else f"join with windows of {other.size}")
    if loaded.by_window is not None:
        groups = ", ".join(("window", *(loaded.by_window.group_by or ())))
        steps.append(f"aggregates by ({groups})")
    typer.echo(f"{pipeline}: valid: {' -> '.join([*steps, loaded.sink.type])}")
    for problem in missing:
        typer.echo(f"not there yet, needed by penstock run: {problem}", err=True)


def _budget(budget: int | str | None) -> str:
    return "no budget" if budget is None else f"budget {budget}"


@app.command()
def explain(
    pipeline: PipelineArgument,
    overrides: SetOption = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="A sample of the source, to measure selectivities and sizes: Parquet, CSV with a header, "
            "JSON lines, Arrow, or .txt with one tuple a line.",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="Draw the graph, as written and as planned, to this file.", show_default=False),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option("--measured", help="Show the share of forwarded transactions in the checkpoint."),
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a pipeline's graph of operators, as written and as planned.

    The plan shows what runs before each p-stream, what the p-stream holds, what its reader does, and what is
    left to Spark. No query runs.

    PIPELINE may also be a Python file that makes databases. Then the command shows their tables. For each
    procedure it shows reads and writes with their conditions, the undo log, the rejections and the route. It
    imports the file: code under if __name__ == "__main__": does not run, but a db.call(...) outside it does.
    """
    with errors(debug=debug):
        from penstock import dataflow
        from penstock.jobs.pipelines.graph import plan_file, read_counts

        if pipeline.endswith(".py"):
            _explain_databases(pipeline, as_json=as_json)
            return
        plan = plan_file(pipeline, overrides or [], sample)
        counts = read_counts(pipeline, overrides or []) if measured else None
        if svg is not None:
            svg.write_text(redact(dataflow.draw(plan)), encoding="utf-8")
        if as_json:
            typer.echo(redact(json.dumps(dataflow.as_json(plan, counts), indent=2)))
        elif sys.stdout.isatty():
            from rich.console import Console

            console = Console(highlight=False)
            with console.capture() as drawn:
                console.print(dataflow.render(plan, counts), crop=False)
            typer.echo(redact(drawn.get()), nl=False)
        else:
            typer.echo(redact(dataflow.explain(plan, counts=counts)), nl=False)


def _explain_databases(file: str, *, as_json: bool) -> None:
    from penstock.jobs.pipelines.databases import databases_in

    databases = databases_in(file).values()
    if as_json:
        typer.echo(json.dumps({"databases": [database.to_json() for database in databases]}, indent=2))
    else:
        typer.echo("\n\n".join(database.explain() for database in databases))


def _title(example: str) -> str:
    """Return the first sentence of the comment that begins a file."""
    comment = " ".join(line.removeprefix("#").strip() for line in example.partition("#\n")[0].splitlines())
    return f"{comment.partition('. ')[0].removesuffix('.')}."


@app.command()
def examples(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The example to print.", show_default=False)
    ] = None,
    debug: DebugOption = False,
) -> None:
    """List the packaged example pipelines, or print one to copy and change."""
    with errors(debug=debug):
        from penstock.conf.pipeline import example_names, example_text, paper_names

        if name is not None:
            typer.echo(example_text(name), nl=False)
            return
        papers = paper_names()
        ours = [example_name for example_name in example_names() if example_name not in papers]
        width = max(map(len, (*ours, *papers)))
        columns = get_terminal_size().columns
        for title, group in (("To start from:", ours), ("Queries of benchmarks and papers:", papers)):
            typer.echo(title)
            for example in group:
                text = f"  {example:<{width}} {_title(example_text(example))}"
                typer.echo(fill(text, max(columns, 2 * width), subsequent_indent=" " * (width + 3)))


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipelines, which lets editors complete and check YAML.

    Write it to a file, and name the file in the first line of each pipeline:

    \b
    # yaml-language-server: $schema=penstock.schema.json
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    from penstock.conf.json_schema import pipeline_schema

    typer.echo(json.dumps(pipeline_schema(), indent=2))


@app.command()
def demo(
    seconds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many seconds each of the two queries runs; 22 by default, 8 with --fast.",
            show_default=False,
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Run a short demo.")] = False,
    out: Annotated[Path, typer.Option(help="The directory for the plots.")] = Path("penstock-demo"),
    dashboard_at: Annotated[
        str | None,
        typer.Option("--dashboard", metavar="ADDRESS", help="As for penstock run.", show_default=False),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Compare an append queue and an update queue under the same overload."""
    with errors(debug=debug):
        from penstock.jobs.demo import run_demo

        code = run_demo(seconds=seconds, fast=fast, out=out, dashboard_at=dashboard_at)
    if code:
        raise typer.Exit(code)


@app.command()
def simulate(
    load: Annotated[float, typer.Option(help="How many updates arrive for each served update.")] = 10.0,
    keys: Annotated[int, typer.Option(help="Number of keys.")] = 100,
    skew: Annotated[float, typer.Option(help="Zipf exponent of the keys, up to 10; 0 for equal keys.")] = 0.9,
    updates: Annotated[int, typer.Option(help="Length of the run, in updates.")] = 20_000,
    debug: DebugOption = False,
) -> None:
    """Show how stale results get with each policy under overload, with a simulated clock."""
    with errors(debug=debug):
        from penstock.jobs.simulate import run_simulation

        run_simulation(load, keys, skew, updates)


@app.command("warm-up")
def warm_up(
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Do nothing if the archive exists.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Compile kernels and archive Spark's classes, so that later runs start in a third less time.

    Run it once for each Python environment and Java version. A run takes between 30 seconds and two minutes.
    The archive takes 200 MB in ~/.cache/penstock.
    """
    with errors(debug=debug):
        from penstock.jobs.class_archive import class_archive, make_class_archive

        there = class_archive()
        if not (if_missing and there is not None and there.exists()):
            typer.echo("running small queries, which takes up to two minutes", err=True)
            there = make_class_archive()
        typer.echo(f"{there}: {size(there.stat().st_size)}")


app.command()(ingest)
app.command()(compact)
app.command()(dashboard)
app.command()(design)
app.command()(gc)
app.command()(pack)
app.command()(plan)
app.command()(replay)
app.command()(predict)
app.command()(repair)
app.command()(serve)
app.command()(test)
app.add_typer(inspect)
app.add_typer(state)
for _command in (*app.registered_commands, *inspect.registered_commands, *state.registered_commands):
    _command.help = unwrap(_command.callback)


def main() -> None:
    """Run the command line; the entry point of the ``penstock`` script."""
    try:
        app(obj=OWN_PROCESS)
    except KeyboardInterrupt:
        sys.exit(SIGNALLED + 2)


if __name__ == "__main__":
    main()
