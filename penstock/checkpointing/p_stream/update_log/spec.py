"""The definition of an update log: a key, a time, and a condition that marks deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.checkpointing.fields import Fields
from penstock.checkpointing.p_stream.segments import OFFSET
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["KEEP_DELETES", "UpdateLog"]

KEEP_DELETES: Final = "1 day"
"""The default time for which deletes are kept."""


@dataclass(frozen=True, slots=True)
class UpdateLog:
    """The key, the time and the deletes of an update log. The description of its p-stream contains them.

    Parameters
    ----------
    key : tuple of str
        The columns of the key: integers, texts, booleans, dates, times, or decimals.
    time : str
        The column that orders the rows of a key: the greatest number, date or time is the newest.
    delete_when : str, optional
        The SQL condition of rows that delete their key.
    keep_deletes_us : int
        The time for which deletes are kept after their commit, in microseconds.
    """

    key: tuple[str, ...]
    time: str
    delete_when: str | None
    keep_deletes_us: int

    @classmethod
    def of(
        cls,
        key: str | Sequence[str] | None,
        time: str | None,
        delete_when: str | None = None,
        keep_deletes: str | timedelta | None = None,
    ) -> UpdateLog | None:
        """Return the update log with these options; None if no option is given.

        Raises
        ------
        InvalidUsageError
            If only one of `key` and `time` is given, another option is given without them, or `keep_deletes`
            without `delete_when`.
        """
        if key is None and time is None and delete_when is None and keep_deletes is None:
            return None
        names = (key,) if isinstance(key, str) else tuple(key or ())
        if not names or time is None or len(set(names)) < len(names):
            raise InvalidUsageError(
                "an update log needs a key of different columns and a time",
                key=", ".join(names) or None,
                time=time,
                hint="give key= and time= together",
            )
        keep_us = parse_duration_us(KEEP_DELETES if keep_deletes is None else keep_deletes)
        if keep_deletes is not None and delete_when is None:
            raise InvalidUsageError(
                "keep_deletes is for update logs with deletes",
                hint="give delete_when, or leave keep_deletes out",
            )
        return cls(names, time, delete_when, keep_us)

    def check_schema(self, schema: pa.Schema) -> None:
        """Check that rows of a schema have the key, the time, and the columns of the condition.

        Raises
        ------
        InvalidUsageError
            If a column is missing or has a type that is not allowed, or a column has a reserved name.
        """
        if OFFSET in schema.names:
            raise InvalidUsageError("an update log cannot have a column of this name", column=OFFSET)
        for name in (*self.key, self.time):
            if name not in schema.names:
                raise InvalidUsageError(
                    "the update log has no such column", column=name, hint=did_you_mean(name, schema.names)
                )
        for name, allowed, hint in (
            *(
                (name, _is_key, "use integers, texts, booleans, dates, times, or decimals")
                for name in self.key
            ),
            (self.time, _is_time, "use a number, a date, or a timestamp"),
        ):
            if not allowed(schema.field(name).type):
                raise InvalidUsageError(
                    "an update log cannot have a key or time of this type",
                    column=name,
                    type=schema.field(name).type,
                    hint=hint,
                )
        if self.delete_when is not None and self._condition(schema)[1] is None:
            raise InvalidUsageError(
                "the delete_when of an update log is not a condition that Penstock can evaluate itself",
                delete_when=self.delete_when,
                hint="compare columns with literals; let Spark add a boolean column for anything else",
            )

    def _condition(self, schema: pa.Schema) -> tuple[Any, pa.DataType | None]:
        """Return the condition as an expression, and its type if it is a condition on single rows."""
        from penstock.sql.evaluate import can_fail, type_of
        from penstock.sql.expression import Expression

        condition = Expression.parse(self.delete_when or "false").resolve(schema.names, option="delete_when")
        if condition.generates or type_of(condition, schema) != pa.bool_() or can_fail(condition, schema):
            return condition, None
        return condition, pa.bool_()

    def check_rows(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Check that no row lacks its key or time.

        Raises
        ------
        InvalidUsageError
            If a row lacks its key or its time. A time of NaN is also refused, because it has no order.
        """
        import pyarrow.compute as pc

        for name in (*self.key, self.time):
            column = rows.column(name)
            missing = column.null_count
            if name == self.time and pa.types.is_floating(column.type):
                missing += pc.sum(pc.is_nan(column)).as_py() or 0
            if missing:
                raise InvalidUsageError(
                    "an update log takes no rows without a key or time",
                    column=name,
                    rows=missing,
                    hint="filter these rows before",
                )

    def columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns that a compaction compares."""
        read = set() if self.delete_when is None else set(self._condition(schema)[0].columns)
        return [name for name in schema.names if name in {*self.key, self.time, *read}]

    def deletes(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows that delete their key. A row whose condition is null is not a delete."""
        import numpy as np
        import pyarrow.compute as pc

        from penstock.sql.evaluate import evaluate

        if self.delete_when is None:
            return np.zeros(rows.num_rows, bool)
        found = evaluate(self._condition(rows.schema)[0], rows)
        return np.asarray(pc.fill_null(found, False))

    def to_meta(self) -> dict[str, Any]:
        """Return the fields for a description."""
        meta: dict[str, Any] = {
            "key": list(self.key), "time": self.time, "keep_deletes_us": self.keep_deletes_us
        }  # fmt: skip
        return meta if self.delete_when is None else meta | {"delete_when": self.delete_when}

    @classmethod
    def from_fields(cls, fields: Fields) -> UpdateLog:
        """Return the update log that a description holds.

        Raises
        ------
        CorruptDataError
            If a field is missing or wrong.
        """
        key = fields.items("key")
        return cls(
            tuple(key.text(place) for place in range(len(key))),
            fields.text("time"),
            fields.text("delete_when") if fields.has("delete_when") else None,
            fields.count("keep_deletes_us"),
        )


def _is_key(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
        pa.types.is_boolean, pa.types.is_temporal, pa.types.is_decimal,
    )  # fmt: skip
    return any(test(kind) for test in tests) and not pa.types.is_duration(kind)


def _is_time(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp, pa.types.is_date)
    return any(test(kind) for test in tests)
