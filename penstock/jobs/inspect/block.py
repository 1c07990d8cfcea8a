"""``penstock inspect block``: the encoding of each column in a file of blocks, and the reasons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from penstock.checkpointing.p_unit import MAGIC, tables
from penstock.compression.abc import UnfitError
from penstock.compression.arrow import forms_of, to_streams
from penstock.compression.choice.costs import cost
from penstock.compression.choice.goals import goal_of
from penstock.compression.choice.search import Choice, rank
from penstock.compression.choice.statistics import column_stats, sample_of
from penstock.compression.codecs.registry import cascade_of, encode_stream
from penstock.compression.column import Block, parse_cascade
from penstock.compression.layouts import Layout, is_float
from penstock.compression.table import TableBlock, blocks_in
from penstock.errors import InvalidUsageError

__all__ = ["describe_column", "explain_choice", "read_blocks", "show_blocks"]

_SAMPLE_ROWS = 1 << 14
_MAX_CASCADES_SHOWN = 5


def read_blocks(path: Path) -> Iterator[tuple[str, str, Block]]:
    """Yield the blocks of columns in a file, each with its table's number or name and the column's name.

    The file is a p-unit, a file of `BlockWriter`, or one column's block. The file is read, not mapped into
    memory, because a different process may truncate it. A file of `BlockWriter` is read one table's block at
    a time.

    Raises
    ------
    InvalidUsageError
        If there is no such file, or it is empty.
    CorruptDataError
        If the file is damaged, or has no blocks.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
        if not magic:
            raise InvalidUsageError("the file is empty", file=path)
        if magic[:2] == b"PB":
            yield "0", "", Block(path.read_bytes(), file=path)
            return
        named_tables: Iterable[tuple[str, TableBlock]] = (
            tables(path.read_bytes(), path).items()
            if magic == MAGIC
            else ((str(number), block) for number, block in enumerate(blocks_in(path)))
        )
        for where, block in named_tables:
            for name in block.names:
                yield where, name, block.column(name)
    except OSError as error:
        raise InvalidUsageError("the file cannot be read", file=path, reason=error.strerror) from error


def describe_column(where: str, name: str, block: Block) -> dict[str, Any]:
    """Return the facts about a column's block, as JSON values."""
    streams = [
        {"stream": stream, "cascade": cascade, "values": values, "bytes": size}
        for stream, cascade, values, size in block.describe()
    ]
    return {
        "block": where,
        "column": name,
        "type": str(block.type),
        "rows": block.rows,
        "raw_bytes": block.raw_bytes,
        "coded_bytes": block.size_bytes,
        "streams": streams,
    }


def explain_choice(block: Block, goal: str) -> dict[str, Any]:
    """Return a chooser's view of a column: statistics, and the costs of the cascades that it tries.

    Each candidate encodes the main stream of a sample: values, bytes of text, codes, or words. The block's
    own cascade is among the candidates, even if the goal would not choose it.
    """
    sample = sample_of(block.read(), _SAMPLE_ROWS)
    stats = column_stats(sample)
    if stats is None or block.layout is Layout.NOTHING:
        return {"statistics": None, "candidates": []}
    forms = forms_of(sample) if block.layout is Layout.TEXT_TOKENS else None
    streams = to_streams(sample, dictionary=block.layout is Layout.TEXT_DICTIONARY, forms=forms).streams
    main = 1 if block.layout in (Layout.TEXT, Layout.TEXT_TOKENS) else 0
    stream, chosen = streams[main], cascade_of(block.nodes[main])
    minimised = goal_of(goal)
    tried = rank(stream, minimised, floats=is_float(block.type))
    if chosen not in [cascade_of(choice.node) for choice in tried]:
        cascade = parse_cascade(chosen)
        with contextlib.suppress(UnfitError):  # a sample may have a larger share of exceptions
            node = encode_stream(stream, cascade)
            tried.append(Choice(cost(node, cascade, minimised), cascade, node))
    return {
        "statistics": {
            "range_bits": stats.range_bits,
            "delta_bits": stats.delta_bits,
            "delta_of_delta_bits": stats.delta_of_delta_bits,
            "run_length": round(stats.run_length, 2),
            "distinct": stats.distinct,
            "divisor": stats.divisor,
            "ascending": stats.ascending,
            "digits": stats.digits,
            "sampled_rows": stats.rows,
        },
        "candidates": [
            {
                "cascade": ">".join(choice.cascade),
                # A node does not record the level of a compression library, so compare the cascades without
                # levels.
                "chosen": cascade_of(choice.node) == chosen,
                "bytes_per_value": round(choice.node.size_bytes / max(stream.size, 1), 4),
                "cost": round(choice.cost / max(stream.size, 1), 4),
            }
            for choice in sorted(tried, key=lambda choice: choice.cost)
        ],
    }


def show_blocks(console: Console, path: Path, goal: str, *, why: bool) -> None:
    """Print a table of all columns and, with `why`, the reasons below it."""
    table = Table(title=Text(str(path)), title_justify="left", title_style="bold")
    for column in ("block", "column", "type"):
        table.add_column(column)
    for column in ("rows", "raw", "coded", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("streams")
    for where, name, block in read_blocks(path):
        streams = "\n".join(
            f"{stream}: {cascade} ({decimal(size)})" for stream, cascade, _, size in block.describe()
        )
        cells = [where, name or "-", str(block.type), f"{block.rows:,}", decimal(block.raw_bytes)]
        cells += [decimal(block.size_bytes), f"{block.raw_bytes / block.size_bytes:.1f}", streams]
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    if why:
        unit = "bytes" if not goal_of(goal).write_mb_s else "ns"
        # The file is read again, because it may be larger than memory.
        for where, name, block in read_blocks(path):
            console.print(
                _reasons_table(f"block {where}, {name or 'column'}", explain_choice(block, goal), goal, unit)
            )


def _reasons_table(title: str, found: dict[str, Any], goal: str, unit: str) -> Table:
    facts = found["statistics"]
    said = (
        ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        if facts
        else "none"
    )
    table = Table(title=Text(f"{title}: {said}"), title_justify="left")
    table.add_column("cascade")
    table.add_column("bytes a value", justify="right")
    table.add_column(f"cost for {goal!r}, {unit} a value", justify="right")
    for number, choice in enumerate(found["candidates"]):
        if number < _MAX_CASCADES_SHOWN or choice["chosen"]:
            name = f"{choice['cascade']} (chosen)" if choice["chosen"] else choice["cascade"]
            table.add_row(name, f"{choice['bytes_per_value']:.3f}", f"{choice['cost']:.3f}")
    return table
