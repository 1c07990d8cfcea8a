"""SmallBank and TPC-C over several buckets of Spark, with transactions over several, equal the serial run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.procedures.programs.oltp import OLTP
from penstock.procedures.programs.oltp.small_bank import SmallBankScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale
from penstock.spark_ext.border.types import spark_schema
from tests.spark.queries import Place

pytestmark = [pytest.mark.spark, pytest.mark.long]

COUNT = 1_500
SCALES = {
    "small_bank": SmallBankScale(customers=100, hot=20),
    "tpcc": TpccScale(warehouses=5, districts=2, customers=30, items=100),
}


@pytest.mark.parametrize("order", ["any", "arrival"])
@pytest.mark.parametrize("name", ["small_bank", "tpcc"])
@pytest.mark.parametrize("buckets", [2, 3])
def test_results_and_tables_equal_the_serial_run(
    spark: SparkSession, tmp_path: Path, name: str, order: str, buckets: int
) -> None:
    benchmark, scale, place = OLTP[name], SCALES[name], Place(tmp_path)
    events = benchmark.requests(scale, COUNT, 3)
    rows = events.append_column("place", pa.array(range(COUNT)))
    frame = place.input.frame(spark, spark_schema(rows.schema))
    for begin in range(0, COUNT, COUNT // 3):
        place.input.add(pa.table(rows.slice(begin, COUNT // 3)))
    ended = place.run(
        penstock.transactions(
            frame,
            benchmark.procedure,
            time="place",
            keep="place",
            buckets=buckets,
            order=order,
            initial={table: pa.table(some) for table, some in benchmark.tables(scale).items()},
            state_location=place.state,
        )
    )
    made = pa.concat_tables(place.batches().values())
    by = ("batch", "forwarded", "place") if order == "any" else ("place",)
    made = made.sort_by([(column, "ascending") for column in by])
    forwarded = sum(entry["forwarded"] for entry in penstock.metrics(ended))
    assert 0 < forwarded < COUNT
    with benchmark.database.open() as serial:
        for table, some in benchmark.tables(scale).items():
            serial.load(table, some)
        expected = serial.run(benchmark.procedure.name, pa.table(events.take(made["place"].combine_chunks())))
        assert made.select(expected.schema.names).to_pylist() == expected.to_pylist()
        for table, spec in benchmark.database.tables.items():
            stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table=table)
            key = [(column, "ascending") for column in spec.key]
            found = stored.select(*spec.names).toArrow().sort_by(key).cast(spec.schema)
            assert found == serial.table(table).sort_by(key), table
