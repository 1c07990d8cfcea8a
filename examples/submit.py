"""The same program on a laptop and on a cluster: `penstock.session` takes what spark-submit configures.

    python submit.py out
    spark-submit --master spark://host:7077 --py-files penstock.zip submit.py s3a://bucket/out

`penstock pack --out penstock.zip` makes the archive; docs/how-to/spark-submit.md tells the rest.
"""

import sys

import penstock

out = sys.argv[1] if len(sys.argv) > 1 else "out"
with penstock.session({"spark.sql.shuffle.partitions": "4"}, name="newest trades") as spark:
    trades = spark.readStream.format("market").options(rows=20_000, symbols=200).load()
    newest = penstock.update_queue(
        trades, key="symbol", time="time", policy="linecutting", budget=150, state_location=f"{out}/state"
    )
    query = newest.writeStream.format("parquet").option("path", f"{out}/newest").trigger(availableNow=True)
    totals = penstock.run(query.option("checkpointLocation", f"{out}/checkpoint"))
    print("served:", totals.emitted, "still waiting:", totals.waiting_keys)
