"""Options of the sink of p-streams that do not fit the DataFrame's columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from penstock.errors import InvalidUsageError
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import open_stream

_CLICKS = StructType(
    [StructField("user", StringType()), StructField("at", LongType()), StructField("page", StringType())]
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "usr"}, "no such column: column=usr. Hint: did you mean 'user'?"),
        ({"time": "att"}, "no such column: column=att. Hint: did you mean 'at'?"),
        ({"time": "page"}, "key or time of this type: column=page type=string. Hint: use a number, a date"),
        (
            {"deleteWhen": "pge = 'b'"},
            "there is no column 'pge': expression=pge = 'b' option=delete_when. Hint: did you mean 'page'?",
        ),
    ],
)
def test_a_wrong_key_time_or_condition_of_a_new_update_log_is_named(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    given = {"path": str(tmp_path / "new"), "key": "user", "time": "at"} | options
    with pytest.raises(InvalidUsageError) as caught:
        open_stream(WriteOptions.parse(given), _CLICKS)
    assert message in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_an_existing_update_log_still_says_how_options_and_columns_differ(tmp_path: Path) -> None:
    path = {"path": str(tmp_path / "log")}
    open_stream(WriteOptions.parse(path | {"key": "user", "time": "at"}), _CLICKS)
    with pytest.raises(InvalidUsageError, match="created with another key"):
        open_stream(WriteOptions.parse(path | {"key": "page", "time": "at"}), _CLICKS)
    narrow = StructType([StructField("user", StringType()), StructField("at", IntegerType())])
    with pytest.raises(InvalidUsageError, match="missing=page unknown=none types=at is int, not bigint"):
        open_stream(WriteOptions.parse(path), narrow)
