"""``penstock inspect pstream`` and ``penstock gc`` of a p-stream."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from penstock.checkpointing.p_stream import PStream, read_blocks
from penstock.checkpointing.p_stream.segments import pieces
from penstock.checkpointing.p_stream.survey import LogFacts, Survey, delete_garbage, survey_p_stream
from penstock.errors import InvalidUsageError
from penstock.jobs.commands.common import amount, size, utc_time
from penstock.jobs.inspect.block import describe_column

__all__ = [
    "check_rows",
    "collect_garbage",
    "describe_p_stream",
    "newest_columns",
    "open_and_survey",
    "show_p_stream",
    "tell_damage",
]


def open_and_survey(path: str) -> tuple[PStream, Survey]:
    """Return a p-stream and its survey.

    Raises
    ------
    InvalidUsageError
        If there is no p-stream.
    CorruptDataError, UnavailableError
        If the p-stream's log is damaged, or the file system refuses.
    """
    stream = PStream(path)
    return stream, survey_p_stream(stream)


def newest_columns(stream: PStream) -> list[dict[str, Any]]:
    """Describe the encoding of the columns of the newest p-unit; empty if there are no rows.

    Raises
    ------
    CorruptDataError, UnavailableError
        If the p-unit is damaged or missing, or the file system refuses.
    """
    newest = list(pieces(stream.log.commits, stream.end - 1, stream.end)) if stream.log.commits else []
    return [
        describe_column(f"{piece.segment} at {piece.at}", name, block.column(name))
        for piece, block in read_blocks(stream.segments, newest, stream.schema)
        for name in block.names
    ]


def check_rows(stream: PStream) -> None:
    """Read all kept rows, and check every column; show a progress bar on a terminal.

    Raises
    ------
    CorruptDataError
        If a column is damaged; the error names the first damaged column.
    UnavailableError
        If the file system refuses.
    """
    every = list(pieces(stream.log.commits, stream.start, stream.end))
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("checking", total=len(every))
        for _, block in read_blocks(stream.segments, every, stream.schema):
            block.read()
            progress.advance(bar)


def describe_p_stream(survey: Survey, columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all facts about a p-stream, as JSON values."""
    return {
        "location": survey.location,
        "identity": survey.identity,
        "direct_io": survey.direct_io,
        "schema": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in survey.schema
        ],
        "start": survey.start,
        "end": survey.end,
        "entries": survey.entries,
        "commits": len(survey.commits),
        "segments": len(survey.segments),
        "p_units": sum(len(segment.units) for segment in survey.segments),
        "segment_bytes": survey.segment_bytes,
        "size_bytes": survey.size_bytes,
        "bytes_per_row": _bytes_per_row(survey),
        "first_commit_us": survey.commits[0].time_us if survey.commits else None,
        "last_commit_us": survey.commits[-1].time_us if survey.commits else None,
        "columns": columns,
        "writers": [
            {
                "name": writer.name,
                "batch": writer.batch,
                "session": writer.session,
                "clock": dict(writer.clock),
                "time_us": writer.time_us,
            }
            for writer in survey.writers
        ],
        "readers": [
            {"name": reader.name, "offset": reader.offset, "unreleased": reader.unreleased}
            for reader in survey.readers
        ],
        "releasable_rows": _spare_rows(survey),
        "releasable_bytes": _spare_bytes(survey),
        "garbage_files": len(survey.garbage),
        "garbage_bytes": survey.garbage_bytes,
        "pending_files": survey.pending_files,
        "pending_bytes": survey.pending_bytes,
        "damage": list(survey.damage),
        "update_log": None if survey.log is None else _describe_log(survey.log),
    }


def _describe_log(facts: LogFacts) -> dict[str, Any]:
    return {
        **facts.log.to_meta(),
        "compacted_end": facts.end,
        "keys": facts.keys,
        "deletes": facts.deletes,
        "tail_rows": facts.tail,
        "superseded_share_at_most": round(facts.superseded_share, 4),
        "kept_bytes": facts.kept_bytes,
    }


def _log_rows(facts: LogFacts) -> dict[str, str]:
    deletes = "" if facts.log.delete_when is None else f"; deleted when {facts.log.delete_when}"
    return {
        "update log": f"the newest of ({', '.join(facts.log.key)}) by {facts.log.time}{deletes}",
        "compacted": f"rows before {facts.end:,}: {facts.keys:,} keys, {facts.deletes:,} of them deletes",
        "tail": f"{facts.tail:,} rows; at most {facts.superseded_share:.0%} of all rows are superseded",
        "replaced": f"{size(facts.kept_bytes)}, which the next compaction deletes",
    }


def _bytes_per_row(survey: Survey) -> float | None:
    return round(survey.segment_bytes / survey.committed_rows, 3) if survey.committed_rows else None


def _spare_rows(survey: Survey) -> int:
    return max((commit.end for commit in survey.spare), default=survey.start) - survey.start


def _spare_bytes(survey: Survey) -> int:
    return sum(commit.size_bytes for commit in survey.spare)


def show_p_stream(console: Console, survey: Survey, columns: list[dict[str, Any]]) -> None:
    """Print the facts, and tables of columns, writers and readers."""
    console.print(Text(survey.location, style="bold"))
    console.print(_facts(survey))
    console.print(_columns_table(survey, columns))
    if survey.writers:
        console.print(_writers_table(survey))
    if survey.readers:
        console.print(_readers_table(survey))


