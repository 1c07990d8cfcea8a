"""Join two sources, kill the program in the middle, and start it again: nothing is lost or made twice.

python joined.py --kill    # ends by SIGKILL after the first micro-batch
python joined.py           # goes on from the checkpoint, and prints all spreads
"""

import os
import signal
import sys
from pathlib import Path

import penstock

COLUMNS = "symbol string, time long"
for side, price in (("bid", 100), ("ask", 101)):
    Path(side).mkdir(exist_ok=True)
    for number in range(3):
        file = Path(f"{side}/{number}.json")
        if not file.exists():
            rows = [f'{{"symbol": "{s}", "time": {number}, "{side}": {price + number}}}' for s in "ABC"]
            file.write_text("\n".join(rows), encoding="utf-8")
            os.utime(file, (number, number))  # Spark reads files in the order of their times


def kill(batch):
    """End the program as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


with penstock.session({"spark.sql.shuffle.partitions": "2"}) as spark:

    def quotes(side):
        """Return one side's files as a stream."""
        return spark.readStream.schema(f"{COLUMNS}, {side} double").option("maxFilesPerTrigger", 1).json(side)

    spreads = penstock.update_join(
        quotes("bid"),
        quotes("ask"),
        key="symbol",
        time="time",
        within="1 s",
        condition="ask > bid",
        unit="s",
        state_location="joined/state",
    )
    query = spreads.writeStream.format("parquet").option("path", "joined/out").trigger(availableNow=True)
    query = query.option("checkpointLocation", "joined/checkpoint").start()
    penstock.run(query, on_batch=kill if "--kill" in sys.argv else None)
    for row in spark.read.parquet("joined/out").orderBy("time", "symbol").collect():
        print(row.symbol, row.time, f"{row.ask - row.bid:g}")
