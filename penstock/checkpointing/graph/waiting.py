"""Find out since when rows wait for a query that starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import EARLIEST, PStream

__all__ = ["find_waiting_since_ms"]


def find_waiting_since_ms(
    directory: GraphDirectory, query: str, streams: Iterable[Mapping[str, str]]
) -> int | None:
    """Return since when rows wait for the first micro-batch of a query that starts.

    If the last start has planned a micro-batch and did not commit it, this is the time of the plan. Otherwise
    it is the time of the commit of the oldest row that the query has not read. None if no row is known to
    wait.

    Parameters
    ----------
    directory : GraphDirectory
        The query's graph.
    query : str
        The query.
    streams : iterable of mapping
        The options of the p-streams that the query reads.

    Raises
    ------
    CorruptDataError
        If a file of the logs is damaged.
    UnavailableError
        If the file system refuses.
    """
    planned_ms = directory.interrupted_ms(query)
    if planned_ms is not None:
        return planned_ms
    read = directory.progress(query).rows
    times_us = []
    for options in streams:
        stream = PStream(options["path"])
        stream.refresh()
        row = read.get(stream.identity)
        if row is None and options.get("start", EARLIEST) != EARLIEST:
            continue  # a first start, which does not read the rows that there are
        times_us.append(stream.committed_us(stream.start if row is None else row))
    return min((time_us // 1000 for time_us in times_us if time_us is not None), default=None)
