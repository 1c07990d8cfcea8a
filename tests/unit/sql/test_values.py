"""Values that are left to Spark, and why."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.sql.values import Rows, UnsupportedError, Value, compare_values

DECIMALS = pa.chunked_array([pa.array([Decimal("1.5")], pa.decimal128(38, 30))])
INTEGERS = pa.chunked_array([[1]])


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        (INTEGERS, pa.scalar(None, pa.decimal128(10, 2)), "it compares whole numbers with a null decimal"),
        (DECIMALS, pa.chunked_array([["x"]]), "it combines decimal128(38, 30), string"),
        (DECIMALS, INTEGERS, "it compares decimals with too many digits"),
    ],
)
def test_comparisons_of_decimals_that_only_spark_makes_have_a_reason(
    left: Value, right: Value, reason: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        compare_values(Rows(pa.table({})), "=", left, right)
    assert str(caught.value) == reason
