"""Find the rows that transactions of an open database may access, from the compiled access lists.

Each row has a number, so three arrays hold the accesses of many transactions. A kernel finds the transactions
that may run before earlier transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.procedures.compiler.program import Program
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.partitions.event_keys import EventKeys
from penstock.procedures.partitions.placement import Placement, hash_values, mix_hashes
from penstock.procedures.partitions.routes import Keys, keys_of
from penstock.procedures.schema import TableSpec
from penstock.procedures.texts import Numbers
from penstock.speculating.rules import ConflictRules, Level, conflict_by_row
from penstock.speculating.statements import Statement, columns_used

if TYPE_CHECKING:
    from penstock.procedures.databases import Database

__all__ = ["MAX_STATEMENTS", "Booleans", "Footprint", "Footprints", "Masks", "choose_early"]

Booleans = npt.NDArray[np.bool_]
Masks = npt.NDArray[np.uint64]
_BITS = 64
MAX_STATEMENTS = _BITS // 2
"""If the procedures have more statements than this, procedures in Python run over gathered tables."""
_SAME_ROW = 1


def _cast_key(values: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Convert values to the type of a key column as transactions do: times are stored integers."""
    if values.type == kind:
        return values
    for temporal in (values.type, kind):
        if pa.types.is_temporal(temporal):
            values = values.cast(pa.int32() if temporal.bit_width == 32 else pa.int64(), safe=False)
    return values.cast(kind, safe=False)


@kernel
def choose_early(
    starts: Numbers,
    bits: Numbers,
    slots: Numbers,
    same: Masks,
    always: Masks,
    waits: Booleans,
    wanted: Booleans,
    marks: Masks,
    chosen: Booleans,
) -> int:
    """Choose wanted transactions that may run before all others; count the wanted transactions that conflict.

    A wanted transaction is chosen if it conflicts neither with a marked access, nor with an earlier
    transaction that waits and is not chosen. So the chosen transactions can run first, in their order.

    Parameters
    ----------
    starts : ndarray
        The position of each transaction's first access; the last element is the number of accesses.
    bits, slots : ndarray
        The number of each access's statement, and its slot. Accesses to the same row have the same slot. If
        different rows also share a slot, fewer transactions are chosen.
    same, always : ndarray
        Two masks for each statement: of the statements with which it conflicts if both access the same row,
        and of the statements with which it always conflicts.
    waits, wanted : ndarray
        Whether each transaction waits, and whether a waiting transaction is wanted.
    marks : ndarray
        For each slot, a mask of the statements with marked accesses. The last element is such a mask for all
        slots together. The kernel marks the accesses of waiting transactions that are not chosen.
    chosen : ndarray
        Receives true for each chosen transaction.
    """
    last = marks.shape[0] - 1
    conflicts = 0
    for i in range(waits.shape[0]):
        if not waits[i]:
            continue
        skipped = not wanted[i]
        if not skipped:
            for k in range(starts[i], starts[i + 1]):
                bit = bits[k]
                if (marks[slots[k]] & same[bit]) | (marks[last] & always[bit]):
                    skipped = True
                    conflicts += 1
                    break
        if not skipped:
            chosen[i] = True
            continue
        for k in range(starts[i], starts[i + 1]):
            mark = np.uint64(1) << np.uint64(bits[k])
            marks[slots[k]] |= mark
            marks[last] |= mark
    return conflicts


@dataclass(frozen=True, slots=True)
class Footprint:
    """The accesses of several transactions.

    Attributes
    ----------
    events : ndarray
        The position of each access's transaction.
    bits : ndarray
        The number of each access's statement.
    rows : ndarray
        The number of each access's row; 0 if the statement may access any row. Equal keys of a table have
        equal numbers.
    """

    events: Numbers
    bits: Numbers
    rows: Numbers


class Footprints:
    """Makes the footprints of an open database's transactions.

    Parameters
    ----------
    database : Database
        The database with the procedures.
    placements : mapping
        The placements of partitioned tables. Transactions that can run in a partition write no other tables
        than these.
    level : str
        ``tables`` or ``rows``: whether conflicts are found by table or by row.

    Attributes
    ----------
    same, always : ndarray
        See `choose_early`.
    """

    def __init__(self, database: Database, placements: Mapping[str, Placement], level: Level) -> None:
        self._database, self._placements, self._level = database, placements, level
        self._known: dict[str, list[tuple[int, Statement, Keys | None]]] = {}
        self._bits: dict[Statement, int] = {}
        self._rules: ConflictRules | None = None
        self.same, self.always = np.zeros(_BITS, np.uint64), np.zeros(_BITS, np.uint64)
        # One thread may plan requests while the call of another thread registers statements.
        self._lock = threading.RLock()

    def declares_event(self, procedure: str) -> bool:
        """Return whether a procedure declares the types of its event."""
        found = self._database.procedures.get(procedure)
        return found is not None and found.event is not None

    def make(self, program: Program, keys: EventKeys) -> Footprint:
        """Return the rows that a program's transactions may access."""
        with self._lock:
            if program.digest not in self._known:
                statements = self._statements(program)
                self._known[program.digest] = [(self.bit(one), one, at) for one, at in statements]
        tables = {spec.name: spec for spec in program.tables}
        everything = np.arange(keys.events.num_rows)
        found: dict[Keys, tuple[Numbers, Numbers]] = {}
        events, bits, rows = [], [], []
        for bit, _, wanted in self._known[program.digest]:
            if wanted is None:
                its_events, its_rows = everything, np.zeros(len(everything), np.int64)
            else:
                if wanted not in found:
                    owners, columns = keys.values(wanted)
                    found[wanted] = (
                        owners,
                        self.number_rows(tables[wanted.table], [one and one[1] for one in columns]),
                    )
                its_events, its_rows = found[wanted]
            events.append(its_events)
            bits.append(np.full(len(its_events), bit))
            rows.append(its_rows)
        if not events:
            return Footprint(*(np.zeros(0, np.int64) for _ in range(3)))
        return Footprint(np.concatenate(events), np.concatenate(bits), np.concatenate(rows))

    def number_rows(self, spec: TableSpec, keys: Sequence[pa.Array[Any] | None]) -> Numbers:
        """Return a number for each row, computed from the columns of the rows' keys."""
        return mix_hashes([
            hash_values(column, _cast_key(one, column.type))
            for column, one in zip(spec.key_columns, keys, strict=True)
            if one is not None
        ])  # fmt: skip

    @property
    def shares_numbers(self) -> bool:
        """Return whether statements may soon share a number; then numbers in `rules` differ from `bit`."""
        return len(self._bits) > MAX_STATEMENTS

    def rules(self) -> ConflictRules:
        """Return the rules of all statements so far."""
        with self._lock:
            if self._rules is None or len(self._rules.statements) < len(self._bits):
                self._rules = ConflictRules(self._bits)
            return self._rules

    def bit(self, statement: Statement) -> int:
        """Return the number of a statement, and record the statement's conflicts.

        If there are more than 64 statements, some statements share a number, and their conflicts are joined.
        """
        with self._lock:
            if statement not in self._bits:
                bit = self._bits[statement] = len(self._bits) % _BITS
                for other, place in self._bits.items():
                    by_row = conflict_by_row(statement, other)
                    if not by_row:
                        continue
                    for one, another in ((bit, place), (place, bit)):
                        mark = np.uint64(1 << another)
                        self.same[one] |= mark
                        if by_row > _SAME_ROW or self._level == "tables":
                            self.always[one] |= mark
            return self._bits[statement]

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
