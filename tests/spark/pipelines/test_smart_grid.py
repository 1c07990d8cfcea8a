"""The smart-grid example on the real file, beside a plain group-by of the file."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.conf.pipeline import load_pipeline
from penstock.jobs.pipelines.run import run_to_end

_FILE = Path(__file__).parents[4] / "shared" / "data" / "smartgrid-data.txt"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not _FILE.exists(), reason="the smart-grid file is not part of the project"),
]

# The newest load of each plug; of several within one second the one of the later line.
_NEWEST = """
    WITH lines AS (
        SELECT row_number() OVER () AS line, string_split_regex(trim(column0), ' +') AS fields
        FROM read_csv(?, header = false, delim = '\t', columns = {'column0': 'VARCHAR'}, parallel = false)
    )
    SELECT
        fields[6]::INT AS house,
        fields[5]::INT AS household,
        fields[4]::INT AS plug,
        max(fields[1]::BIGINT) AS seconds,
        arg_max(fields[2]::DOUBLE, (fields[1]::BIGINT, line)) AS load
    FROM lines
    WHERE fields[3] = '1'
    GROUP BY ALL
"""


@pytest.mark.parametrize("budget", [None, 150])
def test_the_newest_load_of_every_plug_is_that_of_a_plain_group_by(
    spark: SparkSession, tmp_path: Path, budget: int | None
) -> None:
    expected = duckdb.execute(_NEWEST, [str(_FILE)]).fetchall()
    pipeline = load_pipeline(
        "smart_grid",
        [
            f"source.path={_FILE}",
            f"sink.path={tmp_path / 'out'}",
            f"query.checkpoint={tmp_path / 'checkpoint'}",
            f"queue.budget={'null' if budget is None else budget}",
        ],
    )
    totals = run_to_end(pipeline, spark=spark)
    assert totals.rows_in == 16_814
    assert (totals.emitted, totals.conflated, totals.waiting_keys) == (470, 16_814 - 470, 0)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    served = [
        (row["house"], row["household"], row["plug"], round(row["time"].timestamp()), row["load"])
        for row in rows
    ]
    assert len(served) == 470
    assert sorted(served) == sorted(expected)
