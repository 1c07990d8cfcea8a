"""The result of the designer: a design, and its explanation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.designing.cost import Choice, CostModel
from penstock.designing.search import SearchResult
from penstock.designing.traces.trace import Trace
from penstock.designing.workload import TableOption, Workload
from penstock.procedures.partitions.design import PartitionColumns, PartitionDesign
from penstock.procedures.partitions.placement import Placement, place_tables
from penstock.procedures.partitions.predicted.routing import routing_obstacle
from penstock.procedures.partitions.routes import Route, find_route

__all__ = ["DesignResult", "describe_option"]

_ALTERNATIVES = 2
"""The number of alternatives that the explanation names for each table."""


class DesignResult:
    """A design for a trace, with its cost and the cost of the declared design.

    Parameters
    ----------
    model : CostModel
        The cost model.
    found : SearchResult
        The result of the search.
    declared : Choice
        The declared design.

    Attributes
    ----------
    design : PartitionDesign
        The design, which `Database.open` takes.
    cost, declared_cost : Cost
        The costs of this design and of the declared design.
    speed_up, declared_speed_up : float
        The estimated throughput of both designs, as a multiple of the throughput of one partition.
    designs : int
        The number of designs whose cost was estimated.
    seconds : float
        The duration of the search.
    interrupted : bool
        Whether Ctrl-C ended the search.
    """

    def __init__(self, model: CostModel, found: SearchResult, declared: Choice) -> None:
        self._model, self._choice = model, _without_unused_routes(model, found.choice)
        self.designs, self.seconds, self.interrupted = found.designs, found.seconds, found.interrupted
        self.cost, self.declared_cost = model.measure(self._choice), model.measure(declared)
        self.speed_up, self.declared_speed_up = model.speed_up(self._choice), model.speed_up(declared)
        self.design = _design_tables(model, self._choice)
        self._routes = self._find_routes()
        indexes: dict[str, dict[tuple[str, ...], None]] = {}
        for routes in self._routes.values():
            for origin in (part for route in routes for keys in route.keys for part in keys.partition):
                if origin is not None and not isinstance(origin, str):
                    indexes.setdefault(origin.table, {})[origin.index] = None
        self.design = replace(
            self.design,
            indexes={name: tuple(found) for name, found in indexes.items()},
            routes={name: routes[0].partitions for name, routes in self._routes.items()
                    if len(set(routes)) == 1 and routes[0].keys},
            routing=_routing(model.workload, self._choice),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<design of {self.design.database}: cost {self.cost.total:.4f}>"

    @property
    def trace(self) -> Trace:
        """The trace."""
        return self._model.workload.trace

    def option(self, table: int) -> TableOption:
        """Return the option that the design chooses for a table; `table` is its position in the workload."""
        return self._model.workload.options[table][int(self._choice.tables[table])]

    def shares(self) -> dict[str, tuple[int, float]]:
        """Return two numbers for each table: its transactions, and their single-partition share."""
        trace, single = self._model.workload.trace, self._is_single()
        shares = {}
        for place, spec in enumerate(trace.tables):
            accessing = np.unique(trace.transaction[trace.table == place])
            if len(accessing):
                shares[spec.name] = len(accessing), float(single[accessing].mean())
        return shares

    def _is_single(self) -> npt.NDArray[np.bool_]:
        """Return whether each transaction needs one partition at most."""
        single = np.bitwise_count(self._model.needed(self._choice)) <= 1
        chosen: npt.NDArray[np.bool_] = single[self._model.workload.record]
        return chosen

    def explain(self) -> str:
        """Return an explanation of the design."""
        return "\n".join(self._lines())

    def to_yaml(self) -> str:
        """Return the design as YAML, which `Database.open` takes."""
        return self.design.to_yaml()

    def to_svg(self) -> str:
        """Return a drawing of the tables and of the columns that transactions access together."""
        from penstock.designing.drawing import draw

        return draw(self)

    def _lines(self) -> Iterator[str]:
        workload = self._model.workload
        trace = workload.trace
        yield (
            f"database {self.design.database}: a design for {workload.partitions} partitions, from "
            f"{_count(trace.transactions, 'transaction')}"
        )
        yield ""
        shares, names = self.shares(), workload.names
        for name in self.design.columns:
            if name not in names:
                yield f"  {name}: as declared, since no access of the trace depends on it"
                continue
            table = names.index(name)
            count, single = shares[name]
            yield f"  {name}: {describe_option(self.option(table))}"
            yield f"    {_count(count, 'transaction')} access it, {single:.1%} in a single partition"
            yield from self._alternatives(table)
        yield ""
        yield from self._procedures()
        yield ""
        yield f"{'':24}{'declared':>10}{'this design':>13}"
        before, after = self.declared_cost, self.cost
        yield f"  {'single-partition':22}{before.single:>10.1%}{after.single:>13.1%}"
        yield f"  {'coordination cost':22}{before.coordination:>10.4f}{after.coordination:>13.4f}"
        yield f"  {'skew':22}{before.skew:>10.4f}{after.skew:>13.4f}"
        yield f"  {'cost':22}{before.total:>10.4f}{after.total:>13.4f}"
        yield f"  {'throughput, estimated':22}{self.declared_speed_up:>9.2f}x{self.speed_up:>12.2f}x"
        yield ""
        yield "Throughput is a multiple of one partition's, with a core for each partition. Transactions over"
        yield "several partitions run while all others wait; the time to move their rows is left out."
        ended = "Ctrl-C ended the search" if self.interrupted else "The search ended"
        yield f"{ended} after {self.seconds:.1f} s and {_count(self.designs, 'design')}."

    def _find_routes(self) -> dict[str, list[Route]]:
        """Return, for each procedure, the routes that its programs have with the tables of the design."""
        database, placements = self.trace.database, _place_design(self._model, self.design)
        return {
            name: [find_route(one, placements) for one in database.procedures[name].programs]
            for name in self.trace.procedures
            if name in database.procedures
        }

    def _alternatives(self, table: int) -> Iterator[str]:
        """Yield a line for each of a table's next best options, with the cost if only this table changes."""
        model, options = self._model, self._model.workload.options[table]
        costs = []
        for place, option in enumerate(options):
            if place != self._choice.tables[table]:
                tables = self._choice.tables.copy()
                tables[table] = place
                costs.append((model.measure(Choice(tables, self._choice.routing)), option))
        for cost, option in sorted(costs, key=lambda one: one[0].total)[:_ALTERNATIVES]:
            change = cost.total - self.cost.total
            yield (
                f"    {describe_option(option)} instead: {cost.single:.1%} of all in a single partition, "
                f"skew {cost.skew:.2f}, cost {change:+.4f}"
            )

    def _procedures(self) -> Iterator[str]:
        """Yield lines that tell where the transactions of each procedure run."""
        trace, single = self._model.workload.trace, self._is_single()
        for place, name in enumerate(trace.procedures):
            chosen = trace.procedure == place
            share = (
                f"{_count(int(chosen.sum()), 'transaction')}, {single[chosen].mean():.1%} single-partition"
            )
            routes = ["all partitions: it is a workflow"]
            if name in self._routes:
                routes = [route.describe() for route in self._routes[name]]
            if (attribute := self.design.routing.get(name)) is not None:
                routes.append(
                    f"first in the partition of {attribute}; over all partitions if it needs others"
                )
            yield f"  {name}: {share}"
            yield from (f"    {route}" for route in dict.fromkeys(routes))


