"""Lookups in static tables: by Spark's join, or in the readers for small tables.

Spark joins rows with a table in the JVM. A reader that emits only fragments of windows would have to send
each fragment to the JVM and back for the lookup. That costs more than all other work on fragments. A small
table is sent to the readers instead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from penstock.compression.kinds import is_text
from penstock.dataflow.nodes import StreamTableJoin
from penstock.ddl import quote
from penstock.operators.scan.lookup import Lookup, can_be_looked_up
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.border.connection import is_constant
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema

__all__ = ["LookupLimits", "join_table", "lookup_in"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """The size limits of a table, whose keys and groups go to the workers with each micro-batch."""

    rows: int = 1 << 16
    size_bytes: int = 1 << 20


_DEFAULT_LIMITS = LookupLimits()


def join_table(rows: DataFrame, table: DataFrame, on: Sequence[str]) -> DataFrame:
    """Return rows with the other columns of a table, by Spark's inner join.

    Parameters
    ----------
    rows, table : DataFrame
        Two DataFrames that share exactly the columns in `on`.
    on : sequence of str
        The lookup columns.
    """
    other_columns = [quote(name) for name in table.columns if name not in on]
    keys = {quote(name): f"{RESERVED_PREFIX}key_{number}" for number, name in enumerate(on)}
    # Spark parses the name of a join column as an expression, and not every name is a valid expression.
    keyed = table.select(*(sf.col(name).alias(key) for name, key in keys.items()), *other_columns)
    conditions = [sf.col(name) == sf.col(key) for name, key in keys.items()]
    return rows.join(keyed, conditions).select(*map(quote, rows.columns), *other_columns)


def lookup_in(
    table: DataFrame,
    node: StreamTableJoin,
    group_by: tuple[str, ...],
    limits: LookupLimits = _DEFAULT_LIMITS,
) -> str | None:
    """Return the text of a `Lookup` for readers of fragments; None if Spark must join.

    Spark must join if the table is large, has several rows with the same key, or may change between
    micro-batches. Spark must also join if it compares the key columns differently.

    Parameters
    ----------
    table : DataFrame
        The table, with the node's columns.
    node : StreamTableJoin
        The lookup.
    group_by : tuple of str
        The groups of the windows that follow.
    limits : LookupLimits
        The largest table that goes to the readers.
    """
    text, why = _text(table, node, group_by, limits)
    _LOGGER.info("a lookup is made by %s [table=%s]", "the readers" if text else f"Spark: {why}", node.table)
    return text


def _text(
    table: DataFrame, node: StreamTableJoin, group_by: tuple[str, ...], limits: LookupLimits
) -> tuple[str | None, str]:
    """Return the text of a lookup; or None, and the reason why Spark must join."""
    schema = as_arrow_of_spark(table.schema)
    stream = pa.schema([node.inputs[0].schema.field(name) for name in node.on])
    for field in as_arrow_of_spark(spark_schema(stream)):
        if schema.field(field.name).type != field.type:
            return None, "a key is of another type than the stream's"
        if not can_be_looked_up(field.type):
            return None, "a key is of floats, or nested"
    if not is_constant(table):
        return None, "the table may be another one in each micro-batch, or Spark Connect does not tell"
    other_groups = (name for name in group_by if name in schema.names and name not in node.on)
    output = pa.schema([schema.field(name) for name in (*node.on, *other_groups)])
    if any(pa.types.is_nested(field.type) for field in output):
        return None, "a group is nested"
    rows = table.select(*map(quote, output.names)).limit(limits.rows + 1)
    if not _is_small(rows, output, limits):
        return None, f"the table has more than {limits.rows} rows, or {limits.size_bytes} bytes"
    collected = rows.toArrow()
    keys = collected.select(list(node.on)).drop_null()
    if keys.group_by(list(node.on)).aggregate([]).num_rows < keys.num_rows:
        return None, "several rows of the table have the same key"
    try:
        collected.validate(full=True)
    except pa.ArrowInvalid:
        return None, "a text is not UTF-8"
    whole = pa.Table.from_batches([convert(batch, output) for batch in collected.to_batches()], output)
    return Lookup(whole, node.on, group_by).to_text(), ""


def _is_small(rows: DataFrame, schema: pa.Schema, limits: LookupLimits) -> bool:
    """Return whether a table has few rows and bytes, without collecting it."""
    texts = [sf.col(quote(field.name)) for field in schema if is_text(field.type)]
    fixed_bytes = sum(max(field.type.bit_width // 8, 1) for field in schema if not is_text(field.type))
    size = sum((sf.coalesce(sf.octet_length(text), sf.lit(0)) for text in texts), sf.lit(fixed_bytes))
    (counts,) = rows.select(sf.count(sf.lit(1)), sf.coalesce(sf.sum(size), sf.lit(0))).collect()
    return counts[0] <= limits.rows and counts[1] <= limits.size_bytes
