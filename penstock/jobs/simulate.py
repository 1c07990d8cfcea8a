"""``penstock simulate``: print the staleness of results with each policy, without Spark."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from penstock.operators.simulation.policies import compare_policies

__all__ = ["run_simulation"]


def run_simulation(load: float, keys: int, skew: float, updates: int) -> None:
    """Simulate one overload and print a table; see `compare_policies`.

    Raises
    ------
    InvalidUsageError
        If an argument is out of range.
    """
    found = compare_policies(load, keys, skew, updates)
    table = Table(
        title=f"Staleness at load factor {load:g}, {keys:,} keys, in numbers of updates",
        caption="Limits (optimum, lower bound) hold for a run without end.\n"
        "This run starts with fresh keys, so a queue may stay below them.",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("queue")
    for head in ("results", "queue staleness", "application staleness"):
        table.add_column(head, justify="right")
    for queue, results, waiting, application in zip(*found.to_pydict().values(), strict=True):
        table.add_row(
            queue,
            "" if results is None else f"{results:,}",
            f"{waiting:,.2f}",
            "" if application is None else f"{application:,.2f}",
        )
    Console().print(table)
