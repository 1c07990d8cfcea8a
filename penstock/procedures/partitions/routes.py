"""Where the transactions of a program run, by what the compiler knows of their keys (H-Store §3.4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.partitions.placement import Placement

__all__ = ["Keys", "Route", "find_route"]


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows that a transaction may access.

    Attributes
    ----------
    table : str
        Their table.
    attributes : tuple of str or None
        For each column of the key the event's attribute that holds it, if one does.
    partition : str
        The attribute that holds the column by which the table is partitioned.
    """

    table: str
    attributes: tuple[str | None, ...]
    partition: str


@dataclass(frozen=True, slots=True)
class Route:
    """Where the transactions of a program run.

    Attributes
    ----------
    keys : tuple of Keys
        The rows of partitioned tables that it accesses, if attributes say their partitions.
    obstacle : str or None
        The reason why attributes do not say the partitions, so that all transactions need all partitions.
    attributes : tuple of str
        The attributes that say the partitions. A transaction whose attributes are all of one partition is a
        single-partition transaction.
    is_single : bool
        Whether every transaction is one, whatever its attributes are.
    """

    keys: tuple[Keys, ...]
    obstacle: str | None
    attributes: tuple[str, ...]
    is_single: bool

    @property
    def knows_rows(self) -> bool:
        """Whether the attributes say which rows a transaction may access, not only their partitions."""
        return self.obstacle is None and all(None not in keys.attributes for keys in self.keys)

    def describe(self) -> str:
        """Return the route as a text."""
        if self.obstacle is not None:
            return f"all partitions: {self.obstacle}"
        if not self.keys:
            return "single-partition, in any: it only reads replicated tables"
        names = " and ".join(self.attributes)
        if self.is_single:
            return f"single-partition, by {names}"
        moves = (
            "the rows that it accesses" if self.knows_rows else "all rows of its tables in these partitions"
        )
        return f"single-partition if {names} are in one; else over several: {moves} are moved"


def find_route(program: Program | PlainProgram, placements: Mapping[str, Placement]) -> Route:
    """Return where the transactions of a program run; tables without a placement are replicated."""
    keys: dict[Keys, None] = {}
    obstacle = _obstacle(program, placements)
    if isinstance(program, Program) and obstacle is None:
        tables = {spec.name: spec for spec in program.tables}
        for access in program.accesses:
            if access.table in placements:
                spec = tables[access.table]
                partition = access.attributes[spec.key.index(placements[access.table].column.name)]
                keys[Keys(access.table, access.attributes, partition or "")] = None
    methods = {(placements[one.table].method, one.partition) for one in keys}
    attributes = tuple(dict.fromkeys(one.partition for one in keys))
    return Route(tuple(keys), obstacle, attributes, obstacle is None and len(methods) <= 1)


def _obstacle(program: Program | PlainProgram, placements: Mapping[str, Placement]) -> str | None:
    if isinstance(program, PlainProgram):
        return "Python runs it"
    if program.stages:
        return "it is a workflow"
    tables = {spec.name: spec for spec in program.tables}
    if hidden := [name for name in tables if not name.isidentifier()]:
        return f"it has a window, {hidden[0].partition(' ')[0]}"
    for access in program.accesses:
        spec = tables[access.table]
        shown = f"{access.table}[{', '.join(access.key)}]"
        if access.table not in placements:
            if access.mode is not AccessMode.READ:
                return f"it writes {shown}, which is replicated"
        else:
            column = placements[access.table].column.name
            if access.attributes[spec.key.index(column)] is None:
                return f"no attribute of the event is the {column} of {shown}"
    return None
