"""Run recorded micro-batches again, from their versions, rows and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock._clock import Clock, monotonic_s, new_id
from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import open_files
from penstock.errors import InvalidUsageError
from penstock.jobs.replay.policies import change_policy
from penstock.jobs.replay.query import ReplayedQuery
from penstock.jobs.replay.recording import RecordedBatch
from penstock.local_engine.operators import LocalOperator, MicroBatch
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.policy import Policy
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer
from penstock.state_store.clock_record import Readings
from penstock.state_store.location import SPECIFICATION_FILE

__all__ = ["Replay", "ReplayedBatch"]


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """The outcome of a micro-batch that ran again.

    Attributes
    ----------
    recorded : RecordedBatch
        The micro-batch.
    results : pyarrow.Table
        The rows for the sink.
    metrics : BatchMetrics
        The metrics of the operator.
    pointers : mapping of int to Pointer
        The versions of the state in the scratch location, by label.
    has_clock : bool
        Whether all readings of the clock were recorded.
    answers : pyarrow.Table or None
        The answers to requests, if the query answers requests.
    """

    recorded: RecordedBatch
    results: pa.Table
    metrics: BatchMetrics
    pointers: dict[int, Pointer]
    has_clock: bool
    answers: pa.Table | None = None


@dataclass
class Replay:
    """Runs micro-batches one after the other, each from the state that its predecessor left.

    Parameters
    ----------
    query : ReplayedQuery
        The query.
    recorded : ReplayedQuery
        The query with the recorded settings, whose operator reads the recorded state. It may be the same
        object as `query`.
    scratch : str
        The directory for state.
    policy : Policy, optional
        The policy of `query`, if it differs from the recorded policy.
    """

    query: ReplayedQuery
    recorded: ReplayedQuery
    scratch: str
    policy: Policy | None = None
    _run: str = field(default_factory=new_id)

    def run(self, numbers: range) -> Iterator[ReplayedBatch]:
        """Run micro-batches, beginning with the checkpoint's state before the first of them.

        Raises
        ------
        PenstockError
            If a micro-batch fails.
        """
        recording = self.recorded.recording
        if self.query.operator is not None:
            self._begin(self.query.operator, recording.batch(numbers[0]))
        for number in numbers:
            yield self._run_batch(recording.batch(number))

    def store(self, label: int) -> BucketStore:
        """Return the versions of a bucket in the scratch location."""
        operator = self._operator()
        place = open_files(self.scratch).child(self.recorded.recording.checkpoint.query).child(operator.name)
        return BucketStore(place.child(f"{bucket_labels(operator.buckets).index(label):05d}"))

    def _operator(self) -> LocalOperator:
        if self.query.operator is None:
            raise InvalidUsageError("the query has no state")
        return self.query.operator

    def _begin(self, operator: LocalOperator, first: RecordedBatch) -> None:
        """Put the state before a micro-batch into the scratch location."""
        recording = self.recorded.recording
        place = open_files(self.scratch).child(recording.checkpoint.query).child(operator.name)
        # Keep the facts of the first start, such as whether a database had initial rows, but use this query's
        # settings.
        described = {**recording.description(), **operator.task.specification()}
        place.publish(SPECIFICATION_FILE, encode(PUnit("operator", described)))
        for label, pointer in first.before.items():
            state = self._load(label, pointer)
            try:
                policy = self.policy
                units = list(state.snapshot()) if policy is None else self._change(state, policy)
            finally:
                state.close()
            operator.pointers[label] = self.store(label).publish_first(FileId(new_id()), units)
            if any(unit.meta.get("waiting") for unit in units):
                operator.waiting.add(label)

    def _load(self, label: int, pointer: Pointer) -> Any:
        recorded = self.recorded.operator
        if recorded is None:
            raise InvalidUsageError("the query has no state")
        state = recorded.task.operator.new_state()
        self.recorded.recording.store(label).load(pointer, state)
        return state

    def _change(self, state: Any, policy: Policy) -> list[PUnit]:
        target = self._operator().task.operator.new_state()
        try:
            return change_policy(state, policy, target)
        finally:
            target.close()

    def _run_batch(self, recorded: RecordedBatch) -> ReplayedBatch:
        query, recording = self.query, self.recorded.recording
        clocks: dict[int, Clock] = {}
        records: dict[int, Readings] = {}
        ends_us = [recorded.planned_us]
        has_clock = True
        if query.operator is not None:
            labels = bucket_labels(query.operator.buckets)
            for label in recorded.served:
                bucket, readings = labels.index(label), recording.clock(recorded, label)
                times_us = readings.times_us if readings else []
                ended_us = recording.ended_us(recorded, label)
                ends_us.append((times_us or [ended_us or recorded.planned_us])[-1])
                clocks[bucket] = _go_on(ends_us[-1]) if readings else _stand_still(ends_us[-1])
                if readings is None:
                    has_clock = False
                else:
                    records[bucket] = readings
            query.operator.waiting |= recorded.served
        batch = MicroBatch(
            recorded.number, recording.checkpoint.query, "replay", self._run,
            recorded.starts, recorded.ends, _stand_still(max(ends_us)), clocks=clocks,
            recorded=records,
        )  # fmt: skip
        results = pa.Table.from_batches(list(query.rows(batch)), query.schema)
        if query.operator is not None:
            query.operator.finish()
        pointers = {} if query.operator is None else dict(query.operator.pointers)
        answers = None if query.answers is None else query.answers.take()
        metrics = BatchMetrics.merge(batch.metrics)
        return ReplayedBatch(recorded, results, metrics, pointers, has_clock, answers)


def _stand_still(time_us: int) -> Clock:
    return lambda: time_us


def _go_on(time_us: int) -> Clock:
    """Return a clock that starts at a time."""
    begin_s: float | None = None

    def read() -> int:
        nonlocal begin_s
        now_s = monotonic_s()
        begin_s = now_s if begin_s is None else begin_s
        return time_us + round(1e6 * (now_s - begin_s))

    return read