def _design_tables(model: CostModel, choice: Choice) -> PartitionDesign:
    """Return the design of the tables, without routes."""
    workload = model.workload
    trace = workload.trace
    columns: dict[str, PartitionColumns] = {spec.name: spec.partition_by for spec in trace.tables}
    chosen = {
        name: options[place]
        for name, options, place in zip(workload.names, workload.options, choice.tables.tolist(), strict=True)
    }
    return PartitionDesign(
        trace.database.name,
        workload.partitions,
        columns | {name: option.column for name, option in chosen.items()},
        {name: option.ranges for name, option in chosen.items() if option.ranges is not None},
    )


def _place_design(model: CostModel, design: PartitionDesign) -> dict[str, Placement]:
    database = model.workload.trace.database
    specs = {spec.name: spec for spec in design.apply(database.name, database.tables.values())}
    return place_tables(specs, design.partitions, design.ranges, design.several)


def _routing(workload: Workload, choice: Choice) -> dict[str, str]:
    """Return the routing attributes by procedure; a design from a recorded trace has none."""
    if workload.trace.recorded:
        return {}
    return {
        name: names[place]
        for name, names, place in zip(
            workload.trace.procedures, workload.attributes, choice.routing.tolist(), strict=True
        )
        if place > 0
    }


def _without_unused_routes(model: CostModel, choice: Choice) -> Choice:
    """Return a choice without routing attributes that a database cannot use with the chosen tables."""
    workload = model.workload
    database = workload.trace.database
    routing = choice.routing.copy()
    placements = _place_design(model, _design_tables(model, choice))
    for name in _routing(workload, choice):
        programs = database.procedures[name].programs
        if any(routing_obstacle(program, placements) is not None for program in programs):
            routing[workload.trace.procedures.index(name)] = 0
    return Choice(choice.tables, routing)


def describe_option(option: TableOption) -> str:
    """Return a description of a table's option."""
    if option.column is None:
        return "replicated"
    return f"by {'the hash' if option.ranges is None else 'ranges'} of {' and '.join(option.columns)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
