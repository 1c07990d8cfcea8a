"""The builder of graphs: ``graph(name).source(...).where(...).select(...)...sink(...)``."""

from penstock.dataflow.builder.graph import Graph, GraphName, graph

__all__ = ["Graph", "GraphName", "graph"]
