"""Statistics of a graph from samples of its sources: the rows and bytes that leave each operator.

The sample runs through the graph itself, as far as `penstock.sql.evaluate` supports its expressions, so
correlated conditions are measured together. An external SQL engine would be another dependency at run time,
and sqlglot's executor works row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataflow.nodes import (
    Materialize,
    Node,
    PushedScan,
    Select,
    Sink,
    Source,
    Union,
    Where,
    Window,
    topological,
)
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import PANE, Fragments
from penstock.operators.types import UNKNOWN, expression_type, fixed_bytes
from penstock.operators.update_stream.cast import cast
from penstock.sql.evaluate import filter_rows, project, type_of
from penstock.sql.expression import Expression

__all__ = ["SELECTIVITY", "Flow", "Statistics", "flows", "measure"]

SELECTIVITY: Final = 1 / 3
"""The selectivity assumed for a condition that no sample measures, as is customary since System R."""

_TEXT_BYTES: Final = 16
"""The bytes assumed for a text, list or struct if there is no sample."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Samples of a graph's sources; `measure` makes them.

    Parameters
    ----------
    samples : mapping of str to pyarrow.Table
        Samples by source name.
    compress : bool
        Whether stored bytes are measured on compressed columns rather than plain columns.
    """

    samples: Mapping[str, pa.Table]
    compress: bool = True
    _sizes: dict[tuple[Any, ...], float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def stored_bytes(self, table: pa.Table) -> float:
        """Return the stored bytes per tuple of a table in a p-stream; results are cached."""
        if not self.compress:
            return _plain_bytes(table)
        return sum(self._column_bytes(table[name].combine_chunks()) for name in table.column_names)

    def _column_bytes(self, values: pa.Array[Any]) -> float:
        if not len(values):
            return 0.0
        places = tuple(None if buffer is None else buffer.address for buffer in values.buffers())
        cache_key = (places, values.offset, len(values), values.type)
        if cache_key not in self._sizes:
            from penstock.compression import encode

            self._sizes[cache_key] = len(encode(values)) / len(values)
        return self._sizes[cache_key]


def measure(
    root: Node, sample: pa.Table | Mapping[str, pa.Table], *, compress: bool = True, most_rows: int = 65_536
) -> Statistics:
    """Measure samples of a graph's sources for planning.

    Parameters
    ----------
    root : Node
        The graph.
    sample : pyarrow.Table or mapping of str to pyarrow.Table
        Sample of the only source, or samples by source name.
    compress : bool
        Whether to compress columns to learn their size in a p-stream. Compression needs kernels, which are
        compiled at the first use on a machine.
    most_rows : int
        The number of rows of each sample to use, from its beginning. The default is the size of a p-unit.

    Raises
    ------
    InvalidUsageError
        If a sample belongs to no source, is empty, or lacks a column.
    """
    sources = {node.name: node for node in topological(root) if isinstance(node, Source)}
    if isinstance(sample, pa.Table):
        if len(sources) != 1:
            raise InvalidUsageError(
                "one sample is given for several sources",
                hint="pass a dict from the name of each source to its sample",
                sources=", ".join(sources),
            )
        sample = dict.fromkeys(sources, sample)
    samples = {}
    for name, table in sample.items():
        if name not in sources:
            raise InvalidUsageError(
                "a sample is given for an unknown source", sample=name, sources=", ".join(sources)
            )
        schema = sources[name].schema
        missing = [column_name for column_name in schema.names if column_name not in table.column_names]
        if missing or not table.num_rows:
            fact = "a sample lacks a column" if missing else "a sample is empty"
            raise InvalidUsageError(fact, source=name, **({"column": missing[0]} if missing else {}))
        try:
            samples[name] = cast(table.select(schema.names).slice(0, most_rows), schema).combine_chunks()
        except pa.ArrowInvalid as error:
            raise InvalidUsageError(
                f"a sample has other types than its source: {error}", source=name
            ) from None
    return Statistics(samples, compress)


@dataclass(frozen=True, slots=True)
class Flow:
    """The output of an operator.

    Parameters
    ----------
    rows : float or None
        The number of output tuples for the whole sample; without a sample, for one tuple at each source. None
        if the number is unknown, as after stateful operators.
    bytes : float
        Bytes per tuple, uncompressed.
    measured : bool
        Whether rows were counted rather than estimated from an assumed selectivity.
    table : pyarrow.Table, optional
        The sample at this operator's output.
    """

    rows: float | None
    bytes: float
    measured: bool
    table: pa.Table | None = field(default=None, compare=False, repr=False)


def flows(root: Node, statistics: Statistics | None = None) -> dict[int, Flow]:
    """Return the output flow of every operator, by the id of its node."""
    flow_of: dict[int, Flow] = {}
    for node in topological(root):
        flow_of[id(node)] = _flow(node, [flow_of[id(input)] for input in node.inputs], statistics)
    return flow_of


def _flow(node: Node, inputs: list[Flow], statistics: Statistics | None) -> Flow:
    if isinstance(node, Source):
        table = None if statistics is None else statistics.samples.get(node.name)
        return Flow(1.0, _typed_bytes(node.schema), False) if table is None else _measure_table(table)
    tables = [flow.table for flow in inputs]
    if isinstance(node, PushedScan):
        return _scan_flow(node, inputs[0])
    if all(table is not None for table in tables):
        result = _compute(node, [table for table in tables if table is not None])
        if result is not None:
            return _measure_table(result)
    rows: float | None = None
    if not node.stateful and all(flow.rows is not None for flow in inputs):
        rows = sum(flow.rows or 0.0 for flow in inputs)
        if isinstance(node, Where):
            rows *= SELECTIVITY ** len(node.predicate.conjuncts())
    return Flow(rows, _typed_bytes(node.schema), False)


def _compute(node: Node, inputs: list[pa.Table]) -> pa.Table | None:
    """Return a node's output for samples of its inputs; None if Penstock cannot compute the output."""
    schema = node.inputs[0].schema
    if isinstance(node, Where):
        return filter_rows(inputs[0], node.predicate) if type_of(node.predicate, schema) else None
    if isinstance(node, Select):
        if any(expression_type(expression, schema) == UNKNOWN for _, expression in node.columns):
            return None
        return project(inputs[0], dict(node.columns))
    if isinstance(node, Materialize | Window | Sink):
        return inputs[0]
    if isinstance(node, Union) and not node.stateful:
        return pa.concat_tables([table.select(schema.names) for table in inputs])
    return None


