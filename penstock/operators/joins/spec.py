"""The definition of a join of update streams: its sides, interval, condition and output columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.stream import Integers, UpdateStream, to_times
from penstock.sql.evaluate import evaluate, type_of_expression
from penstock.sql.expression import Expression

__all__ = ["SIDES", "JoinedStream"]

SIDES: Final = ("left", "right")
"""The names of a join's sides, which its stored blocks and settings also have."""


@dataclass(frozen=True)
class JoinedStream:
    """A join of two update streams by key within a time interval (UpStream §3.2).

    Parameters
    ----------
    left, right : UpdateStream
        The sides, whose keys and times have the same names and types.
    within : int
        Maximum time difference of a match, in units of the time column.
    delay : int
        Maximum lateness of a tuple behind the newest time, in the same unit.
    condition : Expression, optional
        A further condition for a match, over the columns of `schema`.
    ttl : int, optional
        How long a key lives after its last tuple on either side, in the same unit; by default for ever.
    tells_silent : bool
        Whether each key stays for its whole time to live, so that its last time can be reported when it goes
        silent. Otherwise a key leaves as soon as no future match needs it.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns of the left side, then the columns of the right side without key and time, and without the
        marks of deletes (`UpdateStream.deleted`). The time is the greater of both times.
    results : pyarrow.Schema
        The columns of results. If a side has deletes, these are the columns of `schema` (every column can be
        null) and a mark of deletes.

    Raises
    ------
    InvalidUsageError
        If the sides do not fit together, `within`, `delay` or `ttl` is out of range, or the condition is not
        boolean.
    """

    left: UpdateStream
    right: UpdateStream
    within: int
    delay: int
    condition: Expression | None = None
    ttl: int | None = None
    tells_silent: bool = False
    schema: pa.Schema = field(init=False, repr=False, compare=False)
    results: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that the sides fit together."""
        left, right = self.left, self.right
        if left.key != right.key or left.time != right.time:
            raise InvalidUsageError(
                "the sides of a join have different keys or times",
                left=f"({', '.join(left.key)}) by {left.time}",
                right=f"({', '.join(right.key)}) by {right.time}",
                hint="give them the same names with select",
            )
        for name in (*left.key, left.time):
            types = [side.schema.field(name).type for side in (left, right)]
            if types[0] != types[1]:
                raise InvalidUsageError(
                    "a column has different types on the sides of a join",
                    column=name, left=types[0], right=types[1], hint="cast one of them",
                )  # fmt: skip
        shared = {*left.key, left.time, right.deleted}
        more = [column for column in right.schema if column.name not in shared]
        own = [column for column in left.schema if column.name != left.deleted]
        here = {column.name.lower() for column in own}
        twice = [column.name for column in more if column.name.lower() in here]
        if twice:
            raise InvalidUsageError(
                "both sides of a join have a column with this name",
                columns=", ".join(twice),
                hint="rename or drop it on one side; only the key and the time may be on both",
            )
        for name in ("within", "delay"):
            if not 0 <= getattr(self, name) < 1 << 63:
                raise InvalidUsageError("a duration is out of range", option=name, steps=getattr(self, name))
        object.__setattr__(self, "schema", pa.schema([*own, *more]))
        object.__setattr__(self, "results", self._results())
        if self.condition is not None:
            object.__setattr__(self, "condition", self._check_condition(self.condition))

    @property
    def has_deletes(self) -> bool:
        """Return whether a side marks deletes."""
        return self.left.deleted is not None or self.right.deleted is not None

    def _results(self) -> pa.Schema:
        if not self.has_deletes:
            return self.schema
        there = [name for name in self.schema.names if name.lower() == DELETED_COLUMN]
        if there:
            raise InvalidUsageError(
                "the stream has this column already",
                column=there[0],
                hint="rename it, or name it in delete_when if it marks deletes",
            )
        nullable = [column.with_nullable(True) for column in self.schema]
        return pa.schema([*nullable, pa.field(DELETED_COLUMN, pa.bool_())])

    def _check_condition(self, condition: Expression) -> Expression:
        """Return the condition with columns spelt as in the schema."""
        if condition.aggregate:
            raise InvalidUsageError("a join's condition has an aggregate", expression=condition.text)
        condition = condition.resolve(self.schema.names)
        kind = type_of_expression(condition, self.schema)
        if kind is None:
            raise InvalidUsageError(
                "the condition of a join cannot be evaluated outside of Spark",
                expression=condition.text,
                hint="use comparisons, logic, arithmetic, CASE, LIKE, IN, BETWEEN and casts that cannot "
                "fail. Compute anything else as a column before the join",
            )
        if kind != pa.bool_():
            raise InvalidUsageError("a join's condition is not boolean", expression=condition.text, type=kind)
        return condition

    def match(self, keys: list[pa.Array[Any]], left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Return the output rows of matched pairs.

        Parameters
        ----------
        keys : list of pyarrow.Array
            The key columns.
        left, right : pyarrow.RecordBatch
            The other columns of both sides.
        """
        time = self.left.time
        here, there = left.column(time), right.column(time)
        columns = dict(zip(self.left.key, keys, strict=True))
        columns |= dict(zip(right.schema.names, right.columns, strict=True))
        columns |= dict(zip(left.schema.names, left.columns, strict=True))
        columns[time] = pc.if_else(pc.greater_equal(here, there), here, there)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def to_results(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return matches with the columns of results."""
        if not self.has_deletes:
            return rows
        marks = pa.array(np.zeros(rows.num_rows, np.bool_))
        return pa.RecordBatch.from_arrays([*rows.columns, marks], schema=self.results)

    def deletes(self, keys: list[pa.Array[Any]], times: Integers) -> pa.RecordBatch:
        """Return the rows that retract the last match of each key."""
        count = len(times)
        known = dict(zip(self.left.key, keys, strict=True))
        known[self.left.time] = to_times(times, self.left.schema.field(self.left.time).type)
        known[DELETED_COLUMN] = pa.array(np.ones(count, np.bool_))
        columns = [known.get(column.name, pa.nulls(count, column.type)) for column in self.results]
        return pa.RecordBatch.from_arrays(columns, schema=self.results)

    def holds(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        """Return a mask of the pairs for which the condition is true; null counts as false.

        Raises
        ------
        InvalidUsageError
            If evaluation fails, such as by integer overflow.
        """
        if self.condition is None:
            return pa.repeat(pa.scalar(True), rows.num_rows)
        mask = evaluate(self.condition, pa.Table.from_batches([rows])).combine_chunks()
        return pc.fill_null(mask, False)
