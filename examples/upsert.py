"""Keep a table of SQLite up to date with the newest price of each symbol, by foreachBatch.

    python upsert.py

Each micro-batch replaces the rows of the symbols that it serves. A second run goes on where the first ended.
"""

import sqlite3

import penstock

TABLE = "CREATE TABLE IF NOT EXISTS prices (symbol TEXT PRIMARY KEY, time TEXT, price REAL)"


def upsert(rows, batch_id):
    """Write one micro-batch; Spark may call it again for the same one, which changes nothing."""
    table = rows.selectExpr("symbol", "string(time) AS time", "price").toArrow()
    with sqlite3.connect("prices.db") as database:
        database.execute(TABLE)
        database.executemany("REPLACE INTO prices VALUES (:symbol, :time, :price)", table.to_pylist())


with penstock.session() as spark:
    trades = spark.readStream.format("market").options(rows=20_000, symbols=500).load()
    newest = penstock.update_queue(trades, key="symbol", time="time", state_location="upsert/state")
    query = newest.writeStream.foreachBatch(upsert).trigger(availableNow=True)
    penstock.run(query.option("checkpointLocation", "upsert/checkpoint"))

with sqlite3.connect("prices.db") as database:
    print("symbols:", database.execute("SELECT count(*) FROM prices").fetchone()[0])