def _scan_flow(node: PushedScan, flow: Flow) -> Flow:
    """Return the output flow of a reader. The flow of fragments and of conflated tuples has no table."""
    scan, table = node.scan, flow.table
    width = _typed_bytes(node.schema)
    if table is None:
        stateless = scan.fragments is None and scan.latest_by is None and flow.rows is not None
        conditions = 0 if scan.where is None else len(Expression.parse(scan.where).conjuncts())
        return Flow((flow.rows or 0.0) * SELECTIVITY**conditions if stateless else None, width, False)
    table = table.select(list(scan.columns))
    if scan.where is not None:
        table = filter_rows(table, Expression.parse(scan.where))
    if scan.select is not None:
        table = project(table, {name: Expression.parse(text) for name, text in scan.select.items()})
    if scan.latest_by is not None:
        return Flow(float(_groups(table, list(scan.latest_by.key))), width, True)
    if scan.fragments is not None:
        return Flow(
            float(_groups(_panes(table, scan.fragments), [PANE, *scan.fragments.group_by])), width, True
        )
    return _measure_table(table)


def _panes(table: pa.Table, fragments: Fragments) -> pa.Table:
    steps = table[fragments.time].cast(pa.int64())
    quotients = pc.divide(steps, fragments.pane_steps)
    below = pc.and_(pc.less(steps, 0), pc.not_equal(pc.multiply(quotients, fragments.pane_steps), steps))
    return table.append_column(PANE, pc.subtract(quotients, below.cast(pa.int64())))


def _groups(table: pa.Table, names: list[str]) -> int:
    return table.select(names).group_by(names).aggregate([]).num_rows


def _measure_table(table: pa.Table) -> Flow:
    width = _plain_bytes(table) if table.num_rows else _typed_bytes(table.schema)
    return Flow(float(table.num_rows), width, True, table)


def _plain_bytes(table: pa.Table) -> float:
    """Return the bytes per tuple of values and text offsets, without validity bitmaps."""
    return sum(
        _values_bytes(table[name].combine_chunks()) / max(1, table.num_rows) for name in table.column_names
    )


def _values_bytes(values: pa.Array[Any]) -> float:
    width = fixed_bytes(values.type)
    return float(values.nbytes) if width is None else width * len(values)


def _typed_bytes(schema: pa.Schema) -> float:
    return sum(fixed_bytes(column.type) or _TEXT_BYTES for column in schema)
