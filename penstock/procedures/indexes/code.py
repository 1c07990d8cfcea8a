"""Generated code that updates the indexes of a table when a kernel changes its rows."""

from __future__ import annotations

from penstock.procedures.compiler.layout import FACTS, TEXT_BYTES, TableCode
from penstock.procedures.schema import Column, IndexSpec, Kind

__all__ = ["add_lines", "nodes_of", "place_of", "remove_lines", "tree_arguments", "word"]


def place_of(index: IndexSpec, table: TableCode) -> int:
    """Return the number of an index in its table."""
    return table.spec.indexes.index(index)


def nodes_of(table: TableCode, number: int) -> str:
    """Return the name of an index's array of nodes."""
    return table.array(f"i{number}")


def tree_arguments(table: TableCode, number: int, *more: str) -> str:
    """Return the first arguments of the functions of `penstock.procedures.indexes.trees`, then `more`."""
    tree = [nodes_of(table, number), table.array("facts"), str(len(FACTS) + number)]
    mask = table.spec.indexes[number].text_mask
    return ", ".join([*tree, *more, str(mask), *TEXT_BYTES])


def word(column: Column, code: str) -> str:
    """Return code for the word that an index stores for a value."""
    return f"float_word(np.float64({code}))" if column.kind is Kind.FLOAT else f"np.int64({code})"


def _indexes(table: TableCode, column: str | None) -> list[tuple[int, IndexSpec]]:
    """Return the indexes on a column, or all indexes, with their numbers."""
    return [
        (number, index)
        for number, index in enumerate(table.spec.indexes)
        if column is None or column in index.columns
    ]


def remove_lines(table: TableCode, slot: str, column: str | None = None) -> list[str]:
    """Return code that removes a row from the indexes on a column, or from all indexes."""
    lines = []
    for number, _ in _indexes(table, column):
        nodes = nodes_of(table, number)
        lines += [
            f"if {nodes}[{slot}, {nodes}.shape[1] - 1] != 0:",
            f"    remove_node({tree_arguments(table, number, slot)})",
        ]
    return lines


def add_lines(table: TableCode, slot: str, column: str | None = None) -> list[str]:
    """Return code that adds a row to the indexes on a column, or to all indexes."""
    lines = []
    for number, index in _indexes(table, column):
        nodes = nodes_of(table, number)
        insertion = [
            f"{nodes}[{slot}, {place}] = {word(column, f'{table.column(column.name)}[{slot}]')}"
            for place, column in enumerate(index.words)
        ]
        insertion.append(f"insert_node({tree_arguments(table, number, slot)})")
        nulls = [f"{table.null(name)}[{slot}]" for name in index.columns if table.spec.column(name).nullable]
        if nulls:
            insertion = [f"if not ({' or '.join(nulls)}):", *(f"    {line}" for line in insertion)]
        lines += insertion
    return lines
