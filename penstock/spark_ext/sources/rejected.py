"""The columns of rejected records, and the error about a bad record."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from penstock.spark_ext.sources.task_rows import REASON

__all__ = ["NOT_JSON", "REFUSAL", "REFUSAL_HINT", "REJECTED", "WRONG_CSV", "WRONG_TYPE"]

REJECTED: Final = StructType(
    [
        StructField("source", StringType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("file", StringType()),
        StructField(REASON, StringType()),
    ]
)
"""The columns of rejected records."""

REFUSAL: Final = "a record cannot be read, or a field of it has another type than the schema says"
REFUSAL_HINT: Final = (
    "on_error: skip leaves such records out, on_error: keep has nulls in their columns; "
    "the metrics count them"
)

NOT_JSON: Final = "the record is not JSON"
WRONG_TYPE: Final = "a field has another type than the schema says"
WRONG_CSV: Final = "the record has other columns, or a field of another type, than the schema says"
