"""The command ``penstock``.

Nothing heavy is imported before a command needs it, so ``--help`` and ``check`` are quick, and ``check``
starts no JVM; nor do ``gc`` and ``inspect`` without ``--checkpoint``. Exit codes: 0 for success, 1 when a run
fails or state is damaged, 2 for a wrong command line or configuration, 130 and 143 when SIGINT or SIGTERM
stopped the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock._version import __version__

if TYPE_CHECKING:
    from penstock.conf.pipeline import Pipeline
    from penstock.jobs.run import Batch, Totals
    from penstock.state_store.bucket_store import Pointer
    from penstock.state_store.survey import BucketSurvey, Operator

__all__ = ["app", "main"]

_FAILED: Final = 1
_WRONG: Final = 2
_SIGNALLED: Final = 128
_RETAIN_VERSIONS: Final = 2  # `RETAIN_VERSIONS`, whose module is heavy
_PIPE_WIDTH: Final = 200
"""How wide a table is that no terminal shows."""

app = typer.Typer(
    name="penstock",
    help="Update streams for Spark Structured Streaming: newest first, fresh under overload.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="A YAML file, or the name of a packaged example where no file has that name.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field, such as queue.budget=100; the value is YAML. May be repeated.",
        show_default=False,
    ),
]
StateArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A state location: a path or a URI such as s3://bucket/state; or the directory of a query, an "
        "operator or a bucket in it.",
        show_default=False,
    ),
]
RetainOption = Annotated[
    int,
    typer.Option(
        "--retain-versions",
        min=1,
        metavar="N",
        help="How many versions stay loadable with --checkpoint: the query's retain_versions, which is "
        "stored nowhere. Without, all do.",
    ),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="CHECKPOINT",
        help="The query's checkpoint, as Spark is given it: it alone says what is committed. Starts Spark.",
        show_default=False,
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@contextmanager
def _errors(*, debug: bool) -> Iterator[None]:
    """Turn errors into one message and an exit code."""
    from penstock.errors import InvalidUsageError, PenstockError

    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_SIGNALLED + 2) from None
    except PenstockError as error:
        if debug:
            raise
        typer.secho(f"{error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(_WRONG if isinstance(error, InvalidUsageError) else _FAILED) from None
    except Exception as error:
        if debug or not type(error).__module__.startswith("pyspark."):
            raise
        from penstock.jobs.failure import root_cause

        typer.secho(f"the query failed: {root_cause(error)}", err=True, fg=typer.colors.RED)
        raise typer.Exit(_FAILED) from None


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
    """Update streams for Spark Structured Streaming: newest first, fresh under overload."""


def _load(pipeline: str, overrides: list[str] | None) -> Pipeline:
    from penstock.conf.pipeline import load_pipeline

    return load_pipeline(pipeline, overrides or [])


def _batch_printer(*, progress: bool) -> Callable[[Batch], None]:
    """Return what shows a batch: a line of text, with colours on a terminal."""
    if not progress:
        return lambda batch: None
    if not sys.stderr.isatty():

        def plain(batch: Batch) -> None:
            typer.echo(_line(batch), err=True)

        return plain
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def coloured(batch: Batch) -> None:
        text = Text(_line(batch))
        text.highlight_regex(r"[0-9][0-9,]*", "cyan")
        text.highlight_regex(r"waiting +[1-9][0-9,]*", "yellow")
        console.print(text, soft_wrap=True)

    return coloured


def _line(batch: Batch) -> str:
    dropped = f"  dropped {batch.dropped:,}" if batch.dropped else ""
    late = f"  late {batch.late:,}" if batch.late else ""
    return (
        f"batch {batch.number:<5} in {batch.rows_in:>9,}  emitted {batch.emitted:>8,}  "
        f"conflated {batch.conflated:>9,}{late}{dropped}  waiting {batch.waiting_keys:>7,}  "
        f"{batch.duration_ms:,} ms"
    )


def _summary(totals: Totals) -> str:
    parts = [
        f"{totals.batches:,} batches",
        f"{totals.rows_in:,} rows in",
        f"{totals.emitted:,} emitted",
        f"{totals.conflated:,} conflated",
    ]
    if totals.late:
        parts.append(f"{totals.late:,} late")
    if totals.dropped:
        parts.append(f"{totals.dropped:,} dropped")
    return ", ".join(parts)


@app.command()
def run(
    pipeline: PipelineArgument,
    overrides: SetOption = None,
    progress: Annotated[bool, typer.Option(help="Show a line for every batch.")] = True,
    debug: DebugOption = False,
) -> None:
    """Run a pipeline until it ends, fails, or is stopped.

    Ctrl-C and SIGTERM stop it cleanly: a restart with the same checkpoint goes on where it was.
    """
    with _errors(debug=debug):
        loaded = _load(pipeline, overrides)
        from penstock.jobs.run import run_to_end

        totals = run_to_end(
            loaded, _batch_printer(progress=progress), log_level="ERROR" if debug else "FATAL"
        )
    if totals.signal is not None:
        typer.echo(f"stopped by {Signals(totals.signal).name}", err=True)
    typer.echo(_summary(totals), err=True)
    if totals.waiting_keys:
        where = (
            "is gone with the temporary checkpoint; set query.checkpoint to keep it"
            if loaded.query.checkpoint is None
            else "is in the state, and the next run with this checkpoint serves it"
        )
        typer.echo(f"{totals.waiting_keys:,} keys still wait: the newest row of each {where}.", err=True)
    if totals.signal is not None:
        raise typer.Exit(_SIGNALLED + totals.signal)


@app.command()
def check(
    pipeline: PipelineArgument,
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Check a pipeline's configuration without running it.

    What needs Spark, such as the names of columns and SQL expressions, is checked when the pipeline runs.
    """
    with _errors(debug=debug):
        loaded = _load(pipeline, overrides)
    steps: list[str] = [loaded.source.type]
    queue, window = loaded.queue, loaded.window
    if queue is not None:
        budget = "no budget" if queue.budget is None else f"budget {queue.budget}"
        steps.append(f"{queue.policy} queue of ({', '.join(queue.key)}), {budget}")
    if window is not None:
        steps.append(f"windows of {window.size} by {window.slide or window.size}")
    typer.echo(f"{pipeline}: valid: {' -> '.join([*steps, loaded.sink.type])}")


