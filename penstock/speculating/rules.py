"""Rules that determine whether statements conflict: by table, or by row (H-Store §6.5).

Two statements conflict if a result may change when they run in the opposite order. The rules may report a
false conflict, but they never miss a conflict. Each rule is symmetric. The rules are computed once from the
statements of all procedures; afterwards, a check for conflicts only compares numbers.

Departures from H-Store §6.5.2: two changes of one row conflict, whatever columns they write, because an undo
restores the whole row. Also, an update conflicts with a range only if the range reads a column that the
update writes, as in the rule by table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from penstock.speculating.statements import Statement

__all__ = ["UNKNOWN_KEY", "ConflictRules", "Level", "Step", "conflict_by_row", "conflict_by_table"]

Level = Literal["tables", "rows"]
UNKNOWN_KEY = -1
"""The key of a row that is not known before the transaction runs."""

_NEVER, _SAME_ROW, _ALWAYS = range(3)


class Step(NamedTuple):
    """A statement that a transaction executes or will execute.

    Attributes
    ----------
    statement : int
        The number of the statement in `ConflictRules.statements`.
    key : int
        The number of the row; `UNKNOWN_KEY` if the row is not known. Equal rows have equal numbers.
    partition : int
        The partition that the statement accesses; -1 if every partition can answer the statement.
    """

    statement: int
    key: int
    partition: int


def conflict_by_table(one: Statement, other: Statement) -> bool:
    """Return whether two statements conflict, judged by their tables and columns (§6.5.1)."""
    if one.table != other.table or not (one.changes or other.changes):
        return False
    if one.changes and other.changes:
        return True
    change, read = (one, other) if one.changes else (other, one)
    return bool(change.writes & read.reads)  # an insert or a delete writes all columns


def conflict_by_row(one: Statement, other: Statement) -> int:
    """Return whether two statements conflict never (0), on the same row (1), or always (2) (§6.5.2)."""
    if not conflict_by_table(one, other):
        return _NEVER
    return _SAME_ROW if one.has_key and other.has_key else _ALWAYS


class ConflictRules:
    """The conflicts of statements.

    Parameters
    ----------
    statements : iterable of Statement
        The statements of all procedures.

    Attributes
    ----------
    statements : tuple of Statement
        The distinct statements.
    """

    def __init__(self, statements: Iterable[Statement]) -> None:
        self.statements = tuple(dict.fromkeys(statements))
        self._numbers = {one: number for number, one in enumerate(self.statements)}
        self._by_table = [[conflict_by_table(a, b) for b in self.statements] for a in self.statements]
        self._by_row = [[conflict_by_row(a, b) for b in self.statements] for a in self.statements]

    def number(self, statement: Statement) -> int:
        """Return the number of a statement."""
        return self._numbers[statement]

    def changes(self, step: Step) -> bool:
        """Return whether a step changes rows."""
        return self.statements[step.statement].changes

    def summarize(self, steps: Sequence[Step], level: Level) -> Mapping[int, frozenset[int] | None]:
        """Return, for each statement of the given steps, the rows that it accesses; None means any row."""
        found: dict[int, set[int] | None] = {}
        for statement, key, _ in steps:
            keys = found.setdefault(statement, set())
            if level == "tables" or key == UNKNOWN_KEY:
                found[statement] = None
            elif keys is not None:
                keys.add(key)
        return {number: None if keys is None else frozenset(keys) for number, keys in found.items()}

    def conflict(
        self, one: Mapping[int, frozenset[int] | None], other: Mapping[int, frozenset[int] | None]
    ) -> bool:
        """Return whether a statement of one summary conflicts with a statement of the other summary."""
        for first, rows in one.items():
            by_table, by_row = self._by_table[first], self._by_row[first]
            for second, other_rows in other.items():
                if not by_table[second]:
                    continue
                if rows is None or other_rows is None or by_row[second] == _ALWAYS:
                    return True
                if not rows.isdisjoint(other_rows):
                    return True
        return False
