"""Test a graph that is built in Python: the test passes rows and time, and reads results."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.records.python_rows import to_table
from penstock.testing.pipelines import START, LocalTest, late_place, parse_start

if TYPE_CHECKING:
    from penstock.dataflow import Graph, Persist
    from penstock.dataflow.nodes import Node
    from penstock.local_engine.start import LocalGraph

__all__ = ["GraphTest", "graph"]


class GraphTest(LocalTest):
    """A graph under test: `send` replaces its sources, and `rows` replaces its sink.

    Parameters
    ----------
    flow : Graph
        The graph; its sink is ignored.
    directory : pathlib.Path
        The directory for the checkpoint and the state.
    tables : mapping of str to pyarrow.Table or sequence of mapping
        The static tables of the graph's lookups.
    persist : str or mapping of str to str
        See `Graph.plan`.
    trigger : str, optional
        The time between triggers in `advance`. By default, `advance` triggers once, at its end.
    start : datetime
        The time at which the test begins.
    """

    def __init__(
        self,
        flow: Graph,
        directory: Path,
        tables: Mapping[str, pa.Table | Sequence[Mapping[str, Any]]],
        persist: Persist,
        trigger: str | None,
        start: datetime,
    ) -> None:
        from penstock.dataflow.nodes import Sink, Source, StreamTableJoin, topological
        from penstock.local_engine.inputs import PushInput
        from penstock.spark_ext.border.types import spark_schema

        if not isinstance(flow.root, Sink):
            flow = flow.sink("noop")
        self._graph = _without_side_effects(flow, directory)
        self._persist = persist
        nodes = list(topological(flow.root))
        self._tables = {
            node.table: to_table(tables[node.table], node.columns, node.table)
            for node in nodes
            if isinstance(node, StreamTableJoin) and node.table in tables
        }
        inputs = {
            node.name: PushInput(spark_schema(node.schema)) for node in nodes if isinstance(node, Source)
        }
        super().__init__(inputs, directory, trigger, start)

    def _open(self) -> LocalGraph:
        from penstock.local_engine.start import start_local

        return start_local(
            self._graph,
            self._directory / "checkpoint",
            sources={name: _given(source) for name, source in self._inputs.items()},
            paths={},
            tables=self._tables,
            sink=self._open_results,
            persist=self._persist,
            clock=self.clock,
        )

    def send(self, rows: Sequence[Mapping[str, Any]] | pa.Table, to: str = "") -> None:
        """Pass rows to the source `to`; see `PipelineTest.send`.

        If there is only one source, `to` may be left out.
        """
        if not to and len(self._inputs) > 1:
            raise InvalidUsageError("there are several sources", hint=f"to= one of {', '.join(self._inputs)}")
        super().send(rows, to or next(iter(self._inputs)))


def _given(source: Any) -> Any:
    return lambda log: source


def _without_side_effects(flow: Graph, directory: Path) -> Graph:
    """Return a graph that reads the sources of the test, and writes late rows into the test's directory.

    The sources have a kind that the local engine can read, whether the graph has windows or not.
    """
    from penstock.dataflow.nodes import Source, Window, rebuild, topological

    has_windows = any(isinstance(node, Window) for node in topological(flow.root))
    place_of = late_place(directory)

    def change(node: Node) -> Node:
        if isinstance(node, Source):
            return replace(node, kind="parquet" if has_windows else "files", options=())
        options: Any = getattr(node, "options", None)
        if getattr(options, "late_to", None) is None:
            return node
        changed: Any = {"options": replace(options, late_to=place_of(node.name))}
        return replace(node, **changed)

    return replace(flow, root=rebuild(flow.root, change))


@contextmanager
def graph(
    flow: Graph,
    *,
    tables: Mapping[str, pa.Table | Sequence[Mapping[str, Any]]] | None = None,
    persist: Persist = "never",
    trigger: str | None = None,
    start: str | datetime = START,
) -> Iterator[GraphTest]:
    """Open a graph of queues, windows, joins or user-defined operators for a test, in a temporary directory.

    Parameters
    ----------
    flow : Graph
        The graph, from `penstock.graph`. Its sources may be of any kind, and a sink is not needed.
    tables : mapping of str to pyarrow.Table or sequence of mapping, optional
        The static tables of the graph's lookups.
    persist : str or mapping of str to str
        The operators whose results go through a p-stream; see `Graph.plan`.
    trigger : str, optional
        The time between triggers in `GraphTest.advance`.
    start : str or datetime
        The time at which the test begins.

    Yields
    ------
    GraphTest

    Raises
    ------
    InvalidUsageError
        If the local engine cannot run the graph.

    Examples
    --------
    >>> import penstock
    >>> import penstock.testing
    >>> newest = penstock.graph("g").source("quotes", "k STRING, t BIGINT, v DOUBLE").update_queue("k", "t")
    >>> with penstock.testing.graph(newest) as test:
    ...     test.send([{"k": "a", "t": 2, "v": 2.0}, {"k": "a", "t": 1, "v": 1.0}])
    ...     [row["v"] for row in test.rows()]
    [2.0]
    """
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as directory:
        yield GraphTest(flow, Path(directory), tables or {}, persist, trigger, parse_start(start))
