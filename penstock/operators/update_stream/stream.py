"""The definition of an update stream: its columns, key and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.freshness.classes import KeyClasses
from penstock.operators.update_stream.options import check_column, check_weight
from penstock.operators.update_stream.steps import check_times
from penstock.state_store.keys.key_words import KeyCodec, Keys, Words
from penstock.units import NEVER

__all__ = ["RESERVED_PREFIX", "SOURCE_COLUMN", "UpdateStream", "as_int64", "as_micros", "to_times"]

RESERVED_PREFIX = "__penstock_"
"""Prefix reserved for Penstock's own columns."""

SOURCE_COLUMN = f"{RESERVED_PREFIX}source"
"""The column of a union with the rank of a tuple's input; 0 is the preferred input."""

Integers = npt.NDArray[np.int64]

_SIGN = np.int64(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class UpdateStream:
    """The schema of an update stream, (time, update-key-fields, other-fields) (UpStream §3.1).

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns of the stream, in their order.
    key : tuple of str
        The update key's columns; at least one.
    time : str
        The column that orders the updates of a key: an integer, float, date or timestamp.
    arrival : str, optional
        A timestamp column with each tuple's arrival time. By default a tuple arrives with its micro-batch.
    source : str, optional
        For a union: an integer column without nulls. A union keeps one tuple per key and time: the tuple with
        the least source number and, if several have it, the first arrival.
    weight : str, optional
        A numeric column with the weight of the key: positive, finite numbers.
    deleted : str, optional
        A boolean column without nulls that marks deletes. If given, the records of keys keep these marks.
    classes : KeyClasses, optional
        The classes of keys that a freshness contract distinguishes.
    costs_by_key : bool
        Whether the records of keys keep the measured cost of each key.

    Raises
    ------
    InvalidUsageError
        If a column is missing, has an unsuitable type, or has a reserved name.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    time: str
    arrival: str | None = None
    source: str | None = None
    weight: str | None = None
    deleted: str | None = None
    classes: KeyClasses | None = None
    costs_by_key: bool = False
    codec: KeyCodec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = self.schema.names
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InvalidUsageError("column names repeat", columns=repeated)
        reserved = [name for name in names if name.startswith(RESERVED_PREFIX) and name != self.source]
        if reserved:
            raise InvalidUsageError(
                "column names begin with a reserved prefix", columns=reserved, prefix=RESERVED_PREFIX
            )
        if not self.key:
            raise InvalidUsageError("the update key has no column", hint="pass key='column'")
        if len(set(self.key)) != len(self.key):
            raise InvalidUsageError("the update key names a column twice", key=list(self.key))
        for option, name in [
            *(("key", name) for name in self.key),
            ("time", self.time),
            *((("arrival", self.arrival),) if self.arrival is not None else ()),
            *((("weight", self.weight),) if self.weight is not None else ()),
            *(("freshness", name) for name in (self.classes.columns if self.classes else ())),
        ]:
            check_column(option, name, names)
        check_times(self.key, self.schema.field(self.time), self.arrival)
        if self.arrival and not pa.types.is_timestamp(self.schema.field(self.arrival).type):
            raise InvalidUsageError(
                "the arrival column is not a timestamp",
                column=self.arrival,
                type=self.schema.field(self.arrival).type,
            )
        if self.weight is not None:
            check_weight(self.schema.field(self.weight))
        object.__setattr__(self, "codec", KeyCodec([self.schema.field(name) for name in self.key]))

    @property
    def payload(self) -> list[str]:
        """The columns outside of the key."""
        return [name for name in self.schema.names if name not in self.key]

    @property
    def may_add(self) -> frozenset[str]:
        """The columns that a restart may add to the stream: columns that may be null and have no role."""
        roles = {*self.key, self.time, self.arrival, self.source, self.weight}
        roles |= set() if self.classes is None else set(self.classes.columns)
        return frozenset(one.name for one in self.schema if one.nullable and one.name not in roles)

    def keys(self, rows: pa.RecordBatch) -> Keys:
        """Return the update keys of `rows`."""
        return self.codec.encode([rows.column(name) for name in self.key])

    def words(self, rows: pa.RecordBatch) -> Words:
        """Return the update keys of `rows` as words. Requires `KeyCodec.is_word`."""
        return self.codec.words([rows.column(name) for name in self.key])

    def times(self, rows: pa.RecordBatch) -> Integers:
        """Return the times of `rows` as integers in the same order."""
        return as_int64(rows.column(self.time))

    def sources(self, rows: pa.RecordBatch) -> Integers:
        """Return the source numbers of `rows`; empty if there is no source column."""
        if self.source is None:
            return np.zeros(0, np.int64)
        return rows.column(self.source).to_numpy().astype(np.int64, copy=False)

    def find_unusable(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Mark rows with a null (or NaN) in the key, time or arrival column, and rows without a valid weight.

        A weight is a positive, finite number.
        """
        mask = np.zeros(rows.num_rows, np.bool_)
        for unusable, _, _ in self._causes(rows):
            mask |= unusable
        return mask

    def say_why_unusable(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        """Return the first reason why each row is unusable."""
        reasons = np.full(rows.num_rows, None, object)
        for unusable, reason, _ in reversed(list(self._causes(rows))):
            reasons[unusable] = reason
        return pa.array(reasons, pa.string())

    def _causes(self, rows: pa.RecordBatch) -> Iterator[tuple[npt.NDArray[np.bool_], str, str]]:
        """Yield the rows that are unusable for a reason, the reason, and the column."""
        parts = [*((name, "key") for name in self.key), (self.time, "time")]
        for name, part in [*parts, *(((self.arrival, "arrival"),) if self.arrival else ())]:
            column = rows.column(name)
            nan = name == self.time and pa.types.is_floating(column.type)
            if column.null_count or nan:
                unusable = pc.is_null(column, nan_is_null=nan).to_numpy(zero_copy_only=False)
                yield unusable, f"the {part} is null", name
        if self.weight is not None:
            weights = pc.cast(rows.column(self.weight), pa.float64(), safe=False)
            numbers = weights.to_numpy(zero_copy_only=False)
            yield (
                ~((numbers > 0) & np.isfinite(numbers)),
                "the weight is not positive and finite",
                self.weight,
            )

    def drop_unusable(self, rows: pa.RecordBatch, nulls: str) -> tuple[pa.RecordBatch, int]:
        """Return the usable rows and the number of dropped rows.

        Raises
        ------
        InvalidUsageError
            If there are unusable rows and `nulls` is ``"error"``.
        """
        mask = self.find_unusable(rows)
        count = int(np.count_nonzero(mask))
        if not count:
            return rows, 0
        if nulls == "error":
            columns = [name for unusable, _, name in self._causes(rows) if unusable.any()]
            refused = "rows with a null (or NaN) key, time or arrival"
            if self.weight is not None:
                refused += ", or with a weight that is not positive and finite"
            raise InvalidUsageError(
                refused,
                rows=count,
                columns=columns,
                hint="filter them out first, or set nulls to drop, which counts them. A record that cannot "
                "be read has nulls, too; in a pipeline, on_error: skip leaves such records out",
            )
        return rows.filter(pa.array(~mask)), count


def as_int64(column: pa.Array[Any]) -> Integers:
    """Convert a time column without nulls to integers of the same order."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        bits = values.view(np.int64)
        return np.where(bits < 0, bits ^ _SIGN, bits)
    if not pa.types.is_integer(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def to_times(times: Integers, kind: pa.DataType) -> pa.Array[Any]:
    """Turn integers made by `as_int64` back into times; `NEVER` is null."""
    never = times == NEVER
    if pa.types.is_floating(kind):
        bits = np.where(times < 0, times ^ _SIGN, times)
        return pa.array(bits.view(np.float64), mask=never).cast(kind)
    if pa.types.is_integer(kind):
        return pa.array(times, mask=never).cast(kind)
    if kind.bit_width == 32:
        times = times.astype(np.int32)
    return pa.array(times, mask=never).view(kind)


def as_micros(column: pa.Array[Any]) -> Integers:
    """Convert a timestamp column without nulls to microseconds since the epoch."""
    zone = column.type.tz
    return as_int64(pc.cast(column, pa.timestamp("us", tz=zone), safe=False))


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate `batches` (at least one) in order."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
