"""``penstock inspect graph``: plan, p-streams, queries, markers and newest recovery of a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from penstock.checkpointing.graph.facts import GraphFacts

__all__ = ["show_graph"]


def show_graph(console: Console, facts: GraphFacts) -> None:
    """Print a graph's plan, and below it tables with the other facts in its checkpoint."""
    markers = facts.markers
    streams: list[RenderableType] = [_streams(facts), Text(), _readers(facts), Text()]
    parts: list[RenderableType] = [
        Text(facts.explanation),
        _queries(facts),
        Text(),
        *(streams if facts.streams else []),
        Text("markers: " + ", ".join(f"{count:,} {kind}" for kind, count in asdict(markers).items())),
        Text(_recovery(facts)),
    ]
    console.print(Group(*parts))


def _table(title: str, *columns: str, numbers: int) -> Table:
    """Return an empty table whose last columns are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at >= len(columns) - numbers else "left")
    return table


def _queries(facts: GraphFacts) -> Table:
    table = _table("queries", "query", "writes", "last planned batch", "last committed batch", numbers=2)
    for query in facts.queries:
        cells = [query.name, query.writes or "the sink", _batch(query.planned), _batch(query.committed)]
        table.add_row(*map(Text, cells))
    return table


def _streams(facts: GraphFacts) -> Table:
    table = _table("p-streams", "p-stream", "written by", "start", "end", "commits", "size", numbers=4)
    for stream in facts.streams:
        who = "this graph" if stream.own else "others"
        cells = [
            stream.name,
            who,
            f"{stream.start:,}",
            f"{stream.end:,}",
            f"{stream.commits:,}",
            decimal(stream.size_bytes),
        ]
        table.add_row(*map(Text, cells))
    return table


def _readers(facts: GraphFacts) -> Table:
    table = _table("readers", "p-stream", "reader", "query", "released", "committed", "lag", numbers=3)
    for stream in facts.streams:
        for reader in stream.readers:
            numbers = (reader.released, reader.committed, reader.lag)
            table.add_row(*map(Text, [stream.name, reader.name, reader.query, *(f"{n:,}" for n in numbers)]))
    return table


def _batch(number: int) -> str:
    return "-" if number < 0 else f"{number:,}"


def _recovery(facts: GraphFacts) -> str:
    report = facts.recovery
    if report is None:
        return "last recovery: none"
    when = datetime.fromtimestamp(report["time_us"] / 1e6, UTC).isoformat(timespec="seconds")
    phases = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in report["phases_s"].items())
    state = f", {report['buckets']:,} buckets of state found" if report.get("buckets") else ""
    return f"last recovery: {when}, {report['rows_replayed']:,} rows replayed{state}; {phases}"
