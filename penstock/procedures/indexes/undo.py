"""Code that undoes a transaction, and code that frees the slots of deleted rows after the transaction."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.procedures.compiler.layout import FREE, GONE, LIVE, SHIFT, USED, Layout
from penstock.procedures.indexes.code import add_lines, remove_lines
from penstock.procedures.schema import Kind

__all__ = ["free_lines", "undo_lines"]


def free_lines(layout: Layout, ops: Mapping[tuple[str, ...], int]) -> list[str]:
    """Return the code that frees the slots of deleted rows, after the last point where an undo needs them."""
    deletes = {operation[1]: number for operation, number in ops.items() if operation[0] == "delete"}
    lines = ["for k in range(u):"] if deletes else []
    for name, number in deletes.items():
        table = layout.tables[name]
        lines += [
            f"    if u_op[k] == {number}:",
            f"        {table.array('free')}[{table.fact(FREE)}] = u_slot[k]",
            f"        {table.fact(FREE)} += 1",
        ]
    return lines


def undo_lines(layout: Layout, ops: Mapping[tuple[str, ...], int], mark: str = "0") -> list[str]:
    """Return the code that undoes the entries of the undo log after a mark, the last entry first."""
    lines = [f"while u > {mark}:", "    u -= 1", "    s = u_slot[u]"]
    for (operation, name, *column), number in ops.items():
        table = layout.tables[name]
        entries, shift, live = table.array("entries"), table.fact(SHIFT), table.array("live")
        word = table.word(table.key_at("s"))
        undo = {
            "insert": [
                f"remove_entry({entries}, {shift}, {word}, s)",
                f"{live}[s] = False",
                f"{table.fact(LIVE)} -= 1",
                f"if s == {table.fact(USED)} - 1:",
                f"    {table.fact(USED)} -= 1",
                "else:",
                f"    {table.array('free')}[{table.fact(FREE)}] = s",
                f"    {table.fact(FREE)} += 1",
                *remove_lines(table, "s"),
            ],
            "delete": [
                f"put_entry({entries}, {shift}, {word}, s)",
                f"{live}[s] = True",
                f"{table.fact(LIVE)} += 1",
                f"{table.fact(GONE)} -= 1",
                *add_lines(table, "s"),
            ],
        }.get(operation)
        if undo is None:
            spec = table.spec.column(column[0])
            old = "u_float" if spec.kind is Kind.FLOAT else "u_integer"
            undo = [*remove_lines(table, "s", column[0]), f"{table.column(column[0])}[s] = {old}[u]"]
            if spec.nullable:
                undo.append(f"{table.null(column[0])}[s] = u_null[u]")
            undo += add_lines(table, "s", column[0])
        lines += [f"    if u_op[u] == {number}:", *(f"        {line}" for line in undo)]
    return lines
