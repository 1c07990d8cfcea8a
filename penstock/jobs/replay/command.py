"""``penstock replay``: runs recorded micro-batches again, and shows what differs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.jobs.commands.common import FAILED, DebugOption, JsonOption, console, errors

if TYPE_CHECKING:
    from penstock.jobs.replay.comparison import Difference
    from penstock.jobs.replay.run import ReplayedBatch

__all__ = ["replay"]


def replay(
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="CHECKPOINT", help="The pipeline's query.checkpoint.", show_default=False),
    ],
    pipeline: Annotated[
        str,
        typer.Option(
            "--pipeline",
            "-p",
            metavar="PIPELINE",
            help="The YAML file of the pipeline, or the name of a packaged example.",
            show_default=False,
        ),
    ],
    first: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="BATCH",
            min=0,
            help="The first micro-batch; by default the oldest that can run again.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="BATCH",
            min=0,
            help="The last micro-batch; by default the newest.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show what this policy would have done.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override a field.", show_default=False),
    ] = None,
    shown: Annotated[
        int, typer.Option("--rows", min=0, help="The maximum number of rows to show for each difference.")
    ] = 3,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run recorded micro-batches of a pipeline again, without Spark, and show what differs.

    The rows come from the pipeline's sources, the state from its versions, and the time from the recorded
    clock. The results are compared with the rows in the sink, answers to requests with the answers that
    clients got, the new versions with the recorded versions, and counts and staleness with the metrics file.
    Nothing is written to the checkpoint, its state, the sources or the sink. The exit code is 1 if anything
    differs.

    With --policy, the same rows arrive at the same times, but a different policy serves the keys. The table
    then shows staleness and counts of both policies.

    \b
    penstock replay checkpoint --pipeline quotes.yaml --from 100 --to 120
    penstock replay checkpoint --pipeline quotes.yaml --policy freshest
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        if policy is None:
            differs = _compare(checkpoint, pipeline, first, last, overrides or [], shown, as_json=as_json)
        else:
            _answer(checkpoint, pipeline, first, last, overrides or [], policy, as_json=as_json)
            differs = False
    if differs:
        raise typer.Exit(FAILED)


def _compare(
    location: str,
    reference: str,
    first: int | None,
    last: int | None,
    overrides: list[str],
    shown: int,
    *,
    as_json: bool,
) -> bool:
    """Replay as recorded, and show what differs; return whether anything does."""
    from penstock.conf.pipeline import load_document
    from penstock.jobs.cluster.modules import import_beside
    from penstock.jobs.replay.comparison import Comparison
    from penstock.jobs.replay.query import open_query
    from penstock.jobs.replay.recording import Checkpoint
    from penstock.jobs.replay.run import Replay

    loaded, document = load_document(reference, overrides)
    import_beside(loaded, reference)
    opened = Checkpoint.open(location)
    found: list[tuple[ReplayedBatch, list[str], list[Difference]]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-replay-", ignore_cleanup_errors=True) as scratch:
        query = open_query(loaded, document, opened, scratch)
        run = Replay(query, query, scratch)
        comparison = Comparison(run, loaded, shown)
        found += [
            (batch, comparison.list_records(batch), comparison.differences(batch))
            for batch in run.run(query.recording.choose(first, last))
        ]
    if as_json:
        typer.echo(json.dumps([
            {**_facts(batch), "compared": compared, "differences": [
                {"what": one.what, "recorded": one.recorded, "replayed": one.replayed,
                 "examples": list(one.examples)} for one in differences]}
            for batch, compared, differences in found
        ], indent=2))  # fmt: skip
    else:
        _show(found)
    return any(differences for _, _, differences in found)


def _facts(batch: ReplayedBatch) -> dict[str, Any]:
    metrics = batch.metrics
    return {
        "batch": batch.recorded.number,
        "rows_in": metrics.rows_in,
        "rows_out": batch.results.num_rows,
        "requests": metrics.requests,
        "conflated": metrics.conflated,
        "emitted": metrics.emitted,
        "waiting_keys": metrics.waiting_keys,
        "staleness_ms": metrics.application_staleness.summary(),
    }


def _show(found: list[tuple[ReplayedBatch, list[str], list[Difference]]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for head in ("batch", "rows in", "rows out", "waiting", "p50 ms", "p95 ms"):
        table.add_column(head, justify="right")
    table.add_column("differences")
    for batch, compared, differences in found:
        facts = _facts(batch)
        stale = facts["staleness_ms"]
        text = "; ".join(map(str, differences)) or f"none in {', '.join(compared) or 'nothing'}"
        table.add_row(
            str(facts["batch"]), *(f"{facts[name]:,}" for name in ("rows_in", "rows_out", "waiting_keys")),
            f"{stale['p50']:,.1f}", f"{stale['p95']:,.1f}",
            Text(text, style="red" if differences else "green"),
        )  # fmt: skip
    out = console()
    out.print(table)
    for batch, _, differences in found:
        for one in differences:
            for line in one.examples:
                out.print(Text(f"{batch.recorded.number} {one.what} {line}"))
    if not all(batch.has_clock for batch, _, _ in found):
        out.print(
            "The operator's results do not follow the clock, so it is not recorded: staleness is as of each "
            "micro-batch's end."
        )
    changed = [batch.recorded.number for batch, _, differences in found if differences]
    out.print(
        f"{len(changed)} of {len(found)} micro-batches differ, the first is {changed[0]}"
        if changed
        else f"micro-batches as recorded: {len(found)}"
    )
    for what, records in (("rows", "the sink no longer has them"), ("counts", "the metrics file lacks them")):
        if lack := sum(what not in compared for _, compared, _ in found):
            out.print(Text(f"{what} of {lack} micro-batches are not compared: {records}", style="yellow"))


def _answer(
    location: str,
    reference: str,
    first: int | None,
    last: int | None,
    overrides: list[str],
    policy: str,
    *,
    as_json: bool,
) -> None:
    """Replay with the recorded and with another policy, and show both."""
    from penstock.conf.pipeline import load_document
    from penstock.errors import InvalidUsageError
    from penstock.jobs.cluster.modules import import_beside
    from penstock.jobs.replay.query import open_query
    from penstock.jobs.replay.recording import Checkpoint
    from penstock.jobs.replay.run import Replay
    from penstock.operators.scheduling.metrics import BatchMetrics
    from penstock.operators.scheduling.policy import Policy
    from penstock.operators.update_stream.options import parse_choice

    chosen = Policy(parse_choice("policy", policy, Policy))
    loaded, document = load_document(reference, overrides)
    import_beside(loaded, reference)
    steps = [one for one in ("queue", "union", "window") if getattr(loaded, one) is not None]
    step = steps[0] if steps else ""
    if not steps or (step == "window" and loaded.window is not None and loaded.window.mode == "append"):
        raise InvalidUsageError(
            "no key waits by a policy in this pipeline",
            hint="leave out --policy: it is for queues, unions, and windows in lazy or eager mode",
        )
    opened = Checkpoint.open(location)
    rows: dict[str, list[ReplayedBatch]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-replay-", ignore_cleanup_errors=True) as scratch:
        recorded = open_query(loaded, document, opened, str(Path(scratch, "recorded")))
        numbers = recorded.recording.choose(first, last)
        was = str(getattr(loaded, step).policy)
        rows[was] = list(Replay(recorded, recorded, str(Path(scratch, "recorded"))).run(numbers))
        if str(chosen) != was:
            other, place = load_document(reference, [*overrides, f"{step}.policy={chosen}"])
            target = str(Path(scratch, "other"))
            query = open_query(other, place, opened, target, ignored="policy")
            rows[str(chosen)] = list(Replay(query, recorded, target, chosen).run(numbers))
    totals = {
        name: (sum(batch.results.num_rows for batch in batches),
               BatchMetrics.merge([batch.metrics for batch in batches]), batches[-1].metrics.waiting_keys)
        for name, batches in rows.items()
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps({
            name: {"rows_out": out, "rows_in": metrics.rows_in, "conflated": metrics.conflated,
                   "emitted": metrics.emitted, "waiting_keys": waiting,
                   "staleness_ms": metrics.application_staleness.summary(),
                   "batches": [_facts(batch) for batch in rows[name]]}
            for name, (out, metrics, waiting) in totals.items()
        }, indent=2))  # fmt: skip
        return
    _show_policies(numbers, totals, was)


def _show_policies(numbers: range, totals: dict[str, Any], recorded: str) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"Application staleness in ms of micro-batches {numbers[0]} to {numbers[-1]}",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("policy")
    for head in ("avg", "p50", "p95", "max", "rows in", "rows out", "conflated", "waiting"):
        table.add_column(head, justify="right")
    for name, (out, metrics, waiting) in totals.items():
        stale = metrics.application_staleness.summary()
        table.add_row(
            f"{name} (recorded)" if name == recorded else name,
            *(f"{stale[one]:,.1f}" for one in ("avg", "p50", "p95", "max")),
            *(f"{count:,}" for count in (metrics.rows_in, out, metrics.conflated, waiting)),
        )
    console().print(table)
