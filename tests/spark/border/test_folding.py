"""Spark drops parts of conditions, even parts that can fail. A reader fails only where Spark fails."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvalidUsageError
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.spec import Scan
from penstock.sql.evaluate import type_of
from penstock.sql.expression import Expression
from tests.fuzz.subjects.expressions import frame_of
from tests.long_tests import long_but
from tests.spark.queries import settings

pytestmark = pytest.mark.spark

_INT32_MAX = 2**31 - 1
_ROWS = pa.table(
    {
        "row": pa.array(range(8), pa.int64()),
        "i": pa.array([1, 3, _INT32_MAX, None, -5, _INT32_MAX, _INT32_MAX, None], pa.int32()),
        "j": pa.array([2, 2**63 - 1, 3, 4, None, 3, None, 2**63 - 1], pa.int64()),
        "b": [True, False, None, True, False, True, True, None],
        "c": [True, True, False, None, False, False, None, True],
    }
)
_FAIL = [
    "i + 1 > 0", "i * 2 < 10", "j + 1 > i", "(j + 1) IS NULL", "- i < 0", "i + 1 <=> i + 1",
    "i + 1 IN (4, 9)",
    "i + 1 <> i + 2", "abs(i) > 1", "i - j > 0", "NOT (i + 1 > 0)", "(i + 1) IS NOT NULL",
    "i + 1 > 9999999999",
    "CASE WHEN b THEN i + 1 ELSE j + 1 END > 3", "coalesce(i + 1, 3) = 3", "i + 1 BETWEEN 2 AND 5",
    "if(b, i + 1 > 2, c)", "j * 2 > 3", "3 <> i + 1", "i + i * 2 > 3", "(i + 1) * j > 3",
    "i + 1 = 2147483647 + 1",
]  # fmt: skip
_PLAIN = [
    "b", "c", "i = 3", "j <=> 3", "i > 0", "NOT b", "true", "false", "NULL", "1 > 2", "2 > 1", "i > NULL",
    "i IS NULL", "j IS NOT NULL", "b = c", "b <=> c", "i = i", "NOT (i = 3)", "i IN (3, 4)",
    "j BETWEEN 3 AND 4",
    "b IS TRUE", "true AND b", "false OR c", "i = 3 OR i = 4", "NULL IS NULL", "coalesce(b, true)", "i = j",
    "i > 9999999999", "i >= 2147483647L", "j > 3", "NOT (j <> 3)",
]  # fmt: skip
_SHAPES = [
    "{f}", "{f} AND {p}", "{p} AND {f}", "{f} OR {p}", "{f} AND ({p} OR {f})",
    "({f} AND {p}) OR ({q} AND {p})", "NOT ({f} OR {p})", "if({f}, {p}, {q})",
    "CASE WHEN {p} THEN {f} WHEN {f} THEN {q} END", "({f}) = ({p})", "CASE WHEN {f} THEN {p} ELSE {p} END",
    "coalesce({p}, {f})", "{f} AND {p} AND {q}", "({f} OR {p}) AND {q}", "if({p}, {f}, {q}) AND {p}",
    "NOT ({f} AND {p})", "{p} AND {q} AND {f}", "({p} OR {q}) AND ({p} OR {f})", "NOT ({p} AND NOT ({f}))",
    "if({p}, {f}, {f})", "CASE WHEN {p} THEN {f} ELSE {q} END", "{f} OR {q} OR {p}", "({f}) <=> ({p})",
    "({p} AND {f}) IS NULL", "if({f}, true, false)", "if({f}, false, true) AND {p}",
    "CASE WHEN {p} THEN {q} WHEN {q} THEN {f} ELSE {p} END", "({f}) AND NOT ({f})",
    "({p}) AND NOT ({p}) AND {f}",
    "({p}) OR NOT ({p}) OR {f}", "{f} AND {q} OR {f} AND {p}",
]  # fmt: skip


def shortened(random: Random) -> str:
    """Return a condition of which a part can fail."""
    p, q = random.choice(_PLAIN), random.choice(_PLAIN)
    return random.choice(_SHAPES).format(f=random.choice(_FAIL), p=p, q=q)


def rows_of_spark(frame: DataFrame, text: str) -> list[int] | None:
    """Return the rows that Spark selects; None where it fails."""
    try:
        return sorted(row[0] for row in frame.where(text).select("row").collect())
    except Exception as error:
        assert "OVERFLOW" in str(error), text
        return None


def rows_of_reader(text: str) -> list[int] | None:
    """Return the rows that a reader selects; None where it fails."""
    names = _ROWS.schema.names
    try:
        return list(
            Scanner(Scan(tuple(names), text, {"row": "row"}), _ROWS.schema).apply(_ROWS)["row"].to_pylist()
        )
    except InvalidUsageError as error:
        assert "overflow" in str(error), text
        return None


@pytest.mark.parametrize("seed", long_but(range(3), 0))
def test_a_reader_fails_where_spark_does(spark: SparkSession, seed: int) -> None:
    random, frame = Random(seed), frame_of(spark, _ROWS)
    texts = {"i + 1 > 0 AND false", "b AND i + 1 > 0", *_FAIL, *(shortened(random) for _ in range(600))}
    taken = [text for text in sorted(texts) if type_of(Expression.parse(text), _ROWS.schema) == pa.bool_()]
    assert len(taken) > 10
    # It evaluates a selection before Spark has shortened it, which happens over local rows only.
    local = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    with settings(spark, spark__sql__optimizer__excludedRules=local):
        for text in taken:
            assert rows_of_reader(text) == rows_of_spark(frame, text), text


def test_what_spark_may_shorten_is_left_to_it() -> None:
    for text in (
        "i + 1 > NULL", "i + 1 > 0 AND (b OR NULL)", "if(i + 1 > 0, b, b)", "i + 1 <=> (i + 1)",
        "CASE WHEN i + 1 > 0 THEN NULL END", "i + 1 > 0 AND i = 3", "(i + 1 > 0 AND b) OR (c AND b)",
        "NOT (i + 1 > 0 OR NOT (i = 3))", "NOT (i + 1 > 0 OR i = i)", "b AND b = c AND i + 1 > j",
        "(b AND (j + 1) IS NULL) IS NULL", "NOT (i + 1 BETWEEN 2 AND 5)", "i + 1 > 0 AND b",
        "i + 1 > 0 OR true",
        "named_struct('a', i, 'b', i + 1).a", "named_struct('a', i + 1 > j)",
        "i + 1 > 9999999999", "i = j AND i + 1 > 0", "i + 1 > 0 AND j + 1 > 0",
    ):  # fmt: skip
        assert type_of(Expression.parse(text), _ROWS.schema) is None, text
    for text in (
        "i + 1 > 0",
        "b AND j > 3 AND i + 1 > 0",
        "false AND i + 1 > 0",
        "(i + 1) * 2 - j",
        "if(i + 0.5D > 1, j * i, 0)",
        "CASE WHEN b THEN i + 1 END",
        "coalesce(i + 1, NULL)",
        "named_struct('a', i + 1, 'b', CASE WHEN b THEN j + 1 END)",
    ):
        assert type_of(Expression.parse(text), _ROWS.schema) is not None, text
