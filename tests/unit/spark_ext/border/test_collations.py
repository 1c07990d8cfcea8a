"""Text with a collation is stored and returned, but never compared outside of Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import Fragments, LatestBy, Partial, Scan
from penstock.spark_ext.border.collations import refuse_collations
from penstock.spark_ext.border.types import stored_schema
from penstock.spark_ext.sources.pushed import Pushed
from penstock.spark_ext.worker.stateful import key_columns

SCHEMA = StructType(
    [
        StructField("s", StringType("UTF8_LCASE")),
        StructField("in", StructType([StructField("a", ArrayType(StringType("UNICODE_CI")))])),
        StructField("plain", StringType()),
        StructField("t", LongType()),
    ]
)
_BY_S = Fragments(1000, "t", "us", ("s",), (Partial("count", "*", "n"),))
_DISTINCT = Fragments(1000, "t", "us", (), (Partial("distinct", "s", "n"),))


def test_keys_of_bytes_and_numbers_are_taken() -> None:
    assert key_columns(["plain", "t"], SCHEMA, SCHEMA) == ("plain", "t")
    refuse_collations(SCHEMA, ["missing"])


@pytest.mark.parametrize("name", ["s", "in"])
def test_a_key_with_a_collation_is_refused(name: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"with a collation is compared: column={name} .*UTF8_BINARY"):
        key_columns(["t", name], SCHEMA)


@pytest.mark.parametrize(
    "scan",
    [
        Scan(("s", "t"), where="t > 1 AND s = 'a'"),
        Scan(("s", "t"), select={"same": "s < 'b'"}),
        Scan(("s", "t"), latest_by=LatestBy(("s",), "t")),
        Scan(("s", "t"), select={"k": "s", "t": "t"}, latest_by=LatestBy(("k",), "t")),
        Scan(("s", "t"), fragments=_BY_S),
        Scan(("s", "t"), fragments=_DISTINCT),
    ],
)
def test_a_reader_does_not_compare_by_bytes_what_has_a_collation(scan: Scan) -> None:
    with pytest.raises(InvalidUsageError, match="with a collation is compared: column=s"):
        Pushed.bind(stored_schema(SCHEMA), scan)


def test_a_reader_returns_what_has_a_collation() -> None:
    scan = Scan(("s", "plain", "t"), where="plain = 'a'", select={"k": "s", "t": "t"})
    assert Pushed.bind(stored_schema(SCHEMA), scan).spark.names == ["k", "t"]
