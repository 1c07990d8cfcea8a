"""The experiments of UpStream §5, §6.3 and §7.3 with the operators' own code and a simulated clock."""

from penstock.operators.simulation.experiments import EXPERIMENTS
from penstock.operators.simulation.scale import Scale
from penstock.operators.simulation.server import Outcome, Queue, append_stream, simulate, update_stream
from penstock.operators.simulation.traces import UNIT_US, Trace, drawn_keys, steady_keys, zipf

__all__ = [
    "EXPERIMENTS",
    "UNIT_US",
    "Outcome",
    "Queue",
    "Scale",
    "Trace",
    "append_stream",
    "drawn_keys",
    "simulate",
    "steady_keys",
    "update_stream",
    "zipf",
]
