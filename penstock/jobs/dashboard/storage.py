"""The facts of a checkpoint that the dashboard shows: graph, p-streams, state, compression and garbage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock._clock import monotonic_s
from penstock.checkpointing.files import Files, open_files
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.graph.facts import facts_of
from penstock.checkpointing.p_unit import tables
from penstock.errors import PenstockError
from penstock.jobs.inspect.block import describe_column
from penstock.jobs.inspect.p_stream import newest_columns, open_and_survey
from penstock.state_store.bucket_store import number_of
from penstock.state_store.location import find_operators
from penstock.state_store.survey import survey_bucket

__all__ = ["Refreshed", "describe_graph", "describe_storage"]

_MAX_READING_SHARE: Final = 0.05
"""The greatest share of the time that is spent on reading facts."""


def describe_graph(checkpoint: str) -> dict[str, Any]:
    """Return the graph's operators, queries, p-streams and markers.

    Raises
    ------
    PenstockError
        If there is no graph, or its checkpoint is damaged.
    """
    facts = facts_of(GraphDirectory(checkpoint)).as_dict()
    return {name: facts[name] for name in ("name", "queries", "streams", "markers", "plan")}


def describe_storage(checkpoint: str, state_location: str) -> dict[str, Any]:
    """Return sizes, garbage and compression of the graph's p-streams and of its operators' state.

    The function reads all files of state, so it may take long. Compression is measured in a p-stream's newest
    p-unit, and in the newest file with rows of an operator's largest bucket.

    Raises
    ------
    PenstockError
        If the checkpoint is damaged.
    """
    streams = []
    for stream in facts_of(GraphDirectory(checkpoint)).streams:
        opened, survey = open_and_survey(stream.location)
        streams.append(
            {
                "name": stream.name,
                "bytes": survey.size_bytes,
                "garbage_bytes": survey.garbage_bytes,
                "damage": len(survey.damage),
                "columns": [_column(column) for column in newest_columns(opened)],
            }
        )
    return {"p_streams": streams, "state": list(_states(state_location))}


def _states(location: str) -> Iterator[dict[str, Any]]:
    place = open_files(location)
    if not place.list():
        return
    for operator in find_operators(place):
        surveys = [survey_bucket(bucket) for bucket in operator.buckets]
        largest = max(range(len(surveys)), key=lambda number: surveys[number].size_bytes)
        yield {
            "name": operator.name,
            "query": operator.query_label,
            "buckets": len(surveys),
            "bytes": sum(survey.size_bytes for survey in surveys),
            "garbage_bytes": sum(survey.garbage_bytes for survey in surveys),
            "damage": len(operator.damage) + sum(len(survey.damage) for survey in surveys),
            "columns": _newest_state_columns(operator.buckets[largest]),
        }


def _newest_state_columns(bucket: Files) -> list[dict[str, Any]]:
    names = [facts.name for facts in bucket.list() if number_of(facts.name) is not None]
    for name in sorted(names, key=lambda name: (number_of(name), name), reverse=True):
        try:
            blocks = tables(bucket.read(name), bucket.path_of(name))
        except PenstockError:  # the file was deleted meanwhile, or is damaged; the survey counts damage
            continue
        columns = [
            _column(describe_column(table, f"{table}.{column}", block.column(column)))
            for table, block in blocks.items()
            for column in block.names
        ]
        if columns:
            return columns
    return []


def _column(facts: dict[str, Any]) -> dict[str, Any]:
    codecs = dict.fromkeys(stream["cascade"] for stream in facts["streams"])
    return {
        "name": facts["column"],
        "type": facts["type"],
        "rows": facts["rows"],
        "raw_bytes": facts["raw_bytes"],
        "coded_bytes": facts["coded_bytes"],
        "codecs": ", ".join(codecs),
    }


class Refreshed:
    """A value that is computed again when it is requested but out of date.

    A thread computes the value, one computation at a time, so that callers do not wait. Computing takes at
    most a twentieth of the thread's time. If Penstock raises an error, the value is ``{"error": TEXT}``.

    Parameters
    ----------
    compute : callable
        Computes the value.
    least_s : float
        The minimum time between two computations.
    """

    def __init__(self, compute: Callable[[], dict[str, Any]], least_s: float) -> None:
        self._compute = compute
        self._least_s = least_s
        self._lock = threading.Lock()
        self._value: dict[str, Any] = {}
        self._next_s = 0.0
        self._runs: threading.Thread | None = None

    def value(self, *, wait: bool = False) -> dict[str, Any]:
        """Return the newest value, which is empty at first; with `wait`, wait until it is up to date."""
        with self._lock:
            if monotonic_s() >= self._next_s and (self._runs is None or not self._runs.is_alive()):
                self._runs = threading.Thread(target=self._refresh, name="penstock-facts", daemon=True)
                self._runs.start()
            runs = self._runs
        if wait and runs is not None:
            runs.join()
        return self._value

    def _refresh(self) -> None:
        begin = monotonic_s()
        try:
            self._value = self._compute()
        except PenstockError as error:
            self._value = {"error": str(error)}
        finally:
            end = monotonic_s()
            self._next_s = end + max(self._least_s, (end - begin) / _MAX_READING_SHARE)
