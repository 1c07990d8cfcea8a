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
from penstock.checkpointing.p_stream.survey import Survey, delete_garbage, survey_p_stream
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
        If there is none.
    CorruptDataError, UnavailableError
        If its log is damaged, or the file system refuses.
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
    """Read all rows that are kept, and check every column; with a bar on a terminal.

    Raises
    ------
    CorruptDataError
        If one is damaged: the first that is found.
    UnavailableError
        If the file system refuses.
    """
    every = list(pieces(stream.log.commits, stream.start, stream.end))
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("checking", total=len(every))
        for _, block in read_blocks(stream.segments, every, stream.schema):
            block.read()
            progress.advance(bar)


def describe_p_stream(found: Survey, columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all facts, for JSON."""
    return {
        "location": found.location,
        "identity": found.identity,
        "direct_io": found.direct_io,
        "schema": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in found.schema
        ],
        "start": found.start,
        "end": found.end,
        "entries": found.entries,
        "commits": len(found.commits),
        "segments": len(found.segments),
        "p_units": sum(len(segment.units) for segment in found.segments),
        "segment_bytes": found.segment_bytes,
        "size_bytes": found.size_bytes,
        "bytes_per_row": _bytes_per_row(found),
        "first_commit_us": found.commits[0].time_us if found.commits else None,
        "last_commit_us": found.commits[-1].time_us if found.commits else None,
        "columns": columns,
        "writers": [
            {
                "name": writer.name,
                "batch": writer.batch,
                "session": writer.session,
                "clock": dict(writer.clock),
                "time_us": writer.time_us,
            }
            for writer in found.writers
        ],
        "readers": [
            {"name": reader.name, "offset": reader.offset, "lag": reader.lag} for reader in found.readers
        ],
        "releasable_rows": _spare_rows(found),
        "releasable_bytes": _spare_bytes(found),
        "garbage_files": len(found.garbage),
        "garbage_bytes": found.garbage_bytes,
        "pending_files": found.pending_files,
        "pending_bytes": found.pending_bytes,
        "damage": list(found.damage),
    }


def _bytes_per_row(found: Survey) -> float | None:
    return round(found.segment_bytes / found.committed_rows, 3) if found.committed_rows else None


def _spare_rows(found: Survey) -> int:
    return max((commit.end for commit in found.spare), default=found.start) - found.start


def _spare_bytes(found: Survey) -> int:
    return sum(commit.size_bytes for commit in found.spare)


def show_p_stream(console: Console, found: Survey, columns: list[dict[str, Any]]) -> None:
    """Write the facts, and tables of columns, writers and readers."""
    console.print(Text(found.location, style="bold"))
    console.print(_facts(found))
    console.print(_columns_table(found, columns))
    if found.writers:
        console.print(_writers_table(found))
    if found.readers:
        console.print(_readers_table(found))


def _facts(found: Survey) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan")
    grid.add_column()
    per_row = _bytes_per_row(found)
    units = sum(len(segment.units) for segment in found.segments)
    kept = f"{found.start:,} to {found.end:,}: {found.end - found.start:,}"
    if found.commits:
        kept += (
            f", committed from {utc_time(found.commits[0].time_us)} to {utc_time(found.commits[-1].time_us)}"
        )
    rows = {
        "identity": found.identity,
        "rows": kept,
        "commits": f"{len(found.commits):,}; entry {found.entries:,} is the log's newest",
        "segments": f"{len(found.segments):,} with {units:,} p-units, {size(found.segment_bytes)}",
        "bytes a row": "-" if per_row is None else f"{per_row:,.2f}",
        "on disk": size(found.size_bytes),
        "a trim frees": f"{_spare_rows(found):,} rows, {size(_spare_bytes(found))}",
        "garbage": amount(len(found.garbage), found.garbage_bytes),
    }
    for name, users in (("writers", found.writers), ("readers", found.readers)):
        if not users:
            rows[name] = "none"
    if found.direct_io:
        rows["direct I/O"] = "yes"
    if found.pending_files:
        rows["not committed"] = amount(found.pending_files, found.pending_bytes)
    for name, text in rows.items():
        grid.add_row(name, Text(text))
    return grid


def _columns_table(found: Survey, columns: list[dict[str, Any]]) -> Table:
    rows = f", in the newest p-unit ({columns[0]['rows']:,} rows)" if columns else ""
    table = _table(f"columns{rows}", ("column", "type", "nulls"), ("raw", "coded", "ratio", "bytes a row"))
    table.add_column("streams")
    coded = {column["column"]: column for column in columns}
    for field in found.schema:
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


def _writers_table(found: Survey) -> Table:
    table = _table("writers", ("writer",), ("batch",))
    table.add_column("last commit")
    table.add_column("clock")
    for writer in found.writers:
        # `penstock ingest` also stores checksums of files' heads, which are no positions.
        positions = {name: at for name, at in writer.clock.items() if not name.startswith("head:")}
        clock = "\n".join(f"{source} {position:,}" for source, position in positions.items())
        time = "-" if writer.time_us is None else utc_time(writer.time_us)
        table.add_row(
            Text(writer.name), f"{writer.batch:,}" if writer.batch >= 0 else "-", time, Text(clock or "-")
        )
    return table


def _readers_table(found: Survey) -> Table:
    table = _table("readers", ("reader",), ("released up to", "lag in rows"))
    for reader in found.readers:
        table.add_row(Text(reader.name), f"{reader.offset:,}", f"{reader.lag:,}")
    return table


def _table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def tell_damage(found: Survey) -> None:
    """Print the damage."""
    for damage in found.damage:
        typer.secho(damage, err=True, fg=typer.colors.RED)


def collect_garbage(path: str, dropped: Collection[str], *, dry_run: bool) -> bool:
    """Delete the garbage, or list it; return whether nothing is damaged.

    Parameters
    ----------
    path : str
        The p-stream.
    dropped : collection of str
        Readers to unsubscribe.
    dry_run : bool
        Whether to delete nothing.

    Raises
    ------
    InvalidUsageError
        If there is no such p-stream, or no such reader.
    CorruptDataError, UnavailableError
        If its log is damaged, or the file system refuses.
    """
    stream = PStream(path)
    known = stream.readers()
    if unknown := [name for name in dropped if name not in known]:
        raise InvalidUsageError(
            "the p-stream has no such reader", reader=", ".join(unknown), known=", ".join(known) or "none"
        )
    if not dry_run:
        for name in dropped:
            stream.unsubscribe(name)
    found = survey_p_stream(stream, without=dropped)
    segments = [segment for commit in found.spare for segment in commit.segments]
    size_bytes = sum(segment.size_bytes for segment in segments) + found.garbage_bytes
    if not dry_run:
        stream.trim(now=True)
        for _ in delete_garbage(found):
            pass
    for name in dropped:
        typer.echo(f"reader {name}: {'would be ' if dry_run else ''}dropped at row {known[name]:,}")
    typer.echo(
        f"{'would free' if dry_run else 'freed'} {_spare_rows(found):,} rows, "
        f"{amount(len(segments) + len(found.garbage), size_bytes)}"
    )
    tell_damage(found)
    return not found.damage
