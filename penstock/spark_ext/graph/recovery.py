"""Recovery of a graph over an existing checkpoint, in the paper's four phases (Scabbard §3.2).

1. **Progress recovery**: drop files torn by a power cut from Spark's logs. Read each query's planned and
   committed micro-batches from these logs, and the rows of p-streams from the logs of the p-streams.
2. **Upstream requesting**: find the first row of each p-stream that a query needs again; check that the rows
   from there on are not released.
3. **Data recovery**: check, by name and length, that all needed files exist: the p-units from these rows on,
   and the state files of every bucket at each query's last commit (`penstock.spark_ext.graph.state`). The
   content is checked later, by the tasks that load the files.
4. **Upstream replay**: lasts until the results query has committed its first micro-batch; ends at once if
   there is nothing to replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from penstock._clock import monotonic_s, now_us
from penstock.checkpointing.graph.directory import GraphDirectory, QueryProgress
from penstock.checkpointing.p_stream import Piece, PStream
from penstock.checkpointing.spark_checkpoint import repair_checkpoint
from penstock.checkpointing.trace import trace
from penstock.errors import CorruptDataError
from penstock.spark_ext.graph.state import FoundState, HeldBySpark, StatePlace, find_state

__all__ = ["GraphRecovery", "QueryStreams", "RecoveryReport"]

_LOGGER = logging.getLogger(__name__)

_PHASES = ("progress recovery", "upstream requesting", "data recovery", "upstream replay")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The report of a recovery: the seconds of each phase, the work, and the operators' state it found."""

    checkpoint: int | None
    units_loaded: int
    progress_recovery_s: float
    upstream_requesting_s: float
    data_recovery_s: float
    upstream_replay_s: float
    _: KW_ONLY
    buckets: int = 0
    state_files: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class QueryStreams:
    """A query, the locations of its input p-streams, and its state; the last query makes the results."""

    name: str
    reads: tuple[str, ...]
    state: StatePlace | None = None


