"""A user-defined operator as the operator of a bucket's task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock._clock import Clock, monotonic_s, new_id
from penstock.errors import InvalidUsageError
from penstock.operators.own.abc import Operator, name_of_operator
from penstock.operators.own.state import OperatorState, call, check_results, waiting_keys
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.spark_ext.border.transaction_packing import sort_rows
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare

__all__ = ["OwnOperator"]


@dataclass(frozen=True)
class OwnOperator:
    """A user-defined operator as an `Operator` of a bucket's task. The driver sends it to the workers.

    Parameters
    ----------
    operator : Operator
        The operator that the user made.
    schema, output : pyarrow.Schema
        The columns of the input and of the results.
    key : tuple of str
        The key columns: rows with equal values in them are in the same bucket.
    time : str, optional
        The column that orders the rows of a micro-batch.
    columns : tuple of str
        Names and Spark types of the input's columns, for the check at a restart.
    start : str
        The id of this start of the query.
    """

    operator: Operator
    schema: pa.Schema
    output: pa.Schema
    key: tuple[str, ...]
    time: str | None
    columns: tuple[str, ...]
    start: str = field(default_factory=new_id)

    def specification(self) -> dict[str, Any]:
        """Return the fixed settings; see `penstock.spark_ext.worker.bucket_task.Operator`."""
        return {
            "operator": name_of_operator(self.operator),
            "key": list(self.key),
            "time": self.time,
            "schema": list(self.columns),
            "output": [f"{field.name} {field.type}" for field in self.output],
            # Waiting keys need timeouts, with which Spark's own state has a different schema.
            "waits": self.operator.may_wait,
        }

    @property
    def may_add(self) -> Mapping[str, Collection[str]]:
        """The columns that a restart may add to the input and to the results; see `GrowingOperator`.

        Penstock stores none of these columns, so no stored row has to change.
        """
        roles, output = {*self.key, self.time}, self.specification()["output"]
        named = zip(self.columns, self.schema, strict=True)
        return {
            "schema": [text for text, field in named if field.nullable and field.name not in roles],
            "output": output,
        }

    @property
    def follows_clock(self) -> bool:
        """Return whether the operator may ask for the time."""
        return self.operator.uses_clock

    def new_state(self) -> OperatorState:
        """Return an operator without tables."""
        return OperatorState(self.operator, self.start)

    def run(
        self, state: OperatorState, parcels: Iterable[Parcel], task_share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Run the operator over the rows of a micro-batch.

        Raises
        ------
        InvalidUsageError
            If the operator raises an error, or its result is not a table with its output columns.
        """
        held = [parcel.batch for parcel in parcels if parcel.batch is not None]
        rows = self.schema.empty_table()
        if held:
            rows = pa.Table.from_batches([cast_to_schema(sort_rows(held, len(self.schema)), self.schema)])
        state.renew(self.operator, self.start)
        metrics = BatchMetrics(rows_in=rows.num_rows)
        begin = monotonic_s()
        result = call(state.operator, "run", rows, clock if self.operator.uses_clock else self._refuse_clock)
        table = check_results(state.operator, result, self.output)
        batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        metrics.duration_ms["run"] = 1000 * (monotonic_s() - begin)
        metrics.rows_out = metrics.emitted = sum(batch.num_rows for batch in batches)
        metrics.waiting_keys = waiting_keys(state.operator)
        return batches, metrics

    def _refuse_clock(self) -> int:
        raise InvalidUsageError(
            "an operator asked for the time without uses_clock",
            operator=name_of_operator(self.operator),
            hint="write uses_clock = True in its class",
        )