def _facts(survey: Survey) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan")
    grid.add_column()
    per_row = _bytes_per_row(survey)
    units = sum(len(segment.units) for segment in survey.segments)
    rows = survey.end - survey.start if survey.log is None else survey.committed_rows
    kept = f"{survey.start:,} to {survey.end:,}: {rows:,}"
    if survey.commits:
        first, last = survey.commits[0], survey.commits[-1]
        kept += f", committed from {utc_time(first.time_us)} to {utc_time(last.time_us)}"
    facts = {
        "identity": survey.identity,
        "rows": kept,
        "commits": f"{len(survey.commits):,} with rows; entry {survey.entries:,} is the log's newest",
        "segments": f"{len(survey.segments):,} with {units:,} p-units, {size(survey.segment_bytes)}",
        "bytes a row": "-" if per_row is None else f"{per_row:,.2f}",
        "on disk": size(survey.size_bytes),
        "gc frees": f"{_spare_rows(survey):,} rows, {size(_spare_bytes(survey))}",
        "garbage": amount(len(survey.garbage), survey.garbage_bytes),
    }
    for name, users in (("writers", survey.writers), ("readers", survey.readers)):
        if not users:
            facts[name] = "none"
    if survey.direct_io:
        facts["direct I/O"] = "yes"
    if survey.log is not None:
        facts |= _log_rows(survey.log)
    if survey.pending_files:
        facts["not committed"] = amount(survey.pending_files, survey.pending_bytes)
    for name, text in facts.items():
        grid.add_row(name, Text(text))
    return grid


def _columns_table(survey: Survey, columns: list[dict[str, Any]]) -> Table:
    rows = f", in the newest p-unit ({columns[0]['rows']:,} rows)" if columns else ""
    table = _table(f"columns{rows}", ("column", "type", "nulls"), ("raw", "coded", "ratio", "bytes a row"))
    table.add_column("streams")
    coded = {column["column"]: column for column in columns}
    for field in survey.schema:
        cells = [field.name, str(field.type), "yes" if field.nullable else "no"]
        if column := coded.get(field.name):
            streams = "\n".join(
                f"{stream['stream']}: {stream['cascade']} ({size(stream['bytes'])})"
                for stream in column["streams"]
            )
            raw, packed = column["raw_bytes"], column["coded_bytes"]
            cells += [size(raw), size(packed), f"{raw / packed:.1f}", f"{packed / column['rows']:.2f}"]
            cells.append(streams)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _writers_table(survey: Survey) -> Table:
    table = _table("writers", ("writer",), ("batch",))
    table.add_column("last commit")
    table.add_column("clock")
    for writer in survey.writers:
        # `penstock ingest` also stores checksums of files' heads, which are not positions.
        positions = {name: at for name, at in writer.clock.items() if not name.startswith("head:")}
        clock = "\n".join(f"{source} {position:,}" for source, position in positions.items())
        batch, time = (f"{writer.batch:,}", "rows are gone") if writer.batch >= 0 else ("-", "-")
        time = time if writer.time_us is None else utc_time(writer.time_us)
        table.add_row(Text(writer.name), batch, time, Text(clock or "-"))
    return table


def _readers_table(survey: Survey) -> Table:
    table = _table("readers", ("reader",), ("released up to", "rows not released"))
    for reader in survey.readers:
        table.add_row(Text(reader.name), f"{reader.offset:,}", f"{reader.unreleased:,}")
    return table


def _table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def tell_damage(survey: Survey) -> None:
    """Print the damage."""
    for damage in survey.damage:
        typer.secho(damage, err=True, fg=typer.colors.RED)


def collect_garbage(path: str, dropped: Collection[str], *, dry_run: bool) -> bool:
    """Delete the garbage, or list it; return whether nothing is damaged.

    Parameters
    ----------
    path : str
        The p-stream.
    dropped : collection of str
        The names of readers to unsubscribe.
    dry_run : bool
        Whether to delete nothing.

    Raises
    ------
    InvalidUsageError
        If there is no such p-stream, or no such reader.
    CorruptDataError, UnavailableError
        If the p-stream's log is damaged, or the file system refuses.
    """
    stream = PStream(path)
    names = stream.readers()
    if unknown := [name for name in dropped if name not in names]:
        raise InvalidUsageError(
            "the p-stream has no such reader", reader=", ".join(unknown), known=", ".join(names) or "none"
        )
    survey = survey_p_stream(stream, without=dropped)  # before the readers' files are deleted, to count them
    segments = [segment for commit in survey.spare for segment in commit.segments]
    size_bytes = sum(segment.size_bytes for segment in segments) + survey.garbage_bytes
    if not dry_run:
        for name in dropped:
            stream.unsubscribe(name)
        stream.trim(now=True)
        for _ in delete_garbage(survey):
            pass
    for name in dropped:
        typer.echo(f"reader {name}: {'would be ' if dry_run else ''}dropped at row {names[name]:,}")
    typer.echo(
        f"{'would free' if dry_run else 'freed'} {_spare_rows(survey):,} rows, "
        f"{amount(len(segments) + len(survey.garbage), size_bytes)}"
    )
    tell_damage(survey)
    return not survey.damage
