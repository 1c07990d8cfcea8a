"""The streams that compression is measured on: four real files, and three from generators.

The real files have the columns and widths of (Scabbard Table 3); times are in seconds as in the files,
but for those of the sensors, which are instants in Spark's unit. They are no part of the project:
`load` takes the folder that holds them. A generator's rows depend on its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.market import Market

__all__ = ["DATA", "GENERATED", "REAL", "ROWS", "File", "Stream", "load", "replica"]

DATA = Path(__file__).parents[2] / "shared" / "data"
"""The default directory of the real files."""

ROWS = 2_000_000
"""The default number of rows of a generator or a replica."""

_START_US = 1_700_000_000_000_000
_INT, _LONG, _FLOAT = pa.int32(), pa.int64(), pa.float32()
_INSTANT = pa.timestamp("us")


@dataclass(frozen=True)
class File:
    """A real file: its name, its columns, and those that a replica moves on."""

    file: str
    columns: dict[str, pa.DataType]
    moving: tuple[str, ...]

    def read(self, folder: Path) -> pa.Table:
        """Return the file's rows; fields are parted by any number of blanks or tabs."""
        lines = (folder / self.file).read_text().splitlines()
        fields = zip(*(line.split()[: len(self.columns)] for line in lines), strict=True)
        kinds = self.columns.items()
        return pa.table(
            {name: _parse(texts, kind) for (name, kind), texts in zip(kinds, fields, strict=True)}
        )


def _parse(texts: tuple[str, ...], kind: pa.DataType) -> pa.Array[Any]:
    if kind == _INSTANT:
        # 2012-02-22T16:46:28.9670320+00:00: seven decimals, of which Spark keeps six.
        return pa.array([text[:26] for text in texts]).cast(kind)
    if kind == _FLOAT:
        return pa.array(np.array(texts, np.float32))
    return pa.array(np.array(texts, np.int64)).cast(kind)


REAL: dict[str, File] = {
    "cluster": File(
        "google-cluster-data.txt",
        {
            **dict.fromkeys(("timestamp", "jobId", "taskId", "machineId"), _LONG),
            **dict.fromkeys(("eventType", "userId", "category", "priority"), _INT),
            **dict.fromkeys(("cpu", "ram", "disk"), _FLOAT),
            "constraints": _INT,
        },
        ("timestamp",),
    ),
    "smart_grid": File(
        "smartgrid-data.txt",
        {
            "timestamp": _LONG,
            "value": _FLOAT,
            **dict.fromkeys(("property", "plug", "household", "house"), _INT),
        },
        ("timestamp",),
    ),
    "linear_road": File(
        "lrb-data-small-ht.txt",
        {
            "timestamp": _LONG,
            **dict.fromkeys(("vehicle", "speed", "highway", "lane", "direction", "position"), _INT),
        },
        ("timestamp",),
    ),
    "sensors": File(
        "DEBS2012-small.txt",
        {
            "timestamp": _INSTANT,
            "index": _LONG,
            **dict.fromkeys(("mf01", "mf02", "mf03", "pc13", "pc14", "pc15"), _INT),
            **dict.fromkeys(("pc25", "pc26", "pc27", "res", "bm05", "bm06"), _INT),
        },
        ("timestamp", "index"),
    ),
}
"""The real files by the names of their streams."""


