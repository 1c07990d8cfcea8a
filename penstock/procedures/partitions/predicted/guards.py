"""The kernel of predicted transactions: it stops if a transaction leaves its allowed partitions.

The code is the serial kernel with checks before each look-up of a row, each look-up by an index and each
write of a replicated table. There are two ways to undo what the kernel did before it stopped:

- If ``logged[1]`` is 1, the undo log keeps the entries of all transactions of a call. The kernel undoes the
  call if it is called with a first event that is after the last event.
- The caller has copies of the tables. Then the kernel may leave out the undo log. It also stops if a
  transaction is rejected after a write.
"""

from __future__ import annotations

import ast
import copy
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from penstock._kernels import load_run
from penstock.procedures.compiler.program import Program, inlined_texts
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.schema import Kind

__all__ = [
    "DEVIATES",
    "can_guard",
    "can_omit_undo",
    "can_undo_calls",
    "guarded_source",
    "load_guarded",
]

DEVIATES = -1_000_000
"""The number that the kernel writes to ``control[0]`` if a transaction deviates from its prediction."""
_IMPORTS = """from penstock.procedures.partitions.predicted.guard_kernels import (
    is_write_forbidden,
    leaves,
    needs_all,
)
"""
_FIND = re.compile(r"find_\d")
_TABLE = re.compile(r"t(\d+)_\w+")
_LEAVES = re.compile(r"leaves\(guard, touched, i, (\d+), (.*)\)", re.DOTALL)
_INDEX_READS = ("seek", "tree_end")
_UNDO = re.compile(r"u_\w+\[")


def can_guard(program: Program, placements: Mapping[str, Placement]) -> bool:
    """Return whether a guarded kernel can check a program.

    The kernel computes a row's partition from one column, which is not interned and not a float. It cannot
    check workflows, streams, windows and named routes.
    """
    placed = [placements[spec.name].columns for spec in program.tables if spec.name in placements]
    kinds = [columns[0].kind for columns in placed]
    if any(len(columns) > 1 for columns in placed):
        return False
    bounded = [spec.name for spec in program.tables if not spec.name.isidentifier()]
    is_procedure = not program.stages and not program.streams and program.route is None
    return is_procedure and not bounded and not any(kind.is_interned or kind is Kind.FLOAT for kind in kinds)


def can_omit_undo(program: Program) -> bool:
    """Return whether the kernel can run without an undo log.

    It cannot if the program deletes rows, because the undo log also frees the slots of deleted rows.
    """
    return program.undo_log and not any(change[0] == "delete" for change in program.changes)


def can_undo_calls(program: Program) -> bool:
    """Return whether an undo log can undo a whole call.

    It cannot if the program deletes rows, because later transactions of the call may use their slots.
    """
    writes = any(access.mode is not AccessMode.READ for access in program.accesses)
    return not writes or (program.undo_log and can_omit_undo(program))


def load_guarded(program: Program, placements: Mapping[str, Placement], *, undo: bool) -> Callable[..., int]:
    """Compile the result of `guarded_source`, and return the kernel."""
    here = pkgutil.get_data("penstock.procedures.partitions.predicted", "guard_kernels.py") or b""
    return load_run(guarded_source(program, placements, undo=undo), inlined_texts() + here)


def guarded_source(program: Program, placements: Mapping[str, Placement], *, undo: bool) -> str:
    """Return the source of the module with a program's guarded kernel.

    Parameters
    ----------
    program : Program
        The program whose kernel is guarded.
    placements : mapping
        The placements of partitioned tables.
    undo : bool
        Whether the kernel writes an undo log.
    """
    head, body = program.source.split("@kernel\n", 1)
    function = cast(ast.FunctionDef, ast.parse(body).body[0])
    loop = next(node for node in function.body if isinstance(node, ast.For))
    start = next(place for place, node in enumerate(loop.body) if ast.unparse(node) == "code = 0")
    transaction = cast(ast.While, loop.body[start + 2])
    guards = _Guards(program, placements)
    transaction.body = guards.block(transaction.body)
    undoing: list[ast.stmt] = []
    if not undo:
        transaction.body = _WithoutUndo().block(transaction.body)
        failure = ast.parse(_FAILURE_WITHOUT_UNDO).body
        loop.body[start + 3 :] = [*failure, *ast.parse("codes[i] = 0").body]
    elif can_undo_calls(program):
        loop.body[start + 1 : start + 2] = ast.parse("u = logged[0]\nmark = u").body
        failed = cast(ast.If, loop.body[start + 4])
        for at, node in enumerate(failed.body):
            if isinstance(node, ast.While):
                undoing = [copy.deepcopy(node)]
                failed.body[at : at + 1] = ast.parse(
                    ast.unparse(node).replace("while u > 0:", "while u > mark:")
                ).body
        loop.body += ast.parse("logged[0] = u * logged[1]").body
    loop.body[start:start] = guards.forget()
    function.body[:0] = _undo_call(undoing)
    arguments = ", ".join(program.arguments)
    lines = ["@kernel", f"def run(begin, end, guard, touched, logged, {arguments}):"]
    lines += ["    " + line for node in function.body for line in _unparse(node)]
    return "\n".join([head + _IMPORTS, *lines, ""])


