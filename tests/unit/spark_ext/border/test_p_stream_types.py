"""Columns of p-streams become columns of Spark with nothing lost, or an error that names them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from penstock.errors import InvalidUsageError
from penstock.spark_ext.border.spark_versions import check_stream_columns
from penstock.spark_ext.border.types import (
    as_arrow_of_spark,
    check_same,
    convert,
    spark_schema,
    stored_schema,
)

_NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

_FOREIGN: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "uint8": (pa.uint8(), [255, None], "smallint"),
    "uint16": (pa.uint16(), [65535, None], "int"),
    "uint32": (pa.uint32(), [2**32 - 1, None], "bigint"),
    "uint64": (pa.uint64(), [2**64 - 1, None], "decimal(20,0)"),
    "half": (pa.float16(), [1.5, None], "float"),
    "seconds": (pa.timestamp("s"), [_NOON.replace(tzinfo=None), None], "timestamp_ntz"),
    "milliseconds": (pa.timestamp("ms", "Asia/Tokyo"), [_NOON, None], "timestamp"),
    "nanoseconds": (pa.timestamp("ns", "UTC"), [_NOON, None], "timestamp"),
    "duration": (pa.duration("s"), [timedelta(seconds=7), None], "interval day to second"),
    "time": (pa.time32("ms"), [time(1, 2, 3, 4000), None], "time(6)"),
    "date": (pa.date64(), [date(1969, 7, 20), None], "date"),
    "large_text": (pa.large_string(), ["é", None], "string"),
    "text_view": (pa.string_view(), ["a" * 20, None], "string"),
    "large_bytes": (pa.large_binary(), [b"\0", None], "binary"),
    "fixed_bytes": (pa.binary(2), [b"ab", None], "binary"),
    "large_list": (pa.large_list(pa.uint8()), [[1, None], None], "array<smallint>"),
    "fixed_list": (pa.list_(pa.int32(), 2), [[1, 2], None], "array<int>"),
    "codes": (pa.dictionary(pa.int8(), pa.string()), ["a", None], "string"),
    "short_decimal": (pa.decimal32(5, 2), [Decimal("1.25"), None], "decimal(5,2)"),
    "wide_decimal": (pa.decimal256(38, 2), [Decimal("1.25"), None], "decimal(38,2)"),
    "struct": (pa.struct({"a": pa.uint8()}), [{"a": 1}, None], "struct<a:smallint>"),
    "map": (pa.map_(pa.large_string(), pa.uint8()), [[("a", 1)], None], "map<string,smallint>"),
    "nothing": (pa.null(), [None, None], "void"),
}


@pytest.mark.parametrize("name", _FOREIGN)
def test_a_type_that_spark_has_not_is_converted_exactly(name: str) -> None:
    kind, values, expected = _FOREIGN[name]
    batch = pa.record_batch([pa.array(values, kind)], names=["c"])
    if name == "time" and pyspark.__version__ < "4.1":
        with pytest.raises(InvalidUsageError, match=r"no counterpart.* column=c type=time32"):
            spark_schema(batch.schema)
        return
    schema = spark_schema(batch.schema)
    assert schema["c"].dataType.simpleString() == expected
    arrow = as_arrow_of_spark(schema)
    rows = convert(batch, arrow)
    assert rows.schema.equals(arrow)
    assert rows["c"].to_pylist() == [int(v) if name == "uint64" and v else v for v in values]
    if not pa.types.is_dictionary(kind):
        assert convert(rows, batch.schema).equals(batch), "and back"


@pytest.mark.parametrize(
    "kind",
    [
        MapType(ArrayType(LongType()), LongType()),
        ArrayType(MapType(BinaryType(), LongType())),
        StructType().add("a", MapType(StructType().add("b", BinaryType()), LongType())),
    ],
    ids=str,
)
def test_where_streams_are_rows_maps_have_keys_that_python_can_hash(kind: DataType) -> None:
    fine = StructType([StructField("fine", MapType(StringType(), ArrayType(LongType())))])
    check_stream_columns(fine, as_rows=True)
    columns = StructType().add("fine", LongType()).add("odd", kind)
    with pytest.raises(InvalidUsageError, match=r"needs Spark 4\.1 or newer: column=odd type="):
        check_stream_columns(columns, as_rows=True)
    check_stream_columns(columns, as_rows=False)


def test_run_ends_are_decoded() -> None:
    batch = pa.record_batch([pc.run_end_encode(pa.array([1, 1, 2]))], names=["c"])
    rows = convert(batch, as_arrow_of_spark(spark_schema(batch.schema)))
    assert rows["c"].to_pylist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([2**60], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([1], pa.duration("ns")), pa.duration("us")),
        (pa.array([1], pa.int64()).cast(pa.date64()), pa.date32()),
        (pa.array([-1], pa.int64()), pa.uint32()),
    ],
)
def test_what_cannot_be_kept_exactly_is_refused_by_name(stored: pa.Array, wanted: pa.DataType) -> None:
    batch = pa.record_batch([stored], names=["secret"])
    with pytest.raises(InvalidUsageError, match=r"kept exactly.* column=secret"):
        convert(batch, pa.schema({"secret": wanted}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(39, 0),
        pa.decimal128(5, -2),
        pa.month_day_nano_interval(),
        pa.list_view(pa.int8()),
        pa.list_(pa.month_day_nano_interval()),
        pa.struct([("a", pa.int8()), ("a", pa.int8())]),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
    ids=str,
)
def test_a_type_without_counterpart_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(InvalidUsageError, match=r"no counterpart.* column=odd"):
        spark_schema(pa.schema({"fine": pa.int64(), "odd": kind}))


def test_the_whole_schema_of_spark_comes_back() -> None:
    schema = StructType(
        [
            StructField("a", LongType(), nullable=False, metadata={"comment": "a key"}),
            StructField("b", ArrayType(StringType(), containsNull=False)),
            StructField("c", DayTimeIntervalType(0, 1)),
            StructField(
                "d", MapType(IntegerType(), StructType([StructField("x", LongType(), False)]), False)
            ),
        ]
    )
    assert spark_schema(stored_schema(schema)) == schema
    with pytest.raises(InvalidUsageError, match=r"no counterpart.* column=odd"):
        stored_schema(StructType([StructField("odd", YearMonthIntervalType())]))


def _type(kind: Any) -> StructType:
    return StructType([StructField("a", LongType()), StructField("b", kind)])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (StructType([StructField("a", LongType())]), "missing=b unknown=none"),
        (_type(StringType()).add("c", LongType()), "missing=none unknown=c"),
        (_type(IntegerType()), "types=b is int, not string"),
        (_type(ArrayType(StringType())), r"types=b is array<string>, not string"),
        (_type(StringType()).add("a", LongType()), "two columns have the same name: columns=a"),
    ],
)
def test_other_columns_are_named(given: StructType, message: str) -> None:
    check_same(_type(StringType()), _type(StringType()), "here")
    with pytest.raises(InvalidUsageError, match=message):
        check_same(given, _type(StringType()), "here")


def test_nullability_and_order_are_no_other_schema() -> None:
    fields = [
        StructField("a", ArrayType(MapType(LongType(), LongType(), False), False), False),
        StructField("b", StructType([StructField("x", LongType(), False)])),
    ]
    loose = [
        StructField("b", StructType([StructField("x", LongType())])),
        StructField("a", ArrayType(MapType(LongType(), LongType()))),
    ]
    check_same(StructType(fields), StructType(loose), "here")
    check_same(StructType(loose), StructType(fields), "here")


_ELEMENT = pa.field("element", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.list_(_ELEMENT), [None, [], [1]], [None, [None]]),
        (pa.struct([_ELEMENT]), [None, {"element": 1}], [{"element": None}]),
        (pa.map_(pa.string(), _ELEMENT), [None, [("a", 1)]], [[("a", None)]]),
        (pa.list_(pa.struct([_ELEMENT])), [None, [None]], [[{"element": None}]]),
    ],
    ids=str,
)
def test_a_null_where_there_may_be_none_is_refused(
    kind: pa.DataType, good: list[Any], bad: list[Any]
) -> None:
    loose = pa.schema({"c": _loose(kind)})
    strict = pa.schema({"c": kind})
    rows = convert(pa.record_batch([pa.array(good, loose.field("c").type)], schema=loose), strict)
    assert rows["c"].to_pylist() == good
    with pytest.raises(InvalidUsageError, match=r"not nullable has nulls: column=c|kept exactly: column=c"):
        convert(pa.record_batch([pa.array(bad, loose.field("c").type)], schema=loose), strict)


def test_a_null_around_what_is_never_null_is_none_in_it() -> None:
    strict = pa.struct([pa.field("a", pa.timestamp("us", "Asia/Tokyo"), nullable=False)])
    wanted = pa.struct([pa.field("a", pa.timestamp("us", "UTC"), nullable=False)])
    values = pa.array([None, {"a": 5}, None], strict)
    for stored, kind in (
        (values, wanted),
        (pa.ListArray.from_arrays([0, 3, 3], values), pa.list_(wanted)),
        (pa.MapArray.from_arrays([0, 1, 3], [1, 2, 3], values), pa.map_(pa.int64(), wanted)),
    ):
        for part in (stored, stored.slice(1)):
            batch = pa.record_batch([part], names=["c"])
            rows = convert(batch, pa.schema({"c": kind}))["c"]
            rows.validate(full=True)
            assert rows.to_pylist() == part.to_pylist()


def _loose(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_loose(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _loose(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _loose(field.type)) for field in kind])
    return kind
