"""Random selections and projections: as a plan divides them between readers and Spark, and in Spark alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.dataflow import Graph
from penstock.dataflow.nodes import Materialize, Node, PushedScan, Select, Sink, Source, Union, Where
from penstock.errors import InvalidUsageError
from penstock.operators.scan.scanner import Scanner
from penstock.spark_ext.graph.steps import apply_step
from tests.fuzz.case import Case
from tests.fuzz.subjects.expressions import SCHEMA, frame_of, random_rows, random_text, shown

_KEPT = ("i", "j", "x", "s", "b")


_EXCLUDED = "spark.sql.optimizer.excludedRules"
_LOCAL = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
"""Evaluates one selection after the other, where Spark puts those over any other source together."""


def check(case: Case) -> None:
    """Compare some graphs over the same rows."""
    case.spark.conf.set(_EXCLUDED, _LOCAL)
    try:
        _compare(case)
    finally:
        case.spark.conf.unset(_EXCLUDED)


def _compare(case: Case) -> None:
    rows = random_rows(case.random, 30).append_column("row", pa.array(range(30), pa.int64()))
    source = frame_of(case.spark, rows)
    compared = 0
    for _ in range(6):
        graph = _random_graph(case.random, rows.schema, source)
        wanted = _values(_in_spark(graph.root, source))
        if wanted is None:
            continue
        for persist in ("always", "never"):
            plan = graph.plan(persist=persist)
            got = _values(_planned(plan.root, rows, case.spark))
            assert got == wanted, f"persist={persist}\n{plan.explain()}\n{_first(got, wanted)}"
        compared += 1
    assert compared, "every graph fails in Spark"


def _random_graph(random: Random, schema: pa.Schema, source: DataFrame) -> Graph:
    made = penstock.graph("steps").source("rows", schema)
    for number in range(random.randint(1, 5)):
        wider = _with_step(random, made, number)
        # What Spark refuses is no graph.
        try:
            _in_spark(wider.root, source)
        except PySparkException:
            continue
        made = wider
    if random.random() < 0.2:
        made = made.where("row % 2 = 0").union(made.where("row % 3 = 0"))
    return made.sink("memory")


def _with_step(random: Random, made: Graph, number: int) -> Graph:
    names = [name for name in made.schema.names if name in SCHEMA.names]
    if random.random() < 0.6:
        parts = [random_text(random) for _ in range(random.choice([1, 1, 2, 3]))]
        text = " AND ".join(f"({part})" if random.random() < 0.7 else part for part in parts)
        return _tried(lambda: made.where(text), made)
    chosen = [name for name in names if random.random() < 0.7]
    texts = {name: random_text(random) for name in random.sample(_KEPT, 2)}
    texts[f"more_{number}"] = random.choice(
        [random_text(random), "rand(3) * 0", "to_json(struct(row))", "row + 1"]
    )
    kept = [name for name in (*chosen, "row") if name not in texts]
    return _tried(lambda: made.select(*kept, **texts), made)


def _tried(step: Any, otherwise: Graph) -> Graph:
    try:
        return step()
    except InvalidUsageError:  # no condition, or a column that is not there any more
        return otherwise


def _in_spark(node: Node, source: DataFrame) -> DataFrame:
    """Return the graph's result, computed by Spark."""
    if isinstance(node, Source):
        return source
    rows = [_in_spark(above, source) for above in node.inputs]
    if isinstance(node, Where | Select):
        return apply_step(node, rows[0])
    return rows[0].unionByName(rows[1]) if isinstance(node, Union) else rows[0]


def _planned(node: Node, table: pa.Table, spark: SparkSession) -> DataFrame:
    """Return what a plan does: a reader's part in this process, the rest in Spark."""
    made = _made(node, table, spark)
    return frame_of(spark, made) if isinstance(made, pa.Table) else made


def _made(node: Node, table: pa.Table, spark: SparkSession) -> pa.Table | DataFrame:
    if isinstance(node, Source):
        return table
    if isinstance(node, Materialize):
        return _stored(_made(node.inputs[0], table, spark), node.schema)
    if isinstance(node, PushedScan):
        read = _stored(_made(node.inputs[0], table, spark), node.inputs[0].schema)
        scanner = Scanner(node.scan, read.schema)
        return pa.Table.from_batches(
            list(scanner.scan_tables([read.select(list(node.scan.columns))])), scanner.schema
        )
    if isinstance(node, Sink):
        return _made(node.inputs[0], table, spark)
    rows = [_planned(above, table, spark) for above in node.inputs]
    if isinstance(node, Where | Select):
        return apply_step(node, rows[0])
    assert isinstance(node, Union)
    return rows[0].unionByName(rows[1])


def _stored(rows: pa.Table | DataFrame, schema: pa.Schema) -> pa.Table:
    found = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return found.cast(pa.schema([found.schema.field(one.name) for one in schema]))


def _values(rows: DataFrame) -> list[Any] | None:
    """Return types and rows in their order; None where Spark fails."""
    try:
        made = rows.orderBy("row").toArrow()
    except Exception:
        return None
    columns = [shown(column) for column in made.columns]
    return [
        list(zip(made.column_names, map(str, made.schema.types), strict=True)),
        *zip(*columns, strict=True),
    ]


def _first(got: list[Any] | None, wanted: list[Any]) -> str:
    if got is None:
        return "Spark does not fail"
    pairs = zip(got, wanted, strict=False)
    return f"{len(got)} and {len(wanted)} rows: {next((pair for pair in pairs if pair[0] != pair[1]), None)}"
