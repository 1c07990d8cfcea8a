"""Whether a p-stream pays: what it costs to write and read one, beside reading the source again.

Costs are time of one core per tuple of the source. `benchmarks/persist_costs.py` measures the rates below,
and `benchmarks/results/persist_costs.txt` has what it printed on a virtual machine of two cores. They are no
promises: what matters is their order, as formats differ by factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.operators.graph.nodes import Source

__all__ = ["REREADS", "Choice", "choose"]

REREADS: Final = 0.01
"""How often a reader reads a tuple again, after a failure or a restart. It is assumed."""

_COMPRESS_MB_S: Final = 900.0
_DECODE_MB_S: Final = 1500.0
_SYNC_MB_S: Final = 770.0

_READ_MB_S: Final = {
    "parquet": 170.0,
    "orc": 170.0,
    "csv": 55.0,
    "json": 30.0,
    "text": 55.0,
    "kafka": 30.0,
    "market": 170.0,
    "rate": 170.0,
}
"""How fast Spark reads values, by format or kind. ORC is taken for Parquet, text for CSV, and Kafka, which
hands JSON to Spark, for JSON; the generators for Parquet: none of them was measured."""

_COLUMNAR: Final = frozenset({"parquet", "orc"})
"""Formats of which Spark reads only the columns that are needed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a source is persisted, and why.

    Parameters
    ----------
    source : str
        The source's name.
    persisted : bool
        Whether there is a p-stream.
    reason : str
        Why, in a sentence's end.
    reread_ns : float, optional
        Time per tuple of reading the source again after its first read.
    p_stream_ns : float, optional
        Time per tuple of writing a p-stream and all reads of it.
    """

    source: str
    persisted: bool
    reason: str
    reread_ns: float | None = None
    p_stream_ns: float | None = None


def choose(
    source: Source, readers: int, *, whole: float, needed: float, kept: float, stored: float
) -> Choice:
    """Decide whether a source is persisted.

    Each reader reads every tuple once, and `REREADS` times again. Without a p-stream all of them read the
    source. With one, the source is read once, the p-stream is written, and all of them read that. So a single
    reader needs a p-stream only if very little of its source is left; several soon do.

    Parameters
    ----------
    source : Source
        What is read.
    readers : int
        How many operators read it.
    whole, needed : float
        Bytes of a tuple at the source: all of it, and of the columns that the graph needs.
    kept, stored : float
        Bytes for each tuple of the source that reach the p-stream: uncompressed, and as they are stored.
    """
    if not source.replayable:
        return Choice(source.name, True, "the source cannot be read again")
    if source.kind == "p-stream":
        return Choice(source.name, False, "the source is a p-stream")
    format_ = dict(source.options).get("format", "parquet") if source.kind == "files" else source.kind
    reads = needed if format_ in _COLUMNAR else whole
    reread_ns = (readers - 1 + REREADS) * 1e3 * reads / _READ_MB_S.get(format_, _READ_MB_S["csv"])
    write_ns = 1e3 * (kept / _COMPRESS_MB_S + stored / _SYNC_MB_S)
    p_stream_ns = write_ns + (readers + REREADS) * 1e3 * kept / _DECODE_MB_S
    persisted = p_stream_ns < reread_ns
    reason = (
        f"{'writing and reading a p-stream' if persisted else 'reading the source again'} is cheaper: "
        f"{reread_ns:.3g} ns a tuple from {format_}, {p_stream_ns:.3g} ns by p-stream"
    )
    return Choice(source.name, persisted, reason, reread_ns, p_stream_ns)
