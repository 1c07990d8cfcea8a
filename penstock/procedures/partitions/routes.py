"""Find where the transactions of a program run, from the keys that they access (H-Store §3.4.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.compiler.values import ROUTED, Access, AccessMode, Found, Origin
from penstock.procedures.partitions.placement import Placement

__all__ = ["Keys", "Route", "find_route", "keys_of"]


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows that a transaction may access.

    If several columns are elements of lists, the rows are all combinations of the elements.

    Attributes
    ----------
    table : str
        The table of the rows.
    origins : tuple of Origin or None
        The origin of each column of the key, or None if it has no origin. If the user names a route, the
        origin may be a column of the results of `Program.route`.
    places : tuple of int
        For each column by which the table is partitioned, its position in the key.
    """

    table: str
    origins: tuple[Origin | None, ...]
    places: tuple[int, ...]

    @property
    def partition(self) -> tuple[Origin | None, ...]:
        """The origins of the columns by which the table is partitioned."""
        return tuple(self.origins[place] for place in self.places)


@dataclass(frozen=True, slots=True)
class Route:
    """Says where the transactions of a program run.

    Attributes
    ----------
    keys : tuple of Keys
        The rows of partitioned tables that the program accesses, if their partitions are known.
    obstacle : str or None
        The reason why the event does not determine the partitions, so that all transactions need all
        partitions.
    partitions : tuple of str
        The values that determine the partitions, for `describe`.
    is_single : bool
        Whether the partitioned rows of a transaction are in one partition, whatever its attributes are.
    writes : tuple of Keys
        The rows of replicated tables that the program may write. A transaction with such a row needs all
        partitions.
    """

    keys: tuple[Keys, ...]
    obstacle: str | None
    partitions: tuple[str, ...]
    is_single: bool
    writes: tuple[Keys, ...] = ()

    @property
    def knows_rows(self) -> bool:
        """Return whether the event determines the rows of a transaction, not only their partitions."""
        known = all(None not in keys.origins for keys in self.keys)
        return self.obstacle is None and not self.writes and known

    def describe(self) -> str:
        """Return the route as a text."""
        if self.obstacle is not None:
            return f"all partitions: {self.obstacle}"
        if not self.keys:
            return "single-partition, in any: it only reads replicated tables"
        names = " and ".join(self.partitions)
        if self.is_single:
            return f"single-partition, by {names}"
        moves = "its rows are moved" if self.knows_rows else "its tables are gathered"
        return f"single-partition if one partition has {names}; else over several: {moves}"


def find_route(
    program: Program | PlainProgram, placements: Mapping[str, Placement], *, with_writes: bool = False
) -> Route:
    """Return where the transactions of a program run; tables without a placement are replicated.

    Writes to replicated tables are an obstacle. With `with_writes`, they are in the result instead.
    """
    obstacle = _obstacle(program, placements, with_writes=with_writes)
    if not isinstance(program, Program) or obstacle is not None:
        return Route((), obstacle, (), is_single=False)
    tables = {spec.name: spec for spec in program.tables}
    accesses = [access for access in program.accesses if access.table in placements]
    places = {
        name: tuple(map(tables[name].key.index, placements[name].names))
        for name in placements
        if name in tables
    }
    keys = tuple(
        dict.fromkeys(one for access in accesses for one in keys_of(program, access, places[access.table]))
    )
    lists = {column.name for column in program.event if column.is_list}
    methods = {(placements[one.table].method, one.partition) for one in keys}
    several = any(isinstance(part, Found) or part in lists for one in keys for part in one.partition)
    named = {ROUTED: program.route.name} if program.route is not None else {}
    named |= {name: f"all {name}" for name in lists}
    partitions: dict[str, None] = {}
    for access in accesses:
        origins = [str(access.origins[place]) for place in places[access.table]]
        parts = [named.get(origin, origin) for origin in origins]
        partitions[parts[0] if len(parts) == 1 else f"({', '.join(parts)})"] = None
    writes = tuple(dict.fromkeys(_replicated_writes(program, placements)))
    return Route(keys, None, tuple(partitions), len(methods) <= 1 and not several, writes)


def _replicated_writes(program: Program, placements: Mapping[str, Placement]) -> Iterator[Keys]:
    """Yield the keys of replicated tables that a program writes; rows that an index finds are unknown."""
    for access in program.accesses:
        if access.table not in placements and access.mode is not AccessMode.READ:
            for keys in keys_of(program, access, ()):
                origins = (None if isinstance(origin, Found) else origin for origin in keys.origins)
                yield replace(keys, origins=tuple(origins))


def keys_of(program: Program, access: Access, places: tuple[int, ...]) -> Iterator[Keys]:
    """Yield the keys of an access. With a named route, yield keys for each value of the route.

    Parameters
    ----------
    program : Program
        The program that makes the access.
    access : Access
        An access of the program.
    places : tuple of int
        See `Keys`.
    """
    names: list[str] = [] if program.route is None else [column.name for column in program.route.results]
    for name in names if ROUTED in access.origins else [""]:
        known = [name if origin == ROUTED else origin for origin in access.origins]
        origins = tuple(
            None if isinstance(origin, Found) and _changes(program, origin) else origin for origin in known
        )
        yield Keys(access.table, origins, places)


def _obstacle(
    program: Program | PlainProgram, placements: Mapping[str, Placement], *, with_writes: bool
) -> str | None:
    if isinstance(program, PlainProgram):
        return "Python runs it"
    if program.stages:
        return "it is a workflow"
    tables = {spec.name: spec for spec in program.tables}
    if hidden := [name for name in tables if not name.isidentifier()]:
        return f"it has a window, {hidden[0].partition(' ')[0]}"
    for access in program.accesses:
        spec = tables[access.table]
        shown = f"{access.table}[{', '.join(dict.fromkeys(access.key))}]"
        if access.table not in placements:
            if access.mode is not AccessMode.READ and not with_writes:
                return f"it writes {shown}, which is replicated"
            continue
        for column in placements[access.table].names:
            origin = access.origins[spec.key.index(column)]
            if origin is None:
                return f"no attribute of the event is the {column} of {shown}"
            if isinstance(origin, Found) and (reason := _changes(program, origin)) is not None:
                return reason
    return None


def _changes(program: Program, found: Found) -> str | None:
    """Return why a look-up before the call may miss rows that the index finds during the call.

    The result is None if the look-up finds the same rows.
    """
    lists = {column.name for column in program.event if column.is_list}
    if lists & set(found.attributes):
        return f"the index of {found.table} is read for each element of a list"
    changes = {change[:2] for change in program.changes if change[0] != "column"}
    columns = {change[2] for change in program.changes if change[:2] == ("column", found.table)}
    if changes & {("insert", found.table), ("delete", found.table)} or columns & set(found.index):
        return f"it changes what the index of {found.table} by {' and '.join(found.index)} has"
    return None
