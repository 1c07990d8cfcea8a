"""Aggregate CSV files in windows; some rows come late.

    python late_rows.py

With `watermark_delay` a window stays open for rows that are up to five seconds behind the newest one. A row
that comes after all its windows have closed is counted as late, and changes nothing.
"""

import os
from pathlib import Path

import penstock

FILES = [
    "1,a,10\n4,a,20\n11,a,30\n",
    "2,a,60\n13,a,40\n",  # second 2 is 9 s behind second 11: its window [0, 10) is open until 15
    "26,a,50\n",  # closes the windows that end before 21
    "3,a,999\n",  # too late
]
Path("readings").mkdir(exist_ok=True)
for number, text in enumerate(FILES):
    file = Path(f"readings/{number}.csv")
    file.write_text(text, encoding="utf-8")
    os.utime(file, (number, number))  # Spark reads files in the order of their times

with penstock.session() as spark:
    files = spark.readStream.schema("second long, plug string, load double").option("maxFilesPerTrigger", 1)
    loads = penstock.update_window(
        files.csv("readings"),
        key="plug",
        time="second",
        unit="s",
        size="10 s",
        watermark_delay="5 s",
        aggs={"mean": "avg(load)", "readings": "count(*)"},
        state_location="late_rows/state",
    )
    query = loads.writeStream.format("parquet").option("path", "late_rows/out").trigger(availableNow=True)
    totals = penstock.run(query.option("checkpointLocation", "late_rows/checkpoint"))
    rows = spark.read.parquet("late_rows/out").selectExpr("unix_seconds(window.start) AS start", "*")
    for row in rows.orderBy("start").collect():
        print(f"[{row.start}, {row.start + 10}): mean {row['mean']:g} of {row.readings} readings")
    print("late:", totals.late)
