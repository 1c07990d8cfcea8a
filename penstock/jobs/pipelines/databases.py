"""Databases that a Python file makes, for pipelines and commands; Spark is not started."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from penstock.conf.sections import DatabaseSection
from penstock.conf.values import choice, did_you_mean
from penstock.errors import InvalidUsageError, PenstockError
from penstock.procedures import Database
from penstock.procedures.procedure import Procedure
from penstock.procedures.schema import TableSpec
from penstock.procedures.workflows.workflow import Workflow

__all__ = ["check_rows", "database_in", "databases_in", "procedure_of"]


def databases_in(path: str | Path) -> dict[str, Database]:
    """Run a Python file; return the databases that it makes, by name.

    The file's ``__name__`` is not ``"__main__"``, so code under ``if __name__ == "__main__"`` does not run.
    The file may import modules from its directory.

    Raises
    ------
    InvalidUsageError
        If the file does not exist, fails, or makes no database.
    """
    file = Path(path)
    spec = importlib.util.spec_from_file_location(f"penstock_database_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise InvalidUsageError("there is no such Python file", file=path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module while they are made. Remove it afterwards, so that its functions are
    # pickled by value.
    sys.modules[spec.name] = module
    beside = str(file.absolute().parent)
    sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except PenstockError:
        raise
    except Exception as error:
        line = next(
            (one.lineno for one in reversed(traceback.extract_tb(error.__traceback__))
             if Path(one.filename) == file.absolute() or one.filename == str(file)), None,
        )  # fmt: skip
        raise InvalidUsageError(
            "the file fails",
            file=path,
            line=line or getattr(error, "lineno", None),
            reason=f"{type(error).__name__}: {error}",
        ) from error
    finally:
        del sys.modules[spec.name]
        sys.path.remove(beside)
    databases = {one.name: one for one in vars(module).values() if isinstance(one, Database)}
    if not databases:
        raise InvalidUsageError(
            "the file makes no database", file=path, hint='write bank = penstock.database("bank") at its top'
        )
    return databases


def database_in(path: str | Path, name: str | None = None) -> Database:
    """Return the database that a Python file makes; if it makes several, the database with this name.

    Raises
    ------
    InvalidUsageError
        See `databases_in`; also if there is no such database, or no name is given and there are several
        databases.
    """
    databases = databases_in(path)
    if name is None and len(databases) > 1:
        raise InvalidUsageError(
            "the file makes several databases", file=path, databases=", ".join(databases),
            hint="choose one with name",
        )  # fmt: skip
    name = name or next(iter(databases))
    if name not in databases:
        fact, hint = choice(name, list(databases))
        raise InvalidUsageError(f"the database {fact}", file=path, hint=hint)
    return databases[name]


def procedure_of(section: DatabaseSection) -> Procedure | Workflow:
    """Return the procedure or the workflow that a pipeline runs.

    Raises
    ------
    InvalidUsageError
        See `databases_in`; also if there is no such database or procedure, or no name is given and there are
        several databases.
    """
    database = database_in(section.file, section.name)
    procedures: dict[str, Procedure | Workflow] = {**database.procedures, **database.workflows}
    if section.procedure not in procedures:
        known = f"the database {database.name} has {', '.join(procedures) or 'none'}"
        raise InvalidUsageError(
            f"there is no procedure {section.procedure!r}",
            file=section.file,
            hint=did_you_mean(section.procedure, list(procedures), known),
        )
    return procedures[section.procedure]


def check_rows(columns: pa.Schema, tables: Mapping[str, TableSpec], name: str) -> None:
    """Check that rows with these columns can be the first rows of a table.

    Raises
    ------
    InvalidUsageError
        If there is no such table, a column is missing or unknown, or a type differs.
    """
    if name not in tables:
        hint = did_you_mean(name, list(tables), f"the database has {', '.join(tables)}")
        raise InvalidUsageError(f"there is no table {name!r}", hint=hint)
    tables[name].check_known(columns.names)
    for field in tables[name].schema:
        if field.name not in columns.names:
            if not field.nullable:
                raise InvalidUsageError("a column is missing", column=field.name)
            continue
        kind = columns.field(field.name).type
        try:
            pa.array([], kind).cast(field.type)
        except pa.ArrowNotImplementedError:  # only Arrow can tell whether a cast exists
            raise InvalidUsageError(
                "a column has another type than in its table",
                column=field.name, type=str(kind), declared=str(field.type),
            ) from None  # fmt: skip
