"""Queues under a simulated clock: one server, a fixed cost per tuple."""

from penstock.operators.simulation.policies import compare_policies
from penstock.operators.simulation.server import Outcome, Queue, simulate, update_stream
from penstock.operators.simulation.traces import (
    UNIT_US,
    Trace,
    draw_arrivals,
    zipf_weights,
)

__all__ = [
    "UNIT_US",
    "Outcome",
    "Queue",
    "Trace",
    "compare_policies",
    "draw_arrivals",
    "simulate",
    "update_stream",
    "zipf_weights",
]