_DEVIATE = f"logged[0] = u\n    control[0] = {DEVIATES}\n    return i"
_FAILURE_WITHOUT_UNDO = f"""
if code > 0:
    if u > 0:
        control[0] = {DEVIATES}
        return i
    if code == 1:
        return i
    codes[i] = code
    continue
"""


def _undo_call(undoing: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements with which the kernel undoes the transactions of a call."""
    call = cast(
        ast.If, ast.parse("if begin > end:\n    u = logged[0]\n    logged[0] = 0\n    return begin").body[0]
    )
    call.body[1:1] = undoing
    return [call]


class _Guards:
    """Adds checks to the statements of a transaction."""

    def __init__(self, program: Program, placements: Mapping[str, Placement]) -> None:
        self._last: dict[tuple[str, str], int] = {}
        self._places: dict[int, int | None] = {}
        self._equal: dict[int, bool] = {}
        self._words: dict[str, list[str]] = {}
        for number, spec in enumerate(program.tables):
            placement = placements.get(spec.name)
            if placement is None:
                self._places[number] = None
                continue
            column = placement.names[0]
            place = self._places[number] = spec.key.index(column)
            selections = [
                access for access in program.accesses if access.table == spec.name and ".by(" in access.key[0]
            ]
            self._equal[number] = all(isinstance(one.origins[place], str) for one in selections)
            for at, index in enumerate(spec.indexes):
                self._words[f"t{number}_i{at}"] = [word.name for word in index.words]
        self._columns = {
            number: placements[spec.name].names[0]
            for number, spec in enumerate(program.tables)
            if spec.name in placements
        }

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Insert the checks of each statement before the statement."""
        found: list[ast.stmt] = []
        for node in nodes:
            for check in dict.fromkeys(self._checks(node)):
                found += ast.parse(self._guard(check)).body
            if isinstance(node, ast.If | ast.While | ast.For):
                node.body = self.block(node.body)
                node.orelse = self.block(node.orelse)
            found.append(node)
        return found

    def _guard(self, check: str) -> str:
        """Return the statements of a check; they skip the check if its value was the last one checked."""
        if not (match := _LEAVES.fullmatch(check)):
            return f"if {check}:\n    {_DEVIATE}"
        word = match[2]
        number = self._last.setdefault((match[1], word), len(self._last))
        deviate = _DEVIATE.replace("\n", "\n    ")
        return (
            f"if not (is_known_{number} and known_{number} == {word}):\n"
            f"    if {check}:\n        {deviate}\n"
            f"    is_known_{number} = True\n    known_{number} = {word}"
        )

    def forget(self) -> list[ast.stmt]:
        """Return statements for the start of a transaction, after which no value counts as checked."""
        lines = [f"is_known_{one} = False\nknown_{one} = np.int64(0)" for one in self._last.values()]
        return ast.parse("\n".join(lines)).body

    def _checks(self, node: ast.stmt) -> Iterator[str]:
        """Yield the conditions under which a statement is not as predicted; leave out nested statements."""
        parts: list[ast.AST] = [node]
        if isinstance(node, ast.If | ast.While):
            parts = [node.test]
        elif isinstance(node, ast.For):
            parts = [node.iter]
        for part in (one for root in parts for one in ast.walk(root)):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                yield from self._call_checks(part, part.func.id)
            elif isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
                name = ast.unparse(part.value)
                if name.endswith("_dirty") and self._places[_number(name)] is None:
                    yield "is_write_forbidden(guard, i)"

    def _call_checks(self, call: ast.Call, function: str) -> Iterator[str]:
        table = ast.unparse(call.args[0]) if call.args else ""
        if _FIND.fullmatch(function):
            number = _number(table)
            place = self._places[number]
            if place is not None:
                yield f"leaves(guard, touched, i, {number}, {ast.unparse(call.args[2 + place])})"
        elif function in _INDEX_READS and self._places[_number(table)] is not None:
            yield self._index_check(call, table)
        elif function == "remove_entry" and self._places[_number(table)] is None:
            yield "is_write_forbidden(guard, i)"

    def _index_check(self, call: ast.Call, table: str) -> str:
        """Return the check of an index look-up.

        The look-up needs all partitions, unless its values determine one partition.
        """
        number = _number(table)
        words, column = self._words[table], self._columns[number]
        bounds = [one for one in call.args if isinstance(one, ast.Tuple)]
        if self._equal[number] and bounds and column in words:
            at = words.index(column)
            if at < len(bounds[0].elts):
                return f"leaves(guard, touched, i, {number}, {ast.unparse(bounds[0].elts[at])})"
        return "needs_all(guard, touched, i)"


class _WithoutUndo:
    """Removes the undo log from a transaction's statements; ``u`` is 1 if the log would have an entry."""

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that remain."""
        found: list[ast.stmt] = []
        for node in nodes:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "u == u_op.shape[0]":
                continue
            if isinstance(node, ast.Assign) and _UNDO.match(ast.unparse(node.targets[0])):
                continue
            if ast.unparse(node) == "u += 1":
                found += ast.parse("u = 1").body
                continue
            if isinstance(node, ast.If | ast.While | ast.For):
                node.body = self.block(node.body) or [ast.Pass()]
                node.orelse = self.block(node.orelse)
            found.append(node)
        return found


def _number(name: str) -> int:
    match = _TABLE.fullmatch(name)
    return int(match[1]) if match else -1


def _unparse(node: ast.stmt) -> list[str]:
    return ast.unparse(ast.fix_missing_locations(node)).splitlines()
