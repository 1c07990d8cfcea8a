"""Designs: a design replaces the declared columns by which tables are partitioned (H-Store §4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import yaml

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures.partitions.placement import place_tables
from penstock.procedures.partitions.predicted.routing import check_routing
from penstock.procedures.partitions.routes import find_route
from penstock.procedures.partitions.stored_text import StoredText
from penstock.procedures.procedure import Procedure
from penstock.procedures.schema import TableSpec

__all__ = ["PartitionColumns", "PartitionDesign"]

PartitionColumns = str | tuple[str, ...] | None
"""The column or the columns by which a table is partitioned; None if it is replicated."""

_FIELDS = ("database", "partitions", "tables")
_OPTIONAL_FIELDS = ("routes", "routing")
_TABLE_FIELDS = ("partition_by", "ranges", "replicated", "indexes")
_HINT = "penstock design writes such a file"


@dataclass(frozen=True)
class PartitionDesign(StoredText):
    """The partitions of a database's tables, which replace the declared partitions.

    Pass a design to `Database.open`. A table that the design does not name is partitioned as declared.

    Attributes
    ----------
    database : str
        The name of the database.
    partitions : int
        The number of partitions.
    columns : mapping of str to str, tuple of str or None
        For each table, the key column or columns by which it is partitioned; None if it is replicated.
    ranges : mapping of str to tuple
        For each table that is partitioned by ranges, the smallest value of each partition except the first.
    indexes : mapping of str to tuple
        For each table, the columns of every index by which transactions find their partition. Such a look-up
        reads the index in all partitions.
    routes : mapping of str to tuple of str
        For each procedure, the values that determine the partitions of a transaction, as
        `OpenDatabase.explain` names them.
    routing : mapping of str to str
        The routing attribute of each procedure that has one. A routing attribute is for procedures whose
        events do not determine the partitions. The hash of the attribute gives the partition in which a
        transaction runs. If the transaction accesses a different partition, it runs again over all
        partitions.
    """

    database: str
    partitions: int
    columns: Mapping[str, PartitionColumns]
    ranges: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: MappingProxyType({}))
    indexes: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=lambda: MappingProxyType({}))
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    routing: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    _KIND = "a design"

    @classmethod
    def parse(cls, text: str, file: str = "<text>") -> PartitionDesign:
        """Return the design that a YAML text describes; see `load`."""
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidUsageError("a design is not valid YAML", file=file, reason=str(error)) from error
        _check_fields(content, (*_FIELDS, *_OPTIONAL_FIELDS), file, "a design")
        if missing := [name for name in _FIELDS if name not in content]:
            raise InvalidUsageError("a design lacks a field", file=file, fields=missing, hint=_HINT)
        if type(content["partitions"]) is not int or not isinstance(content["database"], str):
            raise InvalidUsageError(
                "a design needs a number of partitions and the name of a database", file=file
            )
        columns: dict[str, PartitionColumns] = {}
        ranges: dict[str, tuple[Any, ...]] = {}
        indexes: dict[str, tuple[tuple[str, ...], ...]] = {}
        tables = content["tables"]
        if not isinstance(tables, dict):
            raise InvalidUsageError("the tables of a design are a mapping", file=file, hint=_HINT)
        for name, table in tables.items():
            _check_fields(table, _TABLE_FIELDS, file, f"the table {name}")
            names = _names(table.get("partition_by"))
            is_replicated = table.get("replicated", False) is True
            if is_replicated == bool(names) or (is_replicated and not table.keys() <= {"replicated"}):
                raise InvalidUsageError(
                    "a table of a design is partitioned or replicated",
                    file=file,
                    table=name,
                    hint="write partition_by: COLUMN, or [COLUMN, COLUMN], maybe with ranges: [...], or "
                    "replicated: true",
                )
            columns[name] = None if is_replicated else names[0] if len(names) == 1 else names
            if "indexes" in table:
                found = table["indexes"] if isinstance(table["indexes"], list) else [None]
                indexes[name] = tuple(map(_names, found))
                if not all(indexes[name]):
                    raise InvalidUsageError(
                        "the indexes of a table are a list of columns", file=file, table=name
                    )
            if "ranges" in table:
                if not isinstance(table["ranges"], list):
                    raise InvalidUsageError("the ranges of a table are a list", file=file, table=name)
                ranges[name] = tuple(table["ranges"])
        routes = content.get("routes", {})
        if not isinstance(routes, dict) or not all(map(_names, routes.values())):
            raise InvalidUsageError("the routes of a design must name attributes", file=file, hint=_HINT)
        routing = content.get("routing", {})
        if not isinstance(routing, dict) or not all(isinstance(one, str) for one in routing.values()):
            raise InvalidUsageError(
                "the routing of a design has one attribute for each procedure",
                file=file,
                hint="write routing: {PROCEDURE: ATTRIBUTE}",
            )
        by_name = {name: _names(parts) for name, parts in routes.items()}
        parts = (content["database"], content["partitions"], columns, ranges, indexes, by_name, routing)
        return PartitionDesign(*parts)

    def to_yaml(self) -> str:
        """Return the text that `parse` reads."""
        tables: dict[str, dict[str, Any]] = {}
        for name, column in self.columns.items():
            tables[name] = {"replicated": True} if column is None else {"partition_by": _plain(column)}
            if name in self.ranges:
                tables[name]["ranges"] = list(self.ranges[name])
            if self.indexes.get(name):
                tables[name]["indexes"] = [
                    _plain(index[0] if len(index) == 1 else index) for index in self.indexes[name]
                ]
        content = {"database": self.database, "partitions": self.partitions, "tables": tables}
        if self.routes:
            content["routes"] = {name: list(parts) for name, parts in self.routes.items()}
        if self.routing:
            content["routing"] = dict(self.routing)
        text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True)
        return text

    def apply(self, database: str, tables: Iterable[TableSpec]) -> list[TableSpec]:
        """Return tables as the design partitions them.

        Raises
        ------
        InvalidUsageError
            If the design is for a different database, or names a table, an index or a key column that does
            not exist.
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
            names = (column,) if isinstance(column, str) else column or ()
            for part in names:
                if part not in specs[name].key:
                    raise InvalidUsageError(
                        "a table is partitioned by a column of its key",
                        table=name,
                        partition_by=part,
                        hint=did_you_mean(part, specs[name].key, "columns of the key"),
                    )
            if len(set(names)) < len(names):
                raise InvalidUsageError("a table is partitioned by one column twice", table=name)
            specs[name] = replace(specs[name], partition_by=names[0] if names else None)
            self._check_indexes(specs[name])
        return list(specs.values())

    def _check_indexes(self, spec: TableSpec) -> None:
        declared = [index.columns for index in spec.indexes]
        for index in self.indexes.get(spec.name, ()):
            if index not in declared:
                raise InvalidUsageError(
                    "the design has an index that the table does not declare",
                    table=spec.name,
                    index=index,
                    hint=f"declare it: indexes=[{', '.join(map(repr, index))}], or leave it out",
                )

    @property
    def several(self) -> dict[str, tuple[str, ...]]:
        """For each table that is partitioned by several columns, these columns."""
        return {name: column for name, column in self.columns.items() if isinstance(column, tuple)}

    def check_routes(self, procedures: Mapping[str, Procedure], specs: Iterable[TableSpec]) -> None:
        """Refuse a design whose routes differ from the routes that procedures have over its tables.

        The keys that a procedure accesses, or its ``route=``, determine its route. A design cannot change the
        route, because a transaction that accesses rows outside of its ``route=`` is rejected.
        A design may name a routing attribute for a procedure whose events do not determine its partitions.

        Raises
        ------
        InvalidUsageError
            If the design names a procedure that does not exist, has a different route, or cannot have the
            routing attribute.
        """
        if not self.routes and not self.routing:
            return
        placements = place_tables(
            {spec.name: spec for spec in specs}, self.partitions, self.ranges, self.several
        )
        for name in {**self.routes, **self.routing}:
            if name not in procedures:
                hint = did_you_mean(name, procedures, "procedures")
                raise InvalidUsageError("the design has an unknown procedure", procedure=name, hint=hint)
        for name, attribute in self.routing.items():
            for program in procedures[name].programs:
                check_routing(name, attribute, program, placements)
        for name, wanted in self.routes.items():
            for program in procedures[name].programs:
                route = find_route(program, placements)
                if set(route.partitions) != set(wanted):
                    raise InvalidUsageError(
                        "a procedure is not routed as the design says",
                        procedure=name,
                        design=" and ".join(wanted),
                        route=route.describe(),
                        hint="declare route= if the event determines the partition, or design anew",
                    )


def _names(value: Any) -> tuple[str, ...]:
    """Return a name or a list of names as a tuple; an empty tuple for other values."""
    names = value if isinstance(value, list) else [value]
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def _plain(column: str | tuple[str, ...]) -> str | list[str]:
    """Return the partition columns as YAML writes them: a name, or a list of names."""
    return column if isinstance(column, str) else list(column)


def _check_fields(content: Any, known: tuple[str, ...], file: str, owner: str) -> None:
    if not isinstance(content, dict):
        raise InvalidUsageError(f"{owner} is a mapping in YAML", file=file, hint=_HINT)
    for name in content:
        if name not in known:
            hint = did_you_mean(str(name), known, "fields")
            raise InvalidUsageError(f"{owner} has an unknown field", file=file, field=name, hint=hint)
