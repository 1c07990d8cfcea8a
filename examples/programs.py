"""Run packaged programs of transactions: GS, SL, OB, TP, a bank, and the tolls of Linear Road.

    python programs.py [NAME ...]

Events are appended to a p-stream, and Spark runs a transaction for each. A second run goes on where the first
ended, with the next events.
"""

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as sf

import penstock
from penstock.procedures.programs import PROGRAMS

EVENTS, KEYS = 20_000, 1_000


def append(program, place):
    """Append events, at first those that fill the tables."""
    opening = program.opening(KEYS)
    with penstock.PStreamWriter(f"{place}/events", opening.schema) as writer:
        seed = writer.clock.get("seed", 0)
        drawn = program.workload(EVENTS, KEYS, seed)
        writer.append(pa.Table.from_batches([drawn] if seed else [opening, drawn]), clock={"seed": seed + 1})


def run(spark, program, place):
    """Run the transactions that have not run yet, and print how they ended."""
    events = spark.readStream.format("pstream").option("reader", "program").load(f"{place}/events")
    results = penstock.transactions(events, program.procedure, state_location=f"{place}/state")
    query = results.writeStream.format("parquet").option("path", f"{place}/results")
    penstock.run(query.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True))
    outcome = spark.read.parquet(f"{place}/results")
    counts = outcome.groupBy("rejected").agg(sf.count("*").alias("rows")).orderBy("rejected").collect()
    ends = ", ".join(f"{row['rejected'] or 'committed'} {row['rows']}" for row in counts)
    print(f"{program.name} ({program.summary}): {ends}")


if __name__ == "__main__":
    with penstock.session() as spark:
        for name in sys.argv[1:] or PROGRAMS:
            place = Path("programs", name).absolute()
            append(PROGRAMS[name], place)
            run(spark, PROGRAMS[name], place)
