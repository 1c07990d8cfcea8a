"""Write the lines of a kernel, and find the writes that the undo log needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["FIRST_REASON", "ROOM", "Output"]

ROOM = 1
"""The code of a transaction that found an array too small. The transaction is undone, and runs again."""

FIRST_REASON = 2
"""The code of the first reason for a rejection."""

_INDENT = "    "


@dataclass(slots=True)
class _Logged:
    """A place for an entry of the undo log: `lines` if the transaction may fail later, else `otherwise`."""

    depth: int
    lines: Sequence[str]
    otherwise: Sequence[str]


@dataclass
class Output:
    """The body of a transaction.

    A failure may follow a write if the failure is further down in the text, or if a loop encloses both. Only
    writes that a failure may follow are logged. A program without such writes has no undo log. In a workflow,
    a rejection undoes the writes of its own transaction, while an array that is too small undoes all
    transactions of the round.

    Attributes
    ----------
    reasons : list of str
        The reasons for rejections; the code of a reason is its index plus 2.
    undo_ops : dict
        The number of each operation that the undo log can undo.
    """

    reasons: list[str] = field(default_factory=list)
    undo_ops: dict[tuple[str, ...], int] = field(default_factory=dict)
    _lines: list[str | _Logged] = field(default_factory=list)
    _fails: list[int] = field(default_factory=list)
    _rejects: list[int] = field(default_factory=list)
    _transactions: list[int] = field(default_factory=list)
    _loops: list[tuple[int, int]] = field(default_factory=list)
    _depth: int = 0
    _temporaries: int = 0

    def line(self, text: str) -> None:
        """Write a line."""
        self._lines.append(self._depth * _INDENT + text)

    @contextmanager
    def block(self, head: str, *, loop: bool = False) -> Iterator[None]:
        """Write a statement with a body."""
        self.line(head)
        begin = len(self._lines)
        self._depth += 1
        yield
        if len(self._lines) == begin:
            self.line("pass")
        self._depth -= 1
        if loop:
            self._loops.append((begin, len(self._lines)))

    def temporary(self) -> str:
        """Return the name of a new variable."""
        self._temporaries += 1
        return f"x{self._temporaries}"

    def keep(self, code: str) -> str:
        """Write an expression into a variable; return its name."""
        name = self.temporary()
        self.line(f"{name} = {code}")
        return name

    def code_of(self, reason: str) -> int:
        """Return the code of a reason."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason) + FIRST_REASON

    def fail(self, condition: str, reason: str) -> None:
        """Write lines that reject the transaction if a condition holds."""
        with self.block(f"if {condition}:"):
            self.reject(reason)

    def reject(self, reason: str) -> None:
        """Write lines that reject the transaction."""
        self._rejects.append(len(self._lines))
        self.line(f"code = {self.code_of(reason)}")
        self.line("break")

    def need_room(self, condition: str, cause: int) -> None:
        """Write lines that undo the transaction if a condition holds, because an array is too small.

        `cause` says which array must grow: n for the rows of table n, the number of tables plus n for the
        rows of stream n, -2 - n for the deleted keys of table n, -1 for the undo log.
        """
        self._fails.append(len(self._lines))
        with self.block(f"if {condition}:"):
            self.line(f"code = {ROOM}")
            self.line(f"control[0] = {cause}")
            self.line("break")

    def log(self, operation: tuple[str, ...], lines: Sequence[str], otherwise: Sequence[str] = ()) -> None:
        """Write an entry of the undo log if one is needed here.

        Parameters
        ----------
        operation : tuple of str
            The operation to undo.
        lines : sequence of str
            Lines that write the entry, except for its number.
        otherwise : sequence of str
            Lines to write if no entry is needed.
        """
        number = self.undo_ops.setdefault(operation, len(self.undo_ops))
        entry = [
            "if u == u_op.shape[0]:",
            f"{_INDENT}code = {ROOM}",
            f"{_INDENT}control[0] = -1",
            f"{_INDENT}break",
            f"u_op[u] = {number}",
            *lines,
            "u += 1",
        ]
        self._lines.append(_Logged(self._depth, entry, otherwise))

    def finish(self) -> tuple[list[str], bool]:
        """Return the lines, and whether any of them writes to the undo log."""
        reversed_lines: list[str] = []
        logs = False
        for place, line in reversed(list(enumerate(self._lines))):
            if isinstance(line, str):
                reversed_lines.append(line)
                continue
            # An entry that does not fit undoes the transaction, so all earlier writes need entries, too.
            logs = logs or self._may_fail_after(place)
            lines = line.lines if logs else line.otherwise
            reversed_lines += [line.depth * _INDENT + text for text in reversed(lines)]
        return reversed_lines[::-1], logs

    def begin_transaction(self) -> None:
        """Begin the next transaction of a workflow."""
        self._transactions.append(len(self._lines))

    def _may_fail_after(self, place: int) -> bool:
        around = [bounds for bounds in self._loops if bounds[0] <= place < bounds[1]]
        first = min((begin for begin, _ in around), default=place)
        end = next(
            (transaction for transaction in self._transactions if transaction > place), len(self._lines)
        )
        return any(fail >= first for fail in self._fails) or any(
            first <= reason < end for reason in self._rejects
        )
