"""The kernel that runs transactions on several threads, not in the order of their events.

The parallel code is the serial kernel with three changes. A schedule determines which transaction runs next.
If a later transaction has already changed a row, a look-up returns the version of the row that the
transaction must read. An insert or delete ends the run with an error. This never happens, because events that
may insert or delete run alone.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from penstock._kernels import load_run
from penstock.procedures.compiler.output import ROOM

if TYPE_CHECKING:
    from penstock.procedures.compiler.program import Program

__all__ = ["FULL", "STRAY", "load_parallel", "parallel_source"]

FULL, STRAY = -3, -4
"""Results of the kernel: the undo log is full; a transaction made an access outside of its access set."""

_INLINED = ("atomics.py", "schedule.py", "versions.py")
_STRAY_CODE = 1 << 40
_IMPORTS = """from penstock.procedures.parallel.atomics import fetch_add
from penstock.procedures.parallel.schedule import end_transaction, next_transaction, push, run_again
from penstock.procedures.parallel.versions import version_of
"""
_CHAINS = "state, thread, queues, transactions, rows, tables, writes, following, versions, pending, bases"
_SCHEDULE = f"mode, threads, first, count, order, begins, offsets, versioned, heads, {_CHAINS}"
_FIND = re.compile(r"find_\d")
_COLUMN = re.compile(r"t\d+_[cn]\d+")
_CHANGES = ("put_entry", "remove_entry", "insert_node", "remove_node")


def load_parallel(program: Program, inlined: bytes) -> Callable[..., int]:
    """Return a program's parallel kernel; the `inlined` texts become a part of it."""
    here = b"".join(pkgutil.get_data("penstock.procedures.parallel", name) or b"" for name in _INLINED)
    return load_run(parallel_source(program), inlined + here)


def parallel_source(program: Program) -> str:
    """Return the source of the module with a program's parallel kernel."""
    head, body = program.source.split("@kernel\n", 1)
    function = cast(ast.FunctionDef, ast.parse(body).body[0])
    loop = next(node for node in function.body if isinstance(node, ast.For))
    start = next(place for place, node in enumerate(loop.body) if ast.unparse(node) == "code = 0")
    # The statements: code = 0, u = 0, while True: the transaction, if code > 0: its undo.
    *zeros, transaction, failure = loop.body[start : start + 4]
    undo = [node for node in cast(ast.If, failure).body if isinstance(node, ast.While)]
    columns = [name for name in program.arguments if _COLUMN.fullmatch(name)]
    lines = [
        *_advance_lines(program, columns),
        "",
        "@kernel",
        f"def run({_SCHEDULE}, {', '.join(program.arguments)}):",
        "    while True:",
        "        at = fetch_add(state, 0, 1) if heads.shape[0] > 0 else 0",
        "        if at >= heads.shape[0]:",
        "            break",
        f"        advance(heads[at], {', '.join([_CHAINS, *columns])})",
        "    while True:",
        "        t = next_transaction(mode, state, thread, threads, count, order, begins, queues)",
        "        if t < 0:",
        "            return t",
        "        i = first + t",
        *_indent([*zeros, _Planned().visit(transaction)], 2),
        "        if code > 0:",
        *_indent(undo, 3),
        f"            if code == {ROOM}:",
        "                run_again(state, thread, t)",
        f"                return {FULL}",
        f"            if code == {_STRAY_CODE}:",
        f"                return {STRAY}",
        "            codes[i] = code",
        "        else:",
        "            codes[i] = 0",
        "        if heads.shape[0] > 0:",
        "            for x in range(offsets[t], offsets[t + 1]):",
        "                if writes[x] and following[x] >= 0:",
        f"                    advance(following[x], {', '.join([_CHAINS, *columns])})",
        "        end_transaction(mode, state, thread, t, order)",
    ]
    return "\n".join([head + _IMPORTS, *lines, ""])


def _advance_lines(program: Program, columns: Sequence[str]) -> list[str]:
    """Return the source of ``advance``, which lets the operations of a chain run, up to the next write."""
    lines = [
        "@kernel",
        f"def advance(x, {', '.join([_CHAINS, *columns])}):",
        "    if x < 0:",
        "        push(state, queues, thread, -1 - x)",
        "        return",
        "    while x >= 0:",
        "        after = -1 if writes[x] else following[x]",
        "        v = versions[x]",
        "        if v >= 0:",
        "            s = rows[x] - bases[tables[x]]",
    ]
    for number, _ in enumerate(program.tables):
        lines.append(f"            if tables[x] == {number}:")
        lines += [f"                {c}[v] = {c}[s]" for c in columns if c.startswith(f"t{number}_")]
    return [
        *lines,
        "        t = transactions[x]",
        "        if fetch_add(pending, t, -1) == 1:",
        "            push(state, queues, thread, t)",
        "        x = after",
    ]


class _Planned(ast.NodeTransformer):
    """Rewrites the body of a transaction for the parallel kernel."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Let a look-up return the version that the transaction reads."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or not _FIND.fullmatch(node.func.id):
            return node
        table = ast.unparse(node.args[0]).removeprefix("t").removesuffix("_entries")
        place = f"{table}, t, offsets, rows, tables, versions, versioned, bases"
        return ast.parse(f"version_of({ast.unparse(node)}, {place})", mode="eval").body

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        """End a transaction that changes an index."""
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _CHANGES:
            return [*ast.parse(f"code = {_STRAY_CODE}").body, ast.Break()]
        return self.generic_visit(node)


def _indent(nodes: Sequence[ast.stmt], depth: int) -> list[str]:
    text = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in nodes)
    return [depth * "    " + line for line in text.splitlines()]
