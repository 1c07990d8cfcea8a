"""The cost model for p-streams: compare writing and reading a p-stream with reading the source again.

Costs are CPU times per tuple of the source. `benchmarks/p_streams/persist_costs.py` measures the rates below,
and `benchmarks/results/persist_costs.txt` holds its output from a virtual machine with two cores. The rates
differ from machine to machine. Only the order of the rates matters, because formats differ by large factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.dataflow.nodes import Source

__all__ = ["REREADS", "Choice", "choose"]

REREADS: Final = 0.01
"""The assumed number of times that a reader reads a tuple again after failures and restarts."""

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
"""Spark's read rates by format or kind. Kinds that were not measured use the rate of another kind: ORC and
generators use the rate of Parquet, text uses the rate of CSV, and Kafka, which hands JSON to Spark, uses the
rate of JSON."""

_COLUMNAR: Final = frozenset({"parquet", "orc"})
"""Formats from which Spark reads only the needed columns."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision whether to persist a source, with its reason.

    Parameters
    ----------
    source : str
        The source's name.
    persisted : bool
        Whether a p-stream persists the source.
    reason : str
        The reason, worded as the end of a sentence.
    reread_ns : float, optional
        The CPU time per tuple for all reads of the source after its first read.
    p_stream_ns : float, optional
        The CPU time per tuple for writing a p-stream, and for all reads of the p-stream.
    """

    source: str
    persisted: bool
    reason: str
    reread_ns: float | None = None
    p_stream_ns: float | None = None


def choose(
    source: Source, readers: int, *, whole: float, needed: float, kept: float, stored: float
) -> Choice:
    """Decide whether to persist a source.

    Each reader reads every tuple once, and again `REREADS` times on average. Without a p-stream all readers
    read the source. With a p-stream, the source is read once and the p-stream is written; then all readers
    read the p-stream. So for a single reader, a p-stream pays only if it stores a small part of the source.
    For several readers, a p-stream pays sooner.

    Parameters
    ----------
    source : Source
        The source.
    readers : int
        The number of operators that read the source.
    whole, needed : float
        The bytes per tuple at the source, of all columns and of the columns that the graph needs.
    kept, stored : float
        The bytes that reach the p-stream per tuple of the source, before and after compression.
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
