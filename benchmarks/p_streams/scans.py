"""A scan of a p-stream in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from penstock.checkpointing.p_stream import PStream, read_blocks
from penstock.operators.aggregates.wide import concat_unified
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.spec import Scan

__all__ = ["scan_p_stream"]


def scan_p_stream(
    stream: PStream, scan: Scan, start: int | None = None, stop: int | None = None, *, threads: int = 2
) -> pa.Table:
    """Run a scan over the rows of a p-stream in this process.

    Parameters
    ----------
    stream : PStream
        The p-stream.
    scan : Scan
        The scan.
    start, stop : int, optional
        Offsets; all rows that are there unless told.
    threads : int
        How many scan at once, each a part of the rows.

    Raises
    ------
    InvalidUsageError
        If the scan does not fit the stream, such rows are not there, or an integer overflows.
    CorruptDataError, UnavailableError
        If what is read is damaged, or the file system refuses.
    """
    stream.refresh()
    pieces = stream.pieces(stream.start if start is None else start, stream.end if stop is None else stop)
    if scan.fragments and any(partial.kind in ("first", "last") for partial in scan.fragments.partials):
        threads = 1  # fragments do not tell at what time their first or last row was
    scanners = [Scanner(scan, stream.schema) for _ in range(max(1, min(threads, len(pieces))))]
    edges = [len(pieces) * part // len(scanners) for part in range(len(scanners) + 1)]

    def part(number: int) -> list[pa.RecordBatch]:
        mine = pieces[edges[number] : edges[number + 1]]
        return list(scanners[number].run(read_blocks(stream.segments, mine, stream.schema)))

    with ThreadPoolExecutor(len(scanners)) as pool:
        batches = [batch for found in pool.map(part, range(len(scanners))) for batch in found]
    parts = scanners[0].merge(batches)
    return pa.Table.from_batches(
        [concat_unified(parts)] if parts else [], None if parts else scanners[0].schema
    )
