"""Run the micro-batches of a local query.

Steps of a micro-batch: 1. write the plan, which holds the end of each input, 2. read the rows, run the
operator and write the results, 3. write the pointers to the operator's state and the commit, 4. release the
inputs' rows. After a crash between steps 1 and 3, the next start runs the micro-batch again with the same
rows and the same state, and the sink recognizes the micro-batch by its number.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock._clock import Clock, monotonic_s, new_id, now_us
from penstock._failpoints import failpoint
from penstock.errors import InvalidUsageError
from penstock.local_engine.inputs import Input, WakeInput
from penstock.local_engine.operators import LocalOperator, MicroBatch, Rows
from penstock.local_engine.outputs import Output
from penstock.local_engine.query_log import Offset, QueryLog
from penstock.operators.freshness.overdue import OverdueTimers
from penstock.operators.scheduling.metrics import BatchMetrics

__all__ = ["LocalBatch", "LocalQuery"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """A committed micro-batch.

    Attributes
    ----------
    query, query_id, operator : str
        The query's name in the graph, its id, and the name of its operator with state. The operator's name is
        empty if the query has no such operator.
    number : int
        The micro-batch's number.
    new_input : bool
        Whether any input had new rows.
    duration_ms : float
        The time that the micro-batch took, from its plan to its commit.
    metrics : BatchMetrics
        The metrics of the query's operator; all 0 if the query has no operator with state.
    bad_records : int
        The number of records of the sources that could not be read.
    """

    query: str
    query_id: str
    operator: str
    number: int
    new_input: bool
    duration_ms: float
    metrics: BatchMetrics
    bad_records: int = 0


class LocalQuery:
    """A query of a local graph.

    Parameters
    ----------
    name : str
        The query's name in the graph.
    title : str
        The query's name for people, as on Spark.
    log : QueryLog
        The query's checkpoint.
    inputs : sequence of Input
        The sources, in the order of Spark's plan.
    operator : LocalOperator, optional
        The operator with state.
    rows : callable
        A function that returns the results of a micro-batch.
    output : Output
        The sink.
    clock : Clock
        The clock that the operator reads.

    Attributes
    ----------
    newest : LocalBatch or None
        The newest micro-batch of this start.
    overdue : OverdueTimers
        Reports a micro-batch that runs for longer than the operator's freshness contract allows.
    """

    def __init__(
        self,
        name: str,
        title: str,
        log: QueryLog,
        inputs: Sequence[Input],
        operator: LocalOperator | None,
        rows: Rows,
        output: Output,
        clock: Clock = now_us,
    ) -> None:
        self.name = name
        self.title = title
        self.log = log
        self.operator = operator
        self.newest: LocalBatch | None = None
        self.overdue = OverdueTimers(name)
        self._inputs = [*inputs, *([WakeInput()] if operator is not None and operator.waits else [])]
        self._rows = rows
        self.output = output
        self._clock = clock
        self._run = new_id()
        self._wakes = operator is not None and operator.waits
        if operator is not None:
            operator.pointers = log.pointers(operator.buckets)
        self._ends = self._offsets(log.committed)
        if log.planned > log.committed:
            self._offsets(log.planned)  # an error at the start, not in the micro-batch
        self._stops = False

    def _offsets(self, batch: int) -> list[Offset | None]:
        if batch < 0:
            return [None] * len(self._inputs)
        offsets = self.log.offsets(batch)
        if len(offsets) != len(self._inputs):
            raise InvalidUsageError(
                "the checkpoint has another number of sources",
                query=self.name,
                was=len(offsets),
                now=len(self._inputs),
                hint="restore the earlier pipeline (a budget counts as a source), or start with a new "
                "checkpoint",
            )
        return offsets

    @property
    def waits(self) -> bool:
        """Return whether keys wait for the next micro-batch."""
        return self._wakes or bool(self.operator is not None and self.operator.waiting)

    def stop_at_present(self) -> None:
        """Fix the end of all inputs now, so that the query does not read later rows."""
        if not self._stops:
            self._stops = True
            for source in self._inputs:
                source.stop_at_present()

    def run_batch(self, *, serves: bool = True) -> bool:
        """Run a micro-batch if there is something to do; return whether a micro-batch ran.

        Parameters
        ----------
        serves : bool
            Whether to run a micro-batch without input if keys wait.
        """
        begin = monotonic_s()
        number = self.log.committed + 1
        starts = self._ends
        age_s = 0.0
        if self.log.planned >= number:
            ends = self._offsets(number)
            # This start repeats a planned micro-batch. Its rows arrived before the plan was written.
            age_s = self.log.age_s(number)
        else:
            ends = [source.find_end(start) for source, start in zip(self._inputs, starts, strict=True)]
        is_new = any(
            source.is_new(start, end) for source, start, end in zip(self._inputs, starts, ends, strict=True)
        )
        if self.log.planned < number:
            if not is_new and not (serves and self.waits):
                return False
            self.log.plan(number, ends)
        failpoint("local.after_plan")
        batch = MicroBatch(
            number, self.log.id, self.title, self._run, starts, ends, self._clock, wakes=self._wakes,
            on_served=self._expect_overdue,
        )  # fmt: skip
        operator = self.operator
        try:
            self.overdue.begin({} if operator is None else operator.promised_s, age_s)
            self.output.write(self._rows(batch), self.log.id, number)
            failpoint("local.after_write")
            if operator is None:
                self.log.commit(number, None, None)
            else:
                operator.finish()
                self.log.commit(number, operator.pointers, operator.waiting if operator.waits else None)
        except BaseException as error:
            if operator is not None:
                operator.abandon()
            if batch.bad_records and isinstance(error, InvalidUsageError):
                error.add_context(bad_records=batch.bad_records)
            raise
        finally:
            self.overdue.end()
        metrics = BatchMetrics.merge(batch.metrics)
        _LOGGER.info(
            "committed [query=%s batch=%d rows_in=%d emitted=%d]",
            self.name, number, metrics.rows_in, metrics.emitted,
        )  # fmt: skip
        failpoint("local.after_commit")
        self._wakes = False
        self._ends = ends
        for source, end in zip(self._inputs, ends, strict=True):
            if end is not None:
                source.release(end)
        duration_ms = 1000 * (monotonic_s() - begin)
        name = "" if operator is None else operator.name
        self.newest = LocalBatch(
            self.name, self.log.id, name, number, is_new, duration_ms, metrics, batch.bad_records
        )
        return True

    def _expect_overdue(self, served: Sequence[BatchMetrics]) -> None:
        """Tell `overdue` when each promise breaks, given the metrics of all buckets.

        Leave out the promises that the last micro-batch reported as broken.
        """
        if not self.overdue.active:  # the operator has no promises
            return
        last = {} if self.newest is None else self.newest.metrics.freshness
        for name, one in BatchMetrics.merge(served).freshness.items():
            breaks_s = (one.breaks_us - self._clock()) / 1e6
            if breaks_s < math.inf and (name not in last or last[name].is_kept):
                self.overdue.expect(name, breaks_s)
