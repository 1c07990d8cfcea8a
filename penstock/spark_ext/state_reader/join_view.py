"""The state of joins of update streams as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from penstock.checkpointing import PUnit
from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import SIDES, JoinedStream
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.stream import RESERVED_PREFIX, UpdateStream, to_times
from penstock.spark_ext.state_reader.state_view import Ours, Stored, displayed_schema, one_of_tables
from penstock.sql.expression import Expression
from penstock.units import FOREVER

__all__ = ["JoinView", "join_view"]

_KEYS, _HELD = "keys", "held"
_NO_DELAY_STORED = FOREVER
"""The delay for files of early versions, which do not store the delay: no tuple is treated as expired."""


@dataclass(frozen=True)
class JoinView:
    """One row for each key with state, or for each tuple that a side holds; a `StateView`.

    Parameters
    ----------
    joined : JoinedStream
        The joined stream.
    held : bool
        Whether to show held tuples instead of keys.
    schema : StructType
        The columns.
    """

    joined: JoinedStream
    held: bool
    schema: StructType

    def new_state(self) -> UpdateJoin:
        """See `StateView.new_state`."""
        return UpdateJoin(self.joined)

    def rows(self, state: UpdateJoin, unit: PUnit) -> list[pa.Array[Any]] | None:
        """See `StateView.rows`."""
        key_rows, left = unit.blocks[KEY_BLOCK], self.joined.left
        keys = [key_rows.column(name) for name in left.key]
        if not self.held:
            kind = left.schema.field(left.time).type
            matched = (key_rows.column(f"{RESERVED_PREFIX}{side}").to_numpy() for side in SIDES)
            return [*keys, *(to_times(times, kind) for times in matched)]
        parts = [self._held_rows(keys, side, unit.blocks[side]) for side in SIDES]
        return list(pa.concat_batches(parts).columns)

    def _held_rows(self, keys: list[pa.Array[Any]], side: str, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the tuples that a side holds, with nulls in the other side's columns."""
        rows = block.num_rows
        of = block.column(OWNER)
        key_columns = dict(zip(self.joined.left.key, (key.take(of) for key in keys), strict=True))
        key_columns |= {name: block.column(name) for name in block.schema.names}
        columns = [pa.repeat(pa.scalar(side), rows)]
        fields = [pa.field("side", pa.string())]
        for field in self.joined.schema:
            columns.append(key_columns.get(field.name, pa.nulls(rows, field.type)))
            fields.append(field.with_nullable(True))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def join_view(stored: Stored, table: str | None) -> JoinView:
    """Return the view of a join.

    Raises
    ------
    InvalidUsageError
        If the join has no such table.
    """
    specification = stored.specification
    held = one_of_tables((_KEYS, _HELD), table, of="a join") == _HELD
    sides = [stored.columns(specification[side], KEY_BLOCK, side) for side in SIDES]
    key, time = tuple(specification["key"]), specification["time"]
    # A restart may change a condition, but not whether a side has deletes. The last column of such a side is
    # the mark of deletes.
    marks = [specification.get("deletes") and columns.names[-1] == DELETED_COLUMN for columns in sides]
    left, right = (
        UpdateStream(stored.arrow(columns), key, time, deleted=DELETED_COLUMN if mark else None)
        for columns, mark in zip(sides, marks, strict=True)
    )
    condition = specification["condition"]
    joined = JoinedStream(
        left,
        right,
        specification["within"],
        _NO_DELAY_STORED,
        None if condition is None else Expression.parse(condition),
        # Any value works here, because the stored horizon determines which keys have left.
        ttl=1 if specification.get("ttl") else None,
        tells_silent=specification.get("on_silent") is not None,
    )
    own = [one for one in sides[0] if one.name != left.deleted]
    both = StructType(
        [
            *own,
            *(side for side in sides[1] if side.name not in {*key, time} and side.name != right.deleted),
        ]
    )
    if held:
        schema = displayed_schema([Ours("side", StringType()), *both])
    else:
        kind = both[time].dataType
        matched = [Ours(f"matched_{side}", kind) for side in SIDES]
        schema = displayed_schema([*(both[name] for name in key), *matched])
    return JoinView(joined, held, schema)
