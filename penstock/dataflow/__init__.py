"""The persistent operator graph (Scabbard §3): builder, push-up rules, plans, explanation."""

from penstock.dataflow.builder import Graph, graph
from penstock.dataflow.draw import draw
from penstock.dataflow.explain import as_json, explain, render
from penstock.dataflow.plan import Persist, PhysicalPlan, StreamPlan
from penstock.dataflow.statistics import Statistics, measure

__all__ = [
    "Graph",
    "Persist",
    "PhysicalPlan",
    "Statistics",
    "StreamPlan",
    "as_json",
    "draw",
    "explain",
    "graph",
    "measure",
    "render",
]
