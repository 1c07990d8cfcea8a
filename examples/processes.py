"""Two processes and one p-stream: one appends readings, the other reads them in order. No Spark.

python processes.py
"""

import subprocess
import sys

import penstock

WRITER = """
import pyarrow as pa
import penstock

schema = pa.schema({"plug": pa.string(), "load": pa.float64()})
with penstock.PStreamWriter("readings.pstream", schema) as writer:
    for number in range(1_000):
        writer.append([{"plug": f"plug-{number % 10}", "load": float(number)}])
"""

child = subprocess.Popen([sys.executable, "-c", WRITER])
child.wait()  # it may as well go on writing while others read

reader = penstock.PStreamReader("readings.pstream", reader="sums")
loads = reader.read().to_pydict()["load"]
reader.release()  # a restart goes on behind these rows, and they may be deleted
print("rows:", len(loads), "sum:", sum(loads))
