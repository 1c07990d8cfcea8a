"""One query of a graph: its start, its progress, and its end."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark_ext.api.metrics import ProgressReader, batch_metrics, had_input, is_last
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from penstock.spark_ext.worker.restart import start_again

__all__ = ["QueryTotals", "Stage", "StageRun"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """One query of a graph, ready to start.

    Parameters
    ----------
    name : str
        The query's name in the graph, its checkpoint and errors.
    writer : DataStreamWriter
        The writer that starts the query.
    after : tuple of str
        The queries that write this query's inputs.
    direct : bool
        Whether the query's operator writes the results, so that only descriptors go through Spark.
    holds_back : bool
        Whether the query may leave rows for later triggers, so that Spark never ends it by itself.
    """

    name: str
    writer: DataStreamWriter
    after: tuple[str, ...]
    direct: bool = False
    holds_back: bool = False


@dataclass(frozen=True, slots=True)
class QueryTotals:
    """The counts of a query since this start of the graph.

    Parameters
    ----------
    batches : int
        The number of micro-batches that the query committed.
    rows : int
        Rows that entered Spark. Rows that a p-stream's reader filtered out do not count.
    batch_ms : tuple of int
        The durations of up to a hundred newest micro-batches, oldest first.
    """

    batches: int = 0
    rows: int = 0
    batch_ms: tuple[int, ...] = ()


@dataclass(slots=True)
class StageRun:
    """The run of a stage, which may start its query several times.

    Parameters
    ----------
    stage : Stage
        The stage.
    query : StreamingQuery
        The newest query of the stage.
    """

    stage: Stage
    query: StreamingQuery
    totals: QueryTotals = field(default_factory=QueryTotals)
    starts: list[StreamingQuery] = field(init=False)
    """All starts of the query, oldest first."""
    _reader: ProgressReader = field(init=False)
    _waits: bool = False

    def __post_init__(self) -> None:
        self._reader = ProgressReader(self.query)
        self.starts = [self.query]

    def read(self) -> StreamingQueryProgress | None:
        """Count the query's micro-batches since the last call; return the newest report."""
        new = self._reader.new()
        if not new:
            return None
        for report in new:
            _LOGGER.info(
                "micro-batch committed [query=%s batch=%d rows=%d ms=%d]",
                report.name, report.batchId, report.numInputRows,
                report.durationMs.get("triggerExecution", 0),
            )  # fmt: skip
        old = self.totals
        times = (*old.batch_ms, *(report.durationMs.get("triggerExecution", 0) for report in new))
        rows = old.rows + sum(max(report.numInputRows, 0) for report in new)
        self.totals = QueryTotals(old.batches + len(new), rows, times[-100:])
        self._waits = any(metrics["waiting_keys"] for metrics in batch_metrics(new[-1]))
        return new[-1]

    def is_done(self, last: StreamingQueryProgress, *, drain: bool) -> bool:
        """For a query that Spark does not end: return whether it is finished after its newest micro-batch."""
        first = self.totals.batches == 1
        return self.stage.holds_back and is_last(
            new_input=had_input(last), waits=self._waits, drain=drain, first=first
        )

    def start_again(self) -> bool:
        """Start an ended query again if keys wait; return whether it did.

        Before Spark 4.2, a query with the trigger availableNow ends after one micro-batch.
        """
        if HAS_ADMISSION_CONTROL or not self._waits:
            return False
        self.query = start_again(self.query) or self.stage.writer.start()
        self.starts.append(self.query)
        self._reader, self._waits = ProgressReader(self.query), False
        return True
