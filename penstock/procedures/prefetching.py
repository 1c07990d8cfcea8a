"""Prefetching: load memory into the cache for look-ups of later events, while earlier events run.

A look-up is determined if each column of its key is an attribute of the event or an element of one of the
event's lists (TStream §II-B, F2). If a table is larger than the cache, a look-up waits twice: for the index
entry and for the row. With a prefetch distance of d events, the kernel prefetches the index entry 2 d events
ahead, and the row d events ahead. A prefetch changes no data, so rows may be inserted and deleted in between.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.procedures import language
from penstock.procedures.compiler.layout import SHIFT, Layout, TableCode
from penstock.procedures.compiler.reading import ProcedureText

__all__ = ["Lookup", "callee_of", "find_lookups", "prefetch_lines", "split_lookup", "trace_arguments"]

_MAX_COLUMNS = 4
_INDENT = "    "
Sources = Mapping[str, str]
"""Maps an attribute of a callee's event to the attribute of the program's event that supplies the value."""


@dataclass(frozen=True)
class Lookup:
    """A look-up whose key the event determines.

    Attributes
    ----------
    table : str
        The name of the table.
    key : tuple of str
        For each column of the table's key, the attribute of the event that supplies its value.
    """

    table: str
    key: tuple[str, ...]


def find_lookups(text: ProcedureText, layout: Layout) -> tuple[list[Lookup], dict[str, list[str]]]:
    """Return the determined look-ups of a program, and the columns of each table that the program uses."""
    lookups: dict[Lookup, None] = {}
    used: dict[str, dict[str, None]] = {name: {} for name in layout.tables}
    _search(text, {column.name: column.name for column in layout.event}, layout, lookups, used)
    return list(lookups), {name: list(columns)[:_MAX_COLUMNS] for name, columns in used.items()}


def _search(
    text: ProcedureText,
    sources: Sources,
    layout: Layout,
    lookups: dict[Lookup, None],
    used: dict[str, dict[str, None]],
) -> None:
    elements = dict(_elements(text, sources, layout))
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Attribute):
            for name in layout.tables.keys() & set(text.tables):
                spec = layout.tables[name].spec
                if node.attr in spec.names and node.attr not in spec.key:
                    used[name][node.attr] = None
        lookup = _lookup(node, text, sources, elements, layout)
        if lookup is not None:
            lookups[lookup] = None
        callee = callee_of(node, text)
        if callee is not None and isinstance(node, ast.Call):
            _search(callee, trace_arguments(node.args[0], text, sources), layout, lookups, used)


def _elements(text: ProcedureText, sources: Sources, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the variable and the list of each loop over a list of the event."""
    lists = {column.name for column in layout.event if column.is_list}
    for node in ast.walk(text.tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            attribute = _attribute(node.iter, text, sources)
            if attribute in lists:
                yield node.target.id, str(attribute)


def _attribute(node: ast.expr, text: ProcedureText, sources: Sources) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == text.event:
        return sources.get(node.attr)
    return None


def _lookup(
    node: ast.AST, text: ProcedureText, sources: Sources, elements: Mapping[str, str], layout: Layout
) -> Lookup | None:
    table, key = split_lookup(node, text)
    if table is None or table not in layout.tables or key is None:
        return None
    parts = key.elts if isinstance(key, ast.Tuple) else [key]
    attributes = []
    for part in parts:
        attribute = _attribute(part, text, sources)
        if isinstance(part, ast.Name):
            attribute = elements.get(part.id)
        elif isinstance(part, ast.Subscript):
            attribute = _attribute(part.value, text, sources)
        attributes.append(attribute)
    key_sources = [attribute for attribute in attributes if attribute is not None]
    if len(key_sources) < len(layout.tables[table].spec.key):
        return None
    return Lookup(table, tuple(key_sources))


def split_lookup(node: ast.AST, text: ProcedureText) -> tuple[str | None, ast.expr | None]:
    """Return the table and the key of an expression that looks a row up."""
    table: ast.expr | None = None
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        table, key = node.value, node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        table, key = node.comparators[0], node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        table, key = node.func.value, node.args[0] if node.args else None
    if isinstance(table, ast.Name) and table.id in text.tables:
        return table.id, key
    return None, None


def callee_of(node: ast.AST, text: ProcedureText) -> ProcedureText | None:
    """Return the procedure that a call calls; None for other nodes."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
        return None
    callee = getattr(text.names.get(node.func.id), "text", None)
    return callee if isinstance(callee, ProcedureText) else None


def trace_arguments(node: ast.expr, text: ProcedureText, sources: Sources) -> Sources:
    """Return the sources of the event that a procedure passes to its callee; `node` makes the event."""
    if isinstance(node, ast.Name):
        return sources if node.id == text.event else {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return {}
    if text.names.get(node.func.id) is not language.event:
        return {}
    arguments = {str(keyword.arg): _attribute(keyword.value, text, sources) for keyword in node.keywords}
    return {name: source for name, source in arguments.items() if source is not None}


def prefetch_lines(layout: Layout, lookups: list[Lookup], used: Mapping[str, list[str]]) -> list[str]:
    """Return lines of a kernel that prefetch for events after event ``i``.

    The lines use the kernel's variable ``ahead``: the prefetch distance in events, or 0 for no prefetching.
    """
    if not lookups:
        return []
    lines = ["if ahead > 0 and i + 2 * ahead < end:", f"{_INDENT}j = i + 2 * ahead"]
    lines += _loop_lines(layout, lookups, lambda code, word: [f"prefetch_entry({_index(code)}, {word})"])
    lines += [f"{_INDENT}j = i + ahead"]

    def rows(code: TableCode, word: str) -> list[str]:
        arrays = [code.column(name) for name in used[code.spec.name]]
        arrays += [code.array("dirty")] if arrays else []
        if len(code.spec.key) > 1:
            # Keys of several columns may share a word, so a look-up also reads the key columns.
            arrays += [code.column(name) for name in code.spec.key]
        if not arrays:
            return []
        slot = [f"s = peek({_index(code)}, {word})", "if s >= 0:"]
        return [*slot, *(f"{_INDENT}prefetch({array}, s)" for array in arrays)]

    return [*lines, *_loop_lines(layout, lookups, rows)]


def _index(code: TableCode) -> str:
    return f"{code.array('entries')}, {code.fact(SHIFT)}"


def _loop_lines(
    layout: Layout, lookups: list[Lookup], lines: Callable[[TableCode, str], list[str]]
) -> list[str]:
    """Return the lines for all look-ups of event ``j``; a loop does the look-ups of list elements."""
    numbers = {column.name: number for number, column in enumerate(layout.event)}
    lists = {column.name for column in layout.event if column.is_list}
    loops: dict[tuple[str, ...], list[str]] = {}
    for lookup in lookups:
        code = layout.tables[lookup.table]
        names = tuple(dict.fromkeys(name for name in lookup.key if name in lists))
        places = {name: f"e{numbers[name]}_offsets[j] + q" for name in names}
        word = code.word([f"e{numbers[name]}[{places.get(name, 'j')}]" for name in lookup.key])
        loops.setdefault(names, []).extend(lines(code, word))
    loop_lines = [_INDENT + line for line in loops.pop((), [])]
    for names, body in loops.items():
        sizes = [f"e{number}_offsets[j + 1] - e{number}_offsets[j]" for number in map(numbers.get, names)]
        if body:
            # A key takes the elements at one position of several lists. The loop ends with the shortest list.
            size = sizes[0] if len(sizes) == 1 else f"min({', '.join(sizes)})"
            loop_lines.append(f"{_INDENT}for q in range({size}):")
            loop_lines += [2 * _INDENT + line for line in body]
    return loop_lines