@app.command()
def explain(
    pipeline: PipelineArgument,
    overrides: SetOption = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="A file with tuples of the source, by which selectivities and sizes are measured: Parquet, "
            "CSV with names, JSON lines, Arrow, or .txt with a line for each tuple.",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="Draw the graph, before and after, into this file.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show a pipeline as a graph of operators: as written, and as planned.

    The plan says what is done before a p-stream, what the p-stream holds, what its reader does, and what is
    left for Spark. Nothing runs.
    """
    with _errors(debug=debug):
        from penstock.jobs.explain import plan_file
        from penstock.operators.graph import as_json as json_of
        from penstock.operators.graph import draw, explain, render

        plan = plan_file(pipeline, overrides or [], sample)
        if svg is not None:
            svg.write_text(draw(plan), encoding="utf-8")
        if as_json:
            typer.echo(json.dumps(json_of(plan), indent=2))
        elif sys.stdout.isatty():
            from rich.console import Console

            Console(highlight=False).print(render(plan))
        else:
            typer.echo(explain(plan), nl=False)


def _title(example: str) -> str:
    """Return the first sentence of the comment that begins a file."""
    comment = " ".join(line.removeprefix("#").strip() for line in example.partition("#\n")[0].splitlines())
    return f"{comment.partition('. ')[0].removesuffix('.')}."


@app.command()
def examples(
    name: Annotated[str | None, typer.Argument(help="The example to print.", show_default=False)] = None,
    debug: DebugOption = False,
) -> None:
    """List the packaged example pipelines, or print one, to be copied and changed."""
    with _errors(debug=debug):
        from penstock.conf.pipeline import example_names, example_text

        if name is not None:
            typer.echo(example_text(name), nl=False)
            return
        for example in example_names():
            typer.echo(f"{example:<12} {_title(example_text(example))}")


@app.command()
def demo(
    seconds: Annotated[
        int | None,
        typer.Option(min=1, help="How long each of the two queries runs.", show_default=False),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A short demo.")] = False,
    out: Annotated[Path, typer.Option(help="Where the plots go.")] = Path("penstock-demo"),
    debug: DebugOption = False,
) -> None:
    """Show an overloaded market through an append queue and through an update queue."""
    with _errors(debug=debug):
        from penstock.jobs import demo as job

        code = job.run(seconds=seconds, fast=fast, out=out)
    if code:
        raise typer.Exit(code)


@app.command()
def simulate(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIGURE]...",
            help="Figures of the UpStream paper, such as 7 or 16; all by default.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the plots go.")] = Path("penstock-figures"),
    fast: Annotated[bool, typer.Option("--fast", help="Fewer points.")] = False,
    debug: DebugOption = False,
) -> None:
    """Draw figures of the UpStream paper with the operators' own code and a simulated clock."""
    with _errors(debug=debug):
        from penstock.jobs import simulate as job

        code = job.run(figures or [], out, fast)
    if code:
        raise typer.Exit(code)


@dataclass(slots=True)
class _Freed:
    """What garbage collection deleted, or would."""

    files: int = 0
    size_bytes: int = 0
    buckets: int = 0
    looked_at: int = 0


@app.command()
def gc(
    path: StateArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")
    ] = False,
    checkpoint: CheckpointOption = None,
    retain_versions: RetainOption = _RETAIN_VERSIONS,
    debug: DebugOption = False,
) -> None:
    """Delete files of state that nobody needs.

    Without --checkpoint, every version that can be loaded may be the one of the checkpoint, so all of them
    are kept. With it, garbage is exactly what the query itself would delete.

    The query may run meanwhile. Ctrl-C stops it cleanly; what is left is for the next time.
    """
    freed, sound = _Freed(), True
    try:
        with _errors(debug=debug):
            from penstock.state_store.survey import delete_garbage

            for operator, number, found in _surveys(path, checkpoint, retain_versions):
                freed.looked_at += 1
                before = (freed.files, freed.size_bytes)
                freed.buckets += bool(found.garbage)
                for facts in found.garbage if dry_run else delete_garbage(operator.buckets[number], found):
                    freed.files += 1
                    freed.size_bytes += facts.size_bytes
                if found.garbage:
                    files, size_bytes = freed.files - before[0], freed.size_bytes - before[1]
                    typer.echo(f"{found.location}: {_amount(files, size_bytes)}")
                sound = _tell_findings(operator, number, found) and sound
    finally:
        if freed.looked_at:
            amount = _amount(freed.files, freed.size_bytes)
            where = f"in {freed.buckets:,} of {freed.looked_at:,} buckets"
            typer.echo(f"{'would free' if dry_run else 'freed'} {amount} {where}")
    if not sound:
        raise typer.Exit(_FAILED)


