"""The cost of reading a stream again, by format: the constants of `penstock.dataflow.cost`.

    python -m benchmarks.p_streams.persist_costs

Each figure is the best of five passes over a replica of the cluster's stream: blocks compressed, written and
synced; blocks read and decoded; and the same rows read by Spark from Parquet, CSV and JSON. Figures are MB of
uncompressed values a second of one core, so that widths do not matter. Syncing is in MB of stored bytes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.harness import descendants, machine
from benchmarks.streams import DATA, load
from penstock.compression import Chooser, TableBlock, encode_table

_UNIT_ROWS = 65_536
_ROUNDS = 5


def _seconds(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    taken = []
    for _ in range(_ROUNDS):
        start = clock()
        action()
        taken.append(clock() - start)
    return min(taken)


def _core_seconds() -> float:
    """Return the CPU time of this process and all that it started, such as Spark's JVM."""
    ticks = 0
    for process in descendants(os.getpid()):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _spark_seconds(folder: Path, schema: pa.Schema) -> dict[str, float]:
    from pyspark.sql import SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    columns = from_arrow_schema(schema)
    spark.read.schema(columns).parquet(str(folder / "parquet")).write.json(str(folder / "json"))
    took = {}
    for kind in ("parquet", "csv", "json"):
        rows = spark.read.format(kind).schema(columns).load(str(folder / kind))
        writer = rows.write.format("noop").mode("overwrite")
        took[kind] = _seconds(writer.save, _core_seconds)
    spark.stop()
    return took


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream", default="cluster")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--quick", action="store_true", help="few rows, without Spark")
    options = parser.parse_args(arguments)
    stream = load(options.stream, options.data, 10_000 if options.quick else options.rows)
    if stream is None:
        raise SystemExit("the stream's file is missing")
    table = stream.long
    mb = table.nbytes / 1e6
    width = table.nbytes / table.num_rows
    units = [table.slice(at, _UNIT_ROWS) for at in range(0, table.num_rows, _UNIT_ROWS)]
    chooser = Chooser(interval_s=1e9)
    blocks = [encode_table(unit, chooser=chooser) for unit in units]
    stored_mb = sum(map(len, blocks)) / 1e6

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for kind in ("parquet", "csv"):
            (folder / kind).mkdir()
        pa.parquet.write_table(table, folder / "parquet" / "part.parquet")
        pa.csv.write_csv(table, folder / "csv" / "part.csv", pa.csv.WriteOptions(include_header=False))

        def write() -> None:
            with (folder / "blocks").open("wb") as file:
                for _ in range(10):
                    file.writelines(blocks)
                file.flush()
                os.fsync(file.fileno())

        def compress() -> None:
            for unit in units:
                encode_table(unit, chooser=chooser)

        print(f"python -m benchmarks.p_streams.persist_costs\n\n{machine()}, load {os.getloadavg()[0]:.1f}")
        print(f"rows {table.num_rows:,}, {width:.3g} bytes each, stored as {stored_mb / mb:.1%}")
        print(f"compress   {mb / _seconds(compress, time.process_time):8.0f} MB/s, one core, CPU time")
        decode = _seconds(lambda: [TableBlock(block).read() for block in blocks], time.process_time)
        print(f"decode     {mb / decode:8.0f} MB/s, one core, CPU time")
        print(f"sync       {10 * stored_mb / _seconds(write):8.0f} MB/s of stored bytes")
        if options.quick:
            return
        for kind, seconds in _spark_seconds(folder, table.schema).items():
            print(f"{kind:<10} {mb / seconds:8.0f} MB/s, Spark, one core, CPU time")


if __name__ == "__main__":
    main()
