"""``penstock inspect state`` and ``penstock gc``: versions, chains, damage and garbage of every bucket."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

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


def survey_buckets(
    path: str, checkpoint: str | None, retain_versions: int
) -> Iterator[tuple[Operator, int, BucketSurvey]]:
    """Survey all buckets at `path`, of the checkpoint's query if there is one; with a bar on a terminal."""
    operators = find_operators(open_files(path))
    committed: dict[str, Pointer] = {}
    if checkpoint is not None:
        from penstock.jobs.inspect.committed import read_committed

        operators, committed = read_committed(checkpoint, operators)
        # A power cut may undo the commit, and then the garbage would be needed again.
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


def tell_findings(operator: Operator, number: int, found: BucketSurvey) -> bool:
    """Print the damage of a bucket and of its operator's shared files; return True if it is sound."""
    for damage in (*(operator.damage if number == 0 else ()), *found.damage):
        typer.secho(f"{damage.file}: {damage.fact}", err=True, fg=typer.colors.RED)
    if found.withheld:
        typer.secho(
            f"{found.location}: no garbage is collected: {found.withheld}", err=True, fg=typer.colors.YELLOW
        )
    return not (operator.damage or found.damage or found.withheld)


def show_buckets(surveys: list[tuple[Operator, int, BucketSurvey]]) -> None:
    """Write one table for each operator."""
    out = console()
    for operator in dict.fromkeys(operator for operator, _, _ in surveys):
        own = [found for other, _, found in surveys if other is operator]
        written = max((found.written_us for found in own if found.written_us), default=None)
        title = f"{operator.location}\n{operator.name} of query {operator.query_label}"
        title += f", last written {utc_time(written)}" if written else ""
        table = Table(title=Text(title), title_justify="left", title_style="bold")
        for column in ("bucket", "newest", "proven", "versions"):
            table.add_column(column)
        for column in ("chain", "chain size", "rows", "waiting", "files", "size", "garbage"):
            table.add_column(column, justify="right")
        for found in own:
            style = "red" if found.damage else "yellow" if found.withheld else None
            table.add_row(*(Text(cell) for cell in _table_row(found)), style=style)
        out.print(table)


def _table_row(found: BucketSurvey) -> list[str]:
    chain = found.chain
    newest = ", ".join(_short(pointer) for pointer in found.newest)
    return [
        found.name,
        newest or "-",
        _short(found.proven) if found.proven else "-",
        version_range(list(found.versions)),
        f"{chain.base_files} + {chain.deltas}" if chain else "-",
        size(chain.base_bytes + chain.delta_bytes) if chain else "-",
        *("-" if number is None else f"{number:,}" for number in (found.rows, found.waiting)),
        f"{found.files:,}",
        size(found.size_bytes),
        f"{len(found.garbage):,} ({size(found.garbage_bytes)})" if found.garbage else "-",
    ]


def describe_bucket(operator: Operator, _: int, found: BucketSurvey) -> dict[str, object]:
    """Return all facts of a bucket, for JSON."""

    def pointer(one: Pointer | None) -> dict[str, object] | None:
        return {"version": one.version, "file_id": one.file_id} if one else None

    chain = found.chain
    return {
        "location": found.location,
        "query": operator.query,
        "query_name": operator.query_name,
        "operator": operator.name,
        "bucket": found.name,
        "files": found.files,
        "size_bytes": found.size_bytes,
        "written_us": found.written_us,
        "newest": [pointer(entry) for entry in found.newest],
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
        "damage": [
            {"file": damage.file, "fact": damage.fact} for damage in (*operator.damage, *found.damage)
        ],
    }


def _short(pointer: Pointer) -> str:
    return f"{pointer.version}-{pointer.file_id[:6]}"


def version_range(versions: Sequence[int]) -> str:
    """Format ascending versions for people."""
    if not versions:
        return "-"
    if len(versions) == versions[-1] - versions[0] + 1:
        return f"{versions[0]}..{versions[-1]}" if len(versions) > 1 else str(versions[0])
    return f"{len(versions)} of {versions[0]}..{versions[-1]}"