def replica(table: pa.Table, rows: int, moving: tuple[str, ...]) -> pa.Table:
    """Return `rows` rows: the table again and again, with the columns in `moving` going on.

    Each time they are greater by their span and one step more, so that what ascends goes on ascending.
    """
    times = -(-rows // table.num_rows)
    copy = np.repeat(np.arange(times, dtype=np.int64), table.num_rows)[:rows]
    columns = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        width = np.dtype(f"i{column.type.bit_width // 8}")
        values = np.frombuffer(column.buffers()[1], width)[column.offset :][: len(column)]
        tiled = np.tile(values, times)[:rows]
        if name in moving:
            span = int(values.max() - values.min())
            tiled = tiled + copy * (span + max(1, span // len(values)))
        columns[name] = pa.Array.from_buffers(column.type, rows, [None, pa.py_buffer(tiled)])
    return pa.table(columns)


def _chosen(texts: list[str], numbers: Any) -> pa.Array[Any]:
    """Return the text of each number."""
    return pa.array(texts).take(pa.array(numbers))


def _uuids(generator: np.random.Generator, count: int) -> list[str]:
    """Return UUIDs as text."""
    texts = (generator.bytes(16).hex() for _ in range(count))
    return ["-".join((t[:8], t[8:12], t[12:16], t[16:20], t[20:])) for t in texts]


def advertisements(rows: int, seed: int) -> pa.Table:
    """Return events of the Yahoo Streaming Benchmark.

    As its own generator makes them: 100 users, 100 pages, and 100 campaigns of 10 advertisements, each
    with a UUID and equally likely, one address, and times in whole milliseconds, here of a million
    events a second.
    """
    generator = np.random.default_rng(seed)

    def draw(texts: list[str]) -> pa.Array[Any]:
        return _chosen(texts, generator.integers(0, len(texts), rows, np.int32))

    instants = _START_US + np.arange(rows, dtype=np.int64) // 1000 * 1000
    return pa.table(
        {
            "user_id": draw(_uuids(generator, 100)),
            "page_id": draw(_uuids(generator, 100)),
            "ad_id": draw(_uuids(generator, 1000)),
            "ad_type": draw(["banner", "modal", "sponsored-search", "mail", "mobile"]),
            "event_type": draw(["view", "click", "purchase"]),
            "event_time": pa.array(instants, _INSTANT),
            "ip_address": _chosen(["1.2.3.4"], np.zeros(rows, np.int32)),
        }
    )


_CHANNELS = 10_000


def bids(rows: int, seed: int) -> pa.Table:
    """Return the bids of a NEXMark stream, as its generator makes them by default.

    Of 50 events 1 is a person, 3 are auctions and 46 are bids. Half of the bids go to the hot auction,
    which changes with every hundredth; 3 of 4 come from the hot bidder. Prices are log-uniform. Half of
    the channels are one of four, each with one address; the others are one of 10,000, each with its own.
    What is `extra` fills a bid up to 100 bytes, give or take a fifth, with random letters.
    """
    generator = np.random.default_rng(seed)
    events = np.arange(rows, dtype=np.int64) // 46 * 50 + np.arange(rows) % 46 + 4
    auction = 1000 + events // 50 * 3 + 2
    bidder = 1000 + events // 50
    hot = generator.random(rows)
    auction = np.where(
        hot < 0.5, auction // 100 * 100, auction - generator.integers(0, 100, rows).clip(0, auction - 1000)
    )
    hot = generator.random(rows)
    bidder = np.where(
        hot < 0.75,
        bidder // 100 * 100 + 1,
        bidder - generator.integers(-10, 1000, rows).clip(None, bidder - 1000),
    )
    hot = generator.random(rows)
    numbers = np.where(hot < 0.5, generator.integers(0, 4, rows), 4 + generator.integers(0, _CHANNELS, rows))
    names = ["Google", "Facebook", "Baidu", "Apple", *(f"channel-{n}" for n in range(_CHANNELS))]
    paths = list(_words(generator, np.full(3 * (4 + _CHANNELS), 5)))
    marks = [f"&channel_id={n}" if n >= 0 else "" for n in range(-4, _CHANNELS)]
    addresses = [
        f"https://www.nexmark.com/{'/'.join(paths[3 * n : 3 * n + 3])}/item.htm?query=1{mark}"
        for n, mark in enumerate(marks)
    ]
    channels, urls = _chosen(names, numbers.astype(np.int32)), _chosen(addresses, numbers.astype(np.int32))
    lengths = generator.integers(15, 35, rows)
    return pa.table(
        {
            "event_type": np.full(rows, 2, np.int32),
            "event": events,
            "auction": auction,
            "bidder": bidder,
            "price": np.rint(10 ** (generator.random(rows) * 6) * 100).astype(np.int64),
            "channel": channels,
            "url": urls,
            "date_time": pa.array(_START_US + events // 10 * 1000, _INSTANT),
            "extra": _letters(generator, lengths),
        }
    )


def _letters(generator: np.random.Generator, lengths: Any) -> pa.Array[Any]:
    """Return texts of these lengths in random small letters."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    text = generator.integers(97, 123, int(offsets[-1]), np.uint8)
    return pa.Array.from_buffers(pa.string(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _words(generator: np.random.Generator, lengths: Any) -> Iterator[str]:
    return iter(_letters(generator, lengths).to_pylist())


def trades(rows: int, seed: int) -> pa.Table:
    """Return trades of `penstock.market`, 100,000 a second."""
    batch = Market(rate=100_000, seed=seed, start_us=_START_US).batch(0, rows)
    return pa.Table.from_batches([batch])


GENERATED: dict[str, Callable[[int, int], pa.Table]] = {
    "ysb": advertisements,
    "nexmark": bids,
    "market": trades,
}
"""The generators, of rows and a seed, by the names of their streams."""


@dataclass(frozen=True)
class Stream:
    """A stream to compress.

    Parameters
    ----------
    name : str
        Its name.
    whole : pyarrow.Table
        The rows for ratios: the real file, because a replica has repeats that the data do not have.
    long : pyarrow.Table
        The rows for speeds: a replica of a file, or the generated rows.
    """

    name: str
    whole: pa.Table
    long: pa.Table


def load(name: str, folder: Path = DATA, rows: int = ROWS, seed: int = 1) -> Stream | None:
    """Return a stream by its name; None where its file is missing."""
    if name in GENERATED:
        table = GENERATED[name](rows, seed)
        return Stream(name, table, table)
    known = REAL[name]
    if not (folder / known.file).exists():
        return None
    table = known.read(folder)
    return Stream(name, table, replica(table, rows, known.moving))
