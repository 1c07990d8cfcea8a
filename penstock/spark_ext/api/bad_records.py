"""Records of JSON or CSV that cannot be read, or have a field of another type.

They are counted, and kept, skipped or refused.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from penstock.conf.sections import OnError
from penstock.spark_ext.api.metrics import BAD_RECORDS_PREFIX

__all__ = ["BAD_RECORD", "count_bad_records"]

BAD_RECORD: Final = "__penstock_bad_record"
"""The column in which Spark's parsers put the text of a bad record; null for good ones."""

_REFUSAL: Final = (
    "a record cannot be read, or a field of it has another type than the schema says. Hint: on_error: skip "
    "leaves such records out, on_error: keep has nulls in their columns; the metrics count them"
)


def count_bad_records(rows: DataFrame, place: str, on_error: OnError) -> DataFrame:
    """Return a source's rows without the column `BAD_RECORD`, and count those that have it.

    Parameters
    ----------
    rows : DataFrame
        With that column.
    place : str
        The source's name in the pipeline, under which the count is observed.
    on_error : {"keep", "skip", "fail"}
        The treatment of such records.
    """
    is_bad = sf.col(BAD_RECORD).isNotNull()
    rows = rows.observe(BAD_RECORDS_PREFIX + place, sf.count_if(is_bad).alias("records"))
    if on_error == "skip":
        rows = rows.where(~is_bad)
    elif on_error == "fail":
        rows = rows.where(sf.when(is_bad, sf.raise_error(sf.lit(_REFUSAL)).cast("boolean")).otherwise(True))
    return rows.drop(BAD_RECORD)
