"""A graph of operators: what is needed of the readings is kept in a p-stream, windows are made of that.

    python graph.py

Kill it while it runs, and start it again: the source is not read again, the p-stream is.
"""

from pathlib import Path

import penstock

with penstock.session() as spark:
    trades = spark.readStream.format("market").options(rows=50_000, symbols=50).load()
    graph = (
        penstock.graph("volumes")
        .source("trades", trades, kind="market")
        .where("price > 1")
        .window("time", size="2 s", slide="1 s")
        .group_by("symbol")
        .agg(volume="sum(volume)", trades="count(*)")
        .sink("parquet", path="graph/out")
    )
    print(graph.explain(persist="always"))
    running = penstock.start(
        graph, spark, "graph/checkpoint", sources={"trades": trades}, persist="always", available_now=True
    )
    penstock.run(running)
    if Path("graph/out/_spark_metadata").exists():  # a Ctrl-C may come before the first results
        print("windows:", spark.read.schema("symbol string").parquet("graph/out").count())