inspect = typer.Typer(
    name="inspect", help="Look inside what Penstock stores.", no_args_is_help=True, add_completion=False
)
app.add_typer(inspect)


@inspect.callback()
def _inspect() -> None:
    """Look inside what Penstock stores."""


@inspect.command()
def state(
    path: StateArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    checkpoint: CheckpointOption = None,
    retain_versions: RetainOption = _RETAIN_VERSIONS,
    debug: DebugOption = False,
) -> None:
    """Show versions, chains, sizes, damage and garbage of every bucket.

    Every file is read and checked. Damage ends with exit code 1.
    """
    with _errors(debug=debug):
        surveys = list(_surveys(path, checkpoint, retain_versions))
    sound = not any(found.damage or operator.damage for operator, _, found in surveys)
    if as_json:
        typer.echo(json.dumps({"buckets": [_as_json(*entry) for entry in surveys]}, indent=2))
    else:
        _print_tables(surveys)
        for entry in surveys:
            _tell_findings(*entry)
    if not sound:
        raise typer.Exit(_FAILED)


@inspect.command()
def block(
    file: Annotated[Path, typer.Argument(help="A p-unit of state, or what BlockWriter writes.")],
    why: Annotated[
        bool, typer.Option("--why", help="Show what was considered, and what it would cost.")
    ] = False,
    goal: Annotated[
        str, typer.Option(help="fast, balanced or small: the goal that --why counts for.")
    ] = "balanced",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show how each column of a file of blocks is coded, and why."""
    with _errors(debug=debug):
        from penstock.jobs import inspect_block as job

        if not as_json:
            job.show(file, goal, why=why, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
            return
        found = [
            job.describe(*entry) | (job.reasons(entry[2], goal) if why else {})
            for entry in job.blocks_of(file)
        ]
        typer.echo(json.dumps({"columns": found}, indent=2))


def _surveys(
    path: str, checkpoint: str | None, retain_versions: int
) -> Iterator[tuple[Operator, int, BucketSurvey]]:
    """Survey all buckets at `path`, of the checkpoint's query if there is one; with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from penstock.checkpointing.files import open_files
    from penstock.state_store.survey import find_operators, survey

    operators = find_operators(open_files(path))
    committed: dict[str, Pointer] = {}
    if checkpoint is not None:
        from penstock.jobs.committed import committed_in

        operators, committed = committed_in(checkpoint, operators)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("looking", total=sum(len(operator.buckets) for operator in operators))
        for operator in operators:
            for number, bucket in enumerate(operator.buckets):
                progress.update(bar, description=f"{operator.name} {number + 1:,}/{len(operator.buckets):,}")
                pointer = committed.get(bucket.location)
                yield operator, number, survey(bucket, committed=pointer, retain_versions=retain_versions)
                progress.advance(bar)


def _tell_findings(operator: Operator, number: int, found: BucketSurvey) -> bool:
    """Write what is wrong with a bucket, and with what it shares with others; say whether nothing is."""
    for damage in (*(operator.damage if number == 0 else ()), *found.damage):
        typer.secho(f"{damage.file}: {damage.fact}", err=True, fg=typer.colors.RED)
    if found.withheld:
        typer.secho(
            f"{found.location}: no garbage is collected: {found.withheld}", err=True, fg=typer.colors.YELLOW
        )
    return not (operator.damage or found.damage or found.withheld)


def _print_tables(surveys: list[tuple[Operator, int, BucketSurvey]]) -> None:
    """Write one table for each operator."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    for operator in dict.fromkeys(operator for operator, _, _ in surveys):
        table = Table(title=Text(operator.location), title_justify="left", title_style="bold")
        for column in ("bucket", "newest", "proven", "versions"):
            table.add_column(column)
        for column in ("chain", "chain size", "rows", "waiting", "files", "size", "garbage"):
            table.add_column(column, justify="right")
        for found in (found for other, _, found in surveys if other is operator):
            style = "red" if found.damage else "yellow" if found.withheld else None
            table.add_row(*(Text(cell) for cell in _cells(found)), style=style)
        console.print(table)


def _cells(found: BucketSurvey) -> list[str]:
    chain = found.chain
    newest = ", ".join(_short(pointer) for pointer in found.newest)
    return [
        found.name,
        newest or "-",
        _short(found.proven) if found.proven else "-",
        _versions(list(found.versions)),
        f"{chain.base_files} + {chain.deltas}" if chain else "-",
        _size(chain.base_bytes + chain.delta_bytes) if chain else "-",
        *("-" if number is None else f"{number:,}" for number in (found.rows, found.waiting)),
        f"{found.files:,}",
        _size(found.size_bytes),
        f"{len(found.garbage):,} ({_size(found.garbage_bytes)})" if found.garbage else "-",
    ]


def _as_json(operator: Operator, _: int, found: BucketSurvey) -> dict[str, object]:
    def pointer(one: Pointer | None) -> dict[str, object] | None:
        return {"version": one.version, "file_id": one.file_id} if one else None

    chain = found.chain
    return {
        "location": found.location,
        "query": operator.query,
        "operator": operator.name,
        "bucket": found.name,
        "files": found.files,
        "size_bytes": found.size_bytes,
        "newest": [pointer(one) for one in found.newest],
        "proven": pointer(found.proven),
        "likely": pointer(found.likely),
        "versions": list(found.versions),
        "chain": chain
        and {
            "base_files": chain.base_files,
            "base_bytes": chain.base_bytes,
            "deltas": chain.deltas,
            "delta_bytes": chain.delta_bytes,
        },
        "rows": found.rows,
        "waiting": found.waiting,
        "garbage_files": len(found.garbage),
        "garbage_bytes": found.garbage_bytes,
        "withheld": found.withheld,
        "damage": [{"file": one.file, "fact": one.fact} for one in (*operator.damage, *found.damage)],
    }


def _short(pointer: Pointer) -> str:
    return f"{pointer.version}-{pointer.file_id[:6]}"


def _versions(versions: list[int]) -> str:
    if not versions:
        return "-"
    if len(versions) == versions[-1] - versions[0] + 1:
        return f"{versions[0]}..{versions[-1]}" if len(versions) > 1 else str(versions[0])
    return f"{len(versions)} of {versions[0]}..{versions[-1]}"


def _amount(files: int, size_bytes: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'}, {_size(size_bytes)}"


def _size(size_bytes: int) -> str:
    from rich.filesize import decimal

    return decimal(size_bytes)


def main() -> None:
    """Run the command line; the entry point of the ``penstock`` script."""
    app()


if __name__ == "__main__":
    main()
