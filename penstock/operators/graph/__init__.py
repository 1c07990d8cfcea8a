"""The persistent operator graph (Scabbard §3): builder, push-up rules, plans, explanation."""

from penstock.operators.graph.builder import Graph, graph
from penstock.operators.graph.draw import draw
from penstock.operators.graph.explain import as_json, explain, render
from penstock.operators.graph.plan import Persist, PhysicalPlan, StreamPlan
from penstock.operators.graph.statistics import Statistics, measure

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
