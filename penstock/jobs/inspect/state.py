"""``penstock inspect state`` and ``penstock gc``: versions, chains, damage and garbage of every bucket."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from penstock.checkpointing.files import open_files
from penstock.checkpointing.spark_checkpoint import make_durable
from penstock.jobs.commands.common import console, size, utc_time
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.location import Operator, find_operators
from penstock.state_store.survey import BucketSurvey, survey_bucket

__all__ = ["describe_bucket", "show_buckets", "survey_buckets", "tell_findings", "version_range"]

_UNLIMITED: Final = 10_000
"""More characters than any table has in a line."""


def survey_buckets(
    path: str, checkpoint: str | None, retain_versions: int
) -> Iterator[tuple[Operator, int, BucketSurvey]]:
    """Survey the buckets at `path`, or only those of a checkpoint's query.

    On a terminal, show a progress bar.
    """
    operators = find_operators(open_files(path))
    committed: dict[str, Pointer] = {}
    if checkpoint is not None:
        from penstock.jobs.inspect.committed import read_committed

        operators, committed = read_committed(checkpoint, operators)
        # Sync the checkpoint first: if a power cut undid the commit, the garbage would be needed again.
        make_durable(checkpoint)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("looking", total=sum(len(operator.buckets) for operator in operators))
        for operator in operators:
            for number, bucket in enumerate(operator.buckets):
                progress.update(bar, description=f"{operator.name} {number + 1:,}/{len(operator.buckets):,}")
                pointer = committed.get(bucket.location)
                yield (
                    operator,
                    number,
                    survey_bucket(bucket, committed=pointer, retain_versions=retain_versions),
                )
                progress.advance(bar)


def tell_findings(operator: Operator, number: int, survey: BucketSurvey) -> bool:
    """Print the damage of a bucket and of its operator's shared files; return whether nothing is damaged."""
    for damage in (*(operator.damage if number == 0 else ()), *survey.damage):
        typer.secho(f"{damage.file}: {damage.fact}", err=True, fg=typer.colors.RED)
    if survey.withheld:
        typer.secho(
            f"{survey.location}: no garbage is collected: {survey.withheld}", err=True, fg=typer.colors.YELLOW
        )
    return not (operator.damage or survey.damage or survey.withheld)


def show_buckets(surveys: list[tuple[Operator, int, BucketSurvey]]) -> None:
    """Print one table for each operator."""
    out = console()
    for operator in dict.fromkeys(operator for operator, _, _ in surveys):
        own = [survey for other, _, survey in surveys if other is operator]
        written = max((survey.written_us for survey in own if survey.written_us), default=None)
        title = f"{operator.location}\n{operator.name} of query {operator.query_label}"
        title += f", last written {utc_time(written)}" if written else ""
        table = _table(title, own, narrow=False)
        if out.measure(table, options=out.options.update(max_width=_UNLIMITED)).maximum > out.width:
            table = _table(title, own, narrow=True)
        out.print(table)
    if out.is_terminal:
        out.print("penstock inspect state --help explains the columns.", style="dim")


def _table(title: str, surveys: list[BucketSurvey], *, narrow: bool) -> Table:
    """Return a table with a row for each bucket; in a narrow table, related facts are below each other."""
    expires = any(survey.expired is not None for survey in surveys)
    counts = ("rows", "waiting", *(("expired",) if expires else ()))
    related = (
        ("bucket",), ("newest", "proven"), ("versions",), ("chain", "chain size"), counts, ("files", "size"),
        ("garbage",),
    )  # fmt: skip
    groups = related if narrow else tuple((name,) for names in related for name in names)
    table = Table(
        title=Text(title), title_justify="left", title_style="bold", show_edge=not narrow, pad_edge=not narrow
    )
    for names in groups:
        left = names[0] in ("bucket", "newest", "proven", "versions")
        table.add_column("\n".join(names), justify="left" if left else "right")
    for survey in surveys:
        style = "red" if survey.damage else "yellow" if survey.withheld else None
        cells = iter(_table_row(survey, expires=expires))
        table.add_row(*(Text("\n".join(islice(cells, len(names)))) for names in groups), style=style)
    return table


def _table_row(survey: BucketSurvey, *, expires: bool) -> list[str]:
    chain = survey.chain
    counts = (survey.rows, survey.waiting, *((survey.expired,) if expires else ()))
    newest = ", ".join(_short(pointer) for pointer in survey.newest)
    return [
        survey.name,
        newest or "-",
        _short(survey.proven) if survey.proven else "-",
        version_range(list(survey.versions)),
        f"{chain.base_files} + {chain.deltas}" if chain else "-",
        size(chain.base_bytes + chain.delta_bytes) if chain else "-",
        *("-" if number is None else f"{number:,}" for number in counts),
        f"{survey.files:,}",
        size(survey.size_bytes),
        f"{len(survey.garbage):,} ({size(survey.garbage_bytes)})" if survey.garbage else "-",
    ]


def describe_bucket(operator: Operator, _: int, survey: BucketSurvey) -> dict[str, object]:
    """Return all facts about a bucket, as JSON values."""

    def pointer(one: Pointer | None) -> dict[str, object] | None:
        return {"version": one.version, "file_id": one.file_id} if one else None

    chain = survey.chain
    return {
        "location": survey.location,
        "query": operator.query,
        "query_name": operator.query_name,
        "operator": operator.name,
        "bucket": survey.name,
        "files": survey.files,
        "size_bytes": survey.size_bytes,
        "written_us": survey.written_us,
        "newest": [pointer(entry) for entry in survey.newest],
        "proven": pointer(survey.proven),
        "likely": pointer(survey.likely),
        "versions": list(survey.versions),
        "chain": chain
        and {
            "base_files": chain.base_files,
            "base_bytes": chain.base_bytes,
            "deltas": chain.deltas,
            "delta_bytes": chain.delta_bytes,
        },
        "rows": survey.rows,
        "waiting": survey.waiting,
        "expired": survey.expired,
        "garbage_files": len(survey.garbage),
        "garbage_bytes": survey.garbage_bytes,
        "withheld": survey.withheld,
        "damage": [
            {"file": damage.file, "fact": damage.fact} for damage in (*operator.damage, *survey.damage)
        ],
    }


def _short(pointer: Pointer) -> str:
    return f"{pointer.version}-{pointer.file_id[:6]}"


def version_range(versions: Sequence[int]) -> str:
    """Format ascending versions as text, such as ``1..6``."""
    if not versions:
        return "-"
    if len(versions) == versions[-1] - versions[0] + 1:
        return f"{versions[0]}..{versions[-1]}" if len(versions) > 1 else str(versions[0])
    return f"{len(versions)} of {versions[0]}..{versions[-1]}"
