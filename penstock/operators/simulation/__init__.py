"""Queues under a simulated clock: one server, a fixed cost per tuple."""

from penstock.operators.simulation.policies import compare_policies
from penstock.operators.simulation.server import Outcome, Queue, append_stream, simulate, update_stream
from penstock.operators.simulation.traces import UNIT_US, Trace, drawn_keys, steady_keys, zipf

__all__ = [
    "UNIT_US",
    "Outcome",
    "Queue",
    "Trace",
    "append_stream",
    "compare_policies",
    "drawn_keys",
    "simulate",
    "steady_keys",
    "update_stream",
    "zipf",
]
