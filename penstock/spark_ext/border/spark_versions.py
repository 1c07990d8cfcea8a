"""The differences between the versions of Spark that Penstock supports, 4.0 to 4.3.

======================================  ===========  =====================================================
what                                    since Spark  before
======================================  ===========  =====================================================
admission control of Python sources     4.2          a micro-batch has all available rows; limits are
                                                     refused, and ``availableNow`` runs one micro-batch
stream writers that take Arrow batches  4.1          rows become Arrow batches in the worker; maps whose
                                                     keys Python cannot hash are refused
times of day                            4.1          columns of p-streams with them are refused
``timezone=`` of `to_arrow_schema`      4.3          UTC is the default
======================================  ===========  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas import types
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, Row, StructType

from penstock.errors import InvalidUsageError

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "as_arrow_schema",
    "check_stream_columns",
]

_ROWS_OF_A_BATCH = 8192
_STREAMS_ROWS = not hasattr(datasource, "DataSourceStreamArrowWriter")
_HAS_TIME_ZONE = "timezone" in signature(types.to_arrow_schema).parameters

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ModuleNotFoundError:
    HAS_ADMISSION_CONTROL = False

if not TYPE_CHECKING and not HAS_ADMISSION_CONTROL:

    class ReadLimit:
        """The limit of rows or bytes that a micro-batch reads."""

    @dataclass(frozen=True)
    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """A number of rows."""

        max_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """A number of bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow(DataSourceStreamReader):
        """Calls a subclass's ``latestOffset(start, limit)`` when Spark calls ``latestOffset()``.

        Before Spark has passed any offset, `start` is None. This also holds after a restart, because Spark
        passes the last offset only later. On such versions, limits of a micro-batch are refused. The local
        engine always calls ``latestOffset(start, limit)``.
        """

        _last_offset: dict[str, Any] | None = None

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return the limit of a micro-batch."""
            return ReadAllAvailable()

        def __init_subclass__(cls) -> None:
            latest_offset, first, plan = cls.latestOffset, cls.initialOffset, cls.partitions

            @wraps(first)
            def initial(self: SupportsTriggerAvailableNow) -> dict[str, Any]:
                self._last_offset = first(self)
                return self._last_offset

            @wraps(latest_offset)
            def latest(
                self: SupportsTriggerAvailableNow,
                start: dict[str, Any] | None = None,
                limit: ReadLimit | None = None,
            ) -> dict[str, Any]:
                if limit is None:
                    _refuse_limit(self.getDefaultReadLimit())
                    return latest_offset(self, self._last_offset, ReadAllAvailable())
                return latest_offset(self, start, limit)

            @wraps(plan)
            def plan_batch(
                self: SupportsTriggerAvailableNow, start: dict[str, Any], end: dict[str, Any]
            ) -> Any:
                self._last_offset = end
                return plan(self, start, end)

            cls.initialOffset, cls.latestOffset, cls.partitions = initial, latest, plan_batch


def _refuse_limit(limit: ReadLimit) -> None:
    if not isinstance(limit, ReadAllAvailable):
        raise InvalidUsageError(
            "a limit of a micro-batch needs Spark 4.2 or newer",
            limit=limit,
            spark=pyspark.__version__,
            hint="leave out the source's option that limits micro-batches",
        )


def check_stream_columns(schema: StructType, *, as_rows: bool = _STREAMS_ROWS) -> None:
    """Check that Spark can pass columns to a stream writer.

    Before version 4.1, Spark passes Python rows, in which maps are dictionaries. So the keys of maps must be
    hashable.

    Parameters
    ----------
    schema : StructType
        The columns.
    as_rows : bool
        Whether Spark passes Python rows; by default, whether this version does.

    Raises
    ------
    InvalidUsageError
        If this Spark cannot pass a map.
    """
    for field in schema if as_rows else ():
        if _has_unhashable_keys(field.dataType):
            raise InvalidUsageError(
                "a stream of maps with such keys needs Spark 4.1 or newer",
                column=field.name,
                type=field.dataType.simpleString(),
                spark=pyspark.__version__,
                hint="make the keys text or numbers, or write each micro-batch with foreachBatch",
            )


def _has_unhashable_keys(kind: DataType) -> bool:
    match kind:
        case MapType():
            return _is_unhashable(kind.keyType) or _has_unhashable_keys(kind.valueType)
        case ArrayType():
            return _has_unhashable_keys(kind.elementType)
        case StructType():
            return any(_has_unhashable_keys(field.dataType) for field in kind)
    return False


def _is_unhashable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_is_unhashable(field.dataType) for field in kind)
    return isinstance(kind, (ArrayType, BinaryType))


def as_arrow_schema(schema: StructType, *, large: bool = False, unique: bool = False) -> pa.Schema:
    """Return the Arrow schema in which Spark passes rows; timestamps are in UTC.

    Parameters
    ----------
    schema : StructType
        The columns.
    large : bool
        Whether texts and binary values have offsets of 64 bits.
    unique : bool
        Whether a struct with two fields of the same name is refused, with ``UnsupportedOperationException``.
    """
    zone: dict[str, Any] = {"timezone": "UTC"} if _HAS_TIME_ZONE else {}
    return types.to_arrow_schema(
        schema, error_on_duplicated_field_names_in_struct=unique, prefers_large_types=large, **zone
    )


class _RowWriter(DataSourceStreamWriter):
    """Calls a subclass's ``write`` with Arrow batches if Spark passes rows.

    A subclass has the columns as its attribute ``schema``.
    """

    schema: StructType

    def __init_subclass__(cls) -> None:
        write: Callable[[Any, Iterator[pa.RecordBatch]], WriterCommitMessage] = cls.write

        @wraps(write)
        def write_rows(self: _RowWriter, rows: Iterator[Row]) -> WriterCommitMessage:
            return write(self, _batches_of(rows, self.schema))

        cls.write = write_rows  # type: ignore[method-assign, assignment]


def _batches_of(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    arrow = as_arrow_schema(schema)
    convert = [_converter(field.dataType) for field in schema]
    while some := list(islice(rows, _ROWS_OF_A_BATCH)):
        columns = (
            map(to_arrow, values) for to_arrow, values in zip(convert, zip(*some, strict=True), strict=True)
        )
        arrays = [pa.array(list(values), field.type) for field, values in zip(arrow, columns, strict=True)]
        yield pa.record_batch(arrays, schema=arrow)


def _converter(kind: DataType) -> Callable[[Any], Any]:
    """Return a function that converts values of Spark's Python rows to values that Arrow accepts."""
    match kind:
        case StructType():
            fields = [(field.name, _converter(field.dataType)) for field in kind]
            return _unless_null(
                lambda row: {name: convert(value) for (name, convert), value in zip(fields, row, strict=True)}
            )
        case ArrayType():
            to_element = _converter(kind.elementType)
            return _unless_null(lambda values: [to_element(value) for value in values])
        case MapType():
            to_key, to_value = _converter(kind.keyType), _converter(kind.valueType)
            return _unless_null(lambda values: [(to_key(k), to_value(v)) for k, v in values.items()])
    return kind.toInternal if kind.needConversion() else lambda value: value


def _unless_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    DataSourceStreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", _RowWriter)
