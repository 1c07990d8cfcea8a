"""The rows that transactions of an open database may access, from the compiled access lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.procedures.compiler.program import Program
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.partitions.event_keys import EventKeys
from penstock.procedures.partitions.placement import Placement, hash_values, mix_hashes
from penstock.procedures.partitions.routes import Keys, keys_of
from penstock.procedures.texts import Numbers
from penstock.speculating.rules import Level, conflict_by_row
from penstock.speculating.statements import Statement, columns_used

if TYPE_CHECKING:
    from penstock.procedures.databases import Database

__all__ = ["Booleans", "Footprint", "Footprints"]

Booleans = npt.NDArray[np.bool_]
_SAME_ROW = 1
_conflict = cache(conflict_by_row)
_NUMBERS_PER_ROW = 64
"""The numbers per row in the first, approximate comparison: so many that few different rows look equal."""


@dataclass(frozen=True, slots=True)
class Part:
    """A statement of several transactions.

    Attributes
    ----------
    statement : Statement
        The statement.
    events : ndarray
        The transaction of each row.
    rows : ndarray or None
        A number of each row, equal for equal keys of a table; None if the rows are not known.
    """

    statement: Statement
    events: Numbers
    rows: Numbers | None

    def take(self, chosen: Booleans) -> Part:
        """Return the accesses of chosen transactions."""
        kept = chosen[self.events]
        return Part(self.statement, self.events[kept], None if self.rows is None else self.rows[kept])


@dataclass(frozen=True, slots=True)
class Footprint:
    """The rows that transactions may access.

    Attributes
    ----------
    transactions : int
        The number of transactions.
    parts : tuple of Part
        Their statements over partitioned tables.
    """

    transactions: int
    parts: tuple[Part, ...]

    def take(self, chosen: Booleans) -> Footprint:
        """Return the rows of chosen transactions. All keep their numbers."""
        return Footprint(self.transactions, tuple(part.take(chosen) for part in self.parts))

    def find_conflicts(self, others: Iterable[Footprint], level: Level) -> Booleans:
        """Return which of these transactions conflict with any transaction in `others`."""
        found = np.zeros(self.transactions, np.bool_)
        theirs: dict[Statement, list[Numbers] | None] = {}
        for part in (part for other in others for part in other.parts if len(part.events)):
            rows = theirs.setdefault(part.statement, [])
            if part.rows is None:
                theirs[part.statement] = None
            elif rows is not None:
                rows.append(part.rows)
        for one in self.parts:
            for statement, rows in theirs.items():
                by_row = _conflict(one.statement, statement)
                if not by_row:
                    continue
                if level == "tables" or by_row > _SAME_ROW or one.rows is None or rows is None:
                    found[one.events] = True
                else:
                    found[one.events[_occur(one.rows, np.concatenate(rows))]] = True
        return found

    def find_blocked(self, candidates: Booleans, others: Sequence[Footprint], level: Level) -> Booleans:
        """Return the candidates that conflict with `others`, directly or through other blocked candidates."""
        blocked = np.zeros(self.transactions, np.bool_)
        new = self.find_conflicts(others, level) & candidates
        while new.any():
            blocked |= new
            new = self.find_conflicts([self.take(new)], level) & candidates & ~blocked
        return blocked


def _occur(rows: Numbers, others: Numbers) -> Booleans:
    """Return which rows occur in `others`."""
    mask = (1 << int(_NUMBERS_PER_ROW * len(others)).bit_length()) - 1
    marked = np.zeros(mask + 1, np.bool_)
    marked[others & mask] = True
    found: Booleans = marked[rows & mask]
    places = np.flatnonzero(found)
    found[places] = np.isin(rows[places], others)
    return found


class Footprints:
    """Makes the footprints of an open database's transactions.

    Parameters
    ----------
    database : Database
        The procedures.
    placements : mapping
        The placements of partitioned tables. No transaction that can run in a partition writes other tables.
    """

    def __init__(self, database: Database, placements: Mapping[str, Placement]) -> None:
        self._database, self._placements = database, placements
        self._known: dict[str, list[tuple[Statement, Keys | None]]] = {}

    def make(self, program: Program, keys: EventKeys) -> Footprint:
        """Return the rows that a program's transactions may access."""
        if program.digest not in self._known:
            self._known[program.digest] = list(self._statements(program))
        tables = {spec.name: spec for spec in program.tables}
        everything = np.arange(keys.events.num_rows)
        parts = []
        for statement, wanted in self._known[program.digest]:
            if wanted is None:
                parts.append(Part(statement, everything, None))
                continue
            events, columns = keys.values(wanted)
            hashes = [
                hash_values(column, found[1].cast(column.type, safe=False))
                for column, found in zip(tables[wanted.table].key_columns, columns, strict=True)
                if found is not None
            ]
            parts.append(Part(statement, events, mix_hashes(hashes)))
        return Footprint(keys.events.num_rows, tuple(parts))

    def _statements(self, program: Program) -> Iterator[tuple[Statement, Keys | None]]:
        tables = {spec.name: spec for spec in program.tables}
        catalog = self._database.catalog
        texts = catalog.find_dependencies([self._database.procedures[program.name].text]).texts
        used = columns_used(texts, tables)
        seen = set()
        for access in program.accesses:
            if access.table not in self._placements:
                continue
            spec = tables[access.table]
            places = tuple(map(spec.key.index, self._placements[spec.name].names))
            for keys in keys_of(program, access, places):
                has_key = all(isinstance(origin, str) for origin in keys.origins)
                verb = "select" if access.mode is AccessMode.READ and not has_key else access.mode.value
                statement = Statement.of(verb, spec, used[spec.name], has_key=has_key)
                one = statement, keys if has_key else None
                if one not in seen:
                    seen.add(one)
                    yield one
