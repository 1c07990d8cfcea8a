"""A design: the column by which each table is partitioned, whatever it declares (H-Store §4.2)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from penstock.errors import InvalidUsageError
from penstock.procedures.schema import TableSpec
from penstock.sql.expression import did_you_mean

__all__ = ["PartitionDesign"]

_FIELDS = ("database", "partitions", "tables")
_TABLE_FIELDS = ("partition_by", "ranges", "replicated")
_HINT = "penstock design writes such a file"


@dataclass(frozen=True)
class PartitionDesign:
    """The partitions of a database's tables. `Database.open` takes it, whatever the tables declare.

    A table that it does not name is as declared.

    Attributes
    ----------
    database : str
        The name of the database.
    partitions : int
        The number of partitions.
    columns : mapping of str to str or None
        For each table the column of its key by which it is partitioned; None if it is replicated.
    ranges : mapping of str to tuple
        For tables that are partitioned by ranges: the least value of each partition but the first.
    """

    database: str
    partitions: int
    columns: Mapping[str, str | None]
    ranges: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @staticmethod
    def load(source: PartitionDesign | str | os.PathLike[str]) -> PartitionDesign:
        """Read a design from a YAML file.

        Raises
        ------
        InvalidUsageError
            If the file cannot be read, or is no design.
        """
        if isinstance(source, PartitionDesign):
            return source
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, TypeError, ValueError) as error:
            raise InvalidUsageError("cannot read a design", file=source, reason=str(error)) from error
        return PartitionDesign.parse(text, str(source))

    @staticmethod
    def parse(text: str, file: str = "<text>") -> PartitionDesign:
        """Return the design that a YAML text says; see `load`."""
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidUsageError("a design is no YAML", file=file, reason=str(error)) from error
        _check_fields(content, _FIELDS, file, "a design")
        if missing := [name for name in _FIELDS if name not in content]:
            raise InvalidUsageError("a design lacks a field", file=file, fields=missing, hint=_HINT)
        if type(content["partitions"]) is not int or not isinstance(content["database"], str):
            raise InvalidUsageError(
                "a design has a number of partitions and the name of a database", file=file
            )
        columns: dict[str, str | None] = {}
        ranges: dict[str, tuple[Any, ...]] = {}
        tables = content["tables"]
        if not isinstance(tables, dict):
            raise InvalidUsageError("the tables of a design are a mapping", file=file, hint=_HINT)
        for name, table in tables.items():
            _check_fields(table, _TABLE_FIELDS, file, f"the table {name}")
            column = table.get("partition_by")
            is_replicated = table.get("replicated", False) is True
            if is_replicated == isinstance(column, str) or (is_replicated and "ranges" in table):
                raise InvalidUsageError(
                    "a table of a design is partitioned or replicated",
                    file=file,
                    table=name,
                    hint="write partition_by: COLUMN, maybe with ranges: [...], or replicated: true",
                )
            columns[name] = column
            if "ranges" in table:
                if not isinstance(table["ranges"], list):
                    raise InvalidUsageError("the ranges of a table are a list", file=file, table=name)
                ranges[name] = tuple(table["ranges"])
        return PartitionDesign(content["database"], content["partitions"], columns, ranges)

    def to_yaml(self) -> str:
        """Return the text that `parse` reads."""
        tables: dict[str, dict[str, Any]] = {}
        for name, column in self.columns.items():
            tables[name] = {"replicated": True} if column is None else {"partition_by": column}
            if name in self.ranges:
                tables[name]["ranges"] = list(self.ranges[name])
        content = {"database": self.database, "partitions": self.partitions, "tables": tables}
        text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True)
        return text

    def apply(self, database: str, tables: Iterable[TableSpec]) -> list[TableSpec]:
        """Return tables as the design partitions them.

        Raises
        ------
        InvalidUsageError
            If it is the design of another database, or names a table or a column of a key that there is not.
        """
        specs = {spec.name: spec for spec in tables}
        if database != self.database:
            raise InvalidUsageError(
                "the design is of another database", database=database, design=self.database
            )
        for name, column in self.columns.items():
            if name not in specs:
                hint = did_you_mean(name, specs, "tables")
                raise InvalidUsageError("the design has an unknown table", table=name, hint=hint)
            if column is not None and column not in specs[name].key:
                raise InvalidUsageError(
                    "a table is partitioned by a column of its key",
                    table=name,
                    partition_by=column,
                    hint=did_you_mean(column, specs[name].key, "columns of the key"),
                )
            specs[name] = replace(specs[name], partition_by=column)
        return list(specs.values())


def _check_fields(content: Any, known: tuple[str, ...], file: str, owner: str) -> None:
    if not isinstance(content, dict):
        raise InvalidUsageError(f"{owner} is a mapping in YAML", file=file, hint=_HINT)
    for name in content:
        if name not in known:
            hint = did_you_mean(str(name), known, "fields")
            raise InvalidUsageError(f"{owner} has an unknown field", file=file, field=name, hint=hint)
