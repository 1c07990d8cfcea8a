"""Keys of lazy and eager windows leave on real Spark, and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.metrics import metrics
from tests.spark.queries import Place, quotes

pytestmark = pytest.mark.spark


def test_a_silent_key_is_told_once_also_after_a_restart_and_comes_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)

    def made(
        ttl: str | None = "10 s", on_silent: str | None = "row", mode: str = "lazy", **options: Any
    ) -> DataFrame:
        return penstock.update_window(
            place.input.frame(spark), "k", "t", "4 s", "2 s", {"n": "count(*)", "mean": "avg(v)"}, mode=mode,
            unit="s", buckets=2, ttl=ttl, on_silent=on_silent, state_location=place.state,
            **options,
        )  # fmt: skip

    place.input.add(quotes([("a", 1, 1.0), (None, 1, 3.0)]), quotes([("a", 3, 2.0), ("b", 9, 1.0)]))
    place.run(made())
    # Of null the newest pane ends at 2, of a at 4: they are silent from 12 and from 14 on.
    place.input.add(
        quotes([("b", 12, 1.0)]), quotes([("b", 20, 1.0)]), quotes([("a", 21, 5.0), ("b", 26, 7.0)])
    )
    query = place.run(made("10 s"))
    found = [
        (batch, row["k"], int(row["window"]["start"].timestamp()), row["n"], row["mean"], row["silent"])
        for batch, table in place.batches().items()
        for row in table.to_pylist()
    ]
    told = [one for one in found if one[-1]]
    assert told == [(2, None, 0, None, None, True), (3, "a", 2, None, None, True)]
    windows = {one[1:5] for one in found if not one[-1]}
    assert windows >= {(None, 0, 1, 3.0), ("a", 2, 1, 2.0), ("a", 20, 1, 5.0)}
    assert [one["expired"] for one in metrics(query) if one["batch_id"] in (2, 3, 4)] == [1, 1, 0]
    assert [one["keys"] for one in metrics(query) if one["batch_id"] in (2, 3, 4)] == [2, 1, 2]
    with pytest.raises(InvalidUsageError, match="append mode do not take this option"):
        made(mode="append")
    with pytest.raises(InvalidUsageError, match="windows with a budget have no ttl"):
        made(budget=1)
