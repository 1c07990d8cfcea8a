"""Describe where an open database has its rows, and where its transactions run."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent
from typing import TYPE_CHECKING

from penstock.errors import InvalidUsageError
from penstock.procedures.partitions.partitioned_tables import PartitionedTables, State
from penstock.procedures.partitions.placement import Placement, place_tables
from penstock.procedures.partitions.routes import find_route
from penstock.procedures.schema import TableSpec

if TYPE_CHECKING:
    from penstock.procedures.databases import Database

__all__ = ["explain_partitions"]


def explain_partitions(database: Database, state: State) -> str:
    """Return the text of `OpenDatabase.explain`."""
    return "\n".join(_lines(database, state))


def _lines(database: Database, state: State) -> Iterator[str]:
    count, placements = 1, place_tables(database.tables, 1, {})
    if isinstance(state, PartitionedTables):
        count, placements = state.partitions, state.placements
    yield f"database {database.name}, {count} partition{'s' if count > 1 else ''}"
    for spec in database.tables.values():
        yield f"  table {spec.name}: {_describe_table(spec, placements.get(spec.name))}"
    for name, procedure in (database.procedures | database.workflows).items():
        try:
            route = find_route(procedure.program(), placements).describe()
        except InvalidUsageError:
            route = "unknown, since its event is not declared, or a workflow runs it"
        yield f"  {name}: {route}"
        runs = state.predicted if isinstance(state, PartitionedTables) else None
        if runs is not None and name in runs.routing:
            yield f"    by the design, first in the partition of {runs.routing[name]}"
    if isinstance(state, PartitionedTables):
        yield f"  forwarded: {state.forwarded} of {state.transactions} transactions"
        if names := sorted(state.gathered.names):
            yield f"  gathered at the coordinator, until fewer need several partitions: {', '.join(names)}"
        if state.speculation is not None:
            yield f"  {state.speculation.describe()}"
        if (runs := state.predicted) is not None:
            yield (
                f"  predicted: {runs.transactions} transactions, {runs.forwarded} forwarded, {runs.late} "
                f"beside these, {runs.without_undo} without an undo log; wrong in {runs.wrong} calls"
            )
    elif (evaluation := state.evaluation) is not None and evaluation.mode != "serial":
        for name in evaluation.metrics:
            yield indent(evaluation.explain(name), "  ")


def _describe_table(spec: TableSpec, placement: Placement | None) -> str:
    if placement is None:
        return (
            f"replicated, {'since it has no partition_by' if spec.partition_by is None else 'by the design'}"
        )
    return f"by {'the hash' if placement.ranges is None else 'ranges'} of {' and '.join(placement.names)}"