class GraphRecovery:
    """One recovery of a graph: the constructor runs phases 1 to 3, `record_commit` ends phase 4.

    The driver uses this object before the queries start and while they run. After a crash during a recovery,
    the next start recovers again.

    Parameters
    ----------
    name : str
        The graph's name.
    directory : GraphDirectory
        The graph's checkpoint.
    queries : sequence of QueryStreams
        The graph's queries.
    clock : callable
        Returns seconds on a clock that never goes back.
    held_by_spark : callable, optional
        As for `penstock.spark_ext.graph.state.find_state`.

    Raises
    ------
    CorruptDataError
        If rows that a query needs were released, or a file is damaged or missing.
    InvalidUsageError
        If a p-stream is gone.
    UnavailableError
        If the file system refuses.

    Attributes
    ----------
    report : RecoveryReport or None
        The report; None until the replay has ended.
    """

    def __init__(
        self,
        name: str,
        directory: GraphDirectory,
        queries: Sequence[QueryStreams],
        clock: Callable[[], float] = monotonic_s,
        held_by_spark: HeldBySpark | None = None,
    ) -> None:
        self._name = name
        self._directory = directory
        self._queries = queries
        self._clock = clock
        self._held_by_spark = held_by_spark
        self._times = [clock()]
        self._progress: dict[str, QueryProgress] = {}
        self._streams: dict[str, PStream] = {}
        self._begins: dict[str, int] = {}
        self._rows = self._units = 0
        self._state = FoundState()
        self.report: RecoveryReport | None = None
        self._progress_recovery()
        self._upstream_requesting()
        self._data_recovery()
        results = self._progress[queries[-1].name]
        if not self._rows and all(query.planned == query.committed for query in self._progress.values()):
            self.record_commit(results.committed + 1)

    def _end_phase(self, **facts: Any) -> None:
        self._times.append(self._clock())
        phase = _PHASES[len(self._times) - 2]
        text = " ".join(f"{name}={value}" for name, value in facts.items())
        seconds = self._times[-1] - self._times[-2]
        _LOGGER.info("%s [graph=%s %s seconds=%.3f]", phase, self._name, text, seconds)

    def _progress_recovery(self) -> None:
        for query in self._queries:
            repair_checkpoint(self._directory.query(query.name), dry_run=False)
            self._progress[query.name] = self._directory.progress(query.name)
            for location in query.reads:
                if location not in self._streams:
                    self._streams[location] = PStream(location)
        self._trace()
        self._end_phase(checkpoint=self._checkpoint)

    def _trace(self) -> None:
        """Trace the rows from which the queries continue."""
        queries = {
            name: {
                "id": query.id,
                "planned": query.planned,
                "committed": query.committed,
                "rows": dict(query.rows),
            }
            for name, query in self._progress.items()
        }
        streams = {
            location: {"identity": stream.identity, "start": stream.start, "end": stream.end}
            for location, stream in self._streams.items()
        }
        trace("recovered", graph=self._name, queries=queries, streams=streams)

    @property
    def _checkpoint(self) -> int | None:
        """The newest committed micro-batch of the results query."""
        committed = self._progress[self._queries[-1].name].committed
        return None if committed < 0 else committed

    def _upstream_requesting(self) -> None:
        for query in self._queries:
            for location in query.reads:
                stream = self._streams[location]
                row = self._progress[query.name].rows.get(stream.identity)
                if row is None:
                    continue
                if row < stream.start:
                    raise CorruptDataError(
                        "the checkpoint needs rows that the p-stream has released",
                        hint="the checkpoint may be an old copy; start with a new one",
                        file=stream.files.location,
                        query=query.name,
                        needed=row,
                        start=stream.start,
                    )
                self._begins[location] = min(row, self._begins.get(location, row))
        for location, stream in self._streams.items():
            self._begins.setdefault(location, stream.start)
            self._rows += stream.end - self._begins[location]
        self._end_phase(rows=self._rows)

    def _data_recovery(self) -> None:
        for location, stream in self._streams.items():
            sizes = {fact.name: fact.size_bytes for fact in stream.segments.list()}
            pieces = stream.pieces(self._begins[location], stream.end) if self._rows else []
            for piece in pieces:
                if sizes.get(piece.segment, 0) < _end_of(piece):
                    raise CorruptDataError(
                        "a segment of a p-stream is missing or cut",
                        file=stream.segments.path_of(piece.segment),
                    )
            self._units += len(pieces)
        states = [
            find_state(
                self._directory, query.name, self._progress[query.name], query.state, self._held_by_spark
            )
            for query in self._queries
            if query.state is not None
        ]
        self._state = FoundState(
            sum(state.buckets for state in states),
            sum(state.files for state in states),
            sum(state.size_bytes for state in states),
        )
        self._end_phase(units=self._units, **self._counts)

    @property
    def _counts(self) -> dict[str, int]:
        """The state's counts for the report."""
        state = self._state
        return {"buckets": state.buckets, "state_files": state.files, "state_bytes": state.size_bytes}

    def record_commit(self, batch: int) -> None:
        """Record the first commit of the results query, which ends the replay.

        Raises
        ------
        ConflictError, UnavailableError
            If the report cannot be stored.
        """
        if self.report is not None:
            return
        self._end_phase(batch=batch)
        phases = [after - before for before, after in zip(self._times, self._times[1:], strict=False)]
        self.report = RecoveryReport(self._checkpoint, self._units, *phases, **self._counts)
        self._directory.put("recovery", self._document(self.report))

    def _document(self, report: RecoveryReport) -> dict[str, Any]:
        return {
            "time_us": now_us(),
            "checkpoint": report.checkpoint,
            "rows_replayed": self._rows,
            "units_replayed": report.units_loaded,
            **self._counts,
            "phases_s": {
                "progress recovery": report.progress_recovery_s,
                "upstream requesting": report.upstream_requesting_s,
                "data recovery": report.data_recovery_s,
                "upstream replay": report.upstream_replay_s,
            },
        }


def _end_of(piece: Piece) -> int:
    return piece.at + piece.size_bytes
