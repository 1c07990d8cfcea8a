"""``penstock inspect database``: tables, sizes and versions of the databases of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from penstock.checkpointing.files import open_files
from penstock.ddl import schema_text
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.commands.common import console, size, utc_time
from penstock.jobs.inspect.state import describe_bucket, survey_buckets, version_range
from penstock.procedures.engine import TableSet
from penstock.procedures.hidden_tables import HIDDEN_TABLES
from penstock.procedures.in_process.command_log import ANY_PROGRAM
from penstock.procedures.schema import TableSpec
from penstock.state_store.bucket_store import BucketStore
from penstock.state_store.descriptions import read_description
from penstock.state_store.location import SPECIFICATION_FILE, Operator
from penstock.state_store.survey import BucketSurvey

__all__ = ["StoredBucket", "StoredDatabase", "describe_database", "read_databases", "show_databases"]


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A bucket of a database.

    Attributes
    ----------
    survey : BucketSurvey
        The survey of the bucket's files.
    transactions : int
        The number of transactions that ran in the bucket up to the current version.
    forwarded : int
        The number of these transactions that ran on the coordinator of several buckets.
    rows, size_bytes : dict
        The rows of each table in this version, and their memory when loaded.
    indexes : dict
        The indexes of each table that has indexes, as of the last micro-batch.
    """

    survey: BucketSurvey
    transactions: int
    forwarded: int
    rows: dict[str, int]
    size_bytes: dict[str, int]
    indexes: dict[str, list[list[str]]]


@dataclass(frozen=True, slots=True)
class StoredDatabase:
    """The tables of an operator of transactions in a state location."""

    operator: Operator
    program: str
    tables: tuple[TableSpec, ...]
    buckets: tuple[StoredBucket, ...]

    @property
    def indexes(self) -> dict[str, list[list[str]]]:
        """The indexes of each table in the newest version."""
        return next((bucket.indexes for bucket in self.buckets if bucket.indexes), {})

    @property
    def is_loaded(self) -> bool:
        """Return whether all buckets were loaded; rows and transactions of damaged buckets are unknown."""
        return not any(bucket.survey.damage for bucket in self.buckets)

    @property
    def is_sound(self) -> bool:
        """True if no file is damaged or missing."""
        return not self.operator.damage and not any(bucket.survey.damage for bucket in self.buckets)


def read_databases(path: str, checkpoint: str | None, retain_versions: int) -> list[StoredDatabase]:
    """Examine all databases at `path`; with a checkpoint, only the databases of the checkpoint's query.

    This reads and checks every file, and loads the current version of every bucket, one after the other.

    Raises
    ------
    InvalidUsageError
        If there is no state, or no state of transactions.
    UnavailableError
        If the file system refuses.
    """
    tables = open_files(path).child("tables")
    named = {facts.name for facts in tables.list()}
    if SPECIFICATION_FILE in named and not tables.child("00000").list():
        raise InvalidUsageError(
            "the database has stored no version of its tables yet",
            location=path,
            hint="its answered calls are in its log; opening it runs them, closing it stores a version",
        )
    surveys: dict[int, tuple[Operator, list[BucketSurvey]]] = {}
    for operator, _, survey in survey_buckets(path, checkpoint, retain_versions):
        surveys.setdefault(id(operator), (operator, []))[1].append(survey)
    databases = list(_databases(surveys.values()))
    if not databases:
        raise InvalidUsageError(
            "there are no tables at this location",
            location=path,
            found=", ".join(operator.name for operator, _ in surveys.values()),
            hint="penstock inspect state shows other operators; for a bucket, give its operator's directory",
        )
    return databases


def _databases(surveys: Iterable[tuple[Operator, list[BucketSurvey]]]) -> Iterator[StoredDatabase]:
    for operator, own in surveys:
        if operator.files is None:
            continue
        try:
            specification = read_description(operator.files) or {}
        except CorruptDataError:
            continue  # the survey reports damage of the operator itself
        if "tables" not in specification:
            continue
        tables = tuple(TableSpec.from_json(text) for text in specification["tables"])
        buckets = [
            _bucket(BucketStore(files), survey, tables)
            for files, survey in zip(operator.buckets, own, strict=True)
        ]
        yield StoredDatabase(operator, str(specification.get("program")), tables, tuple(buckets))


def _bucket(store: BucketStore, survey: BucketSurvey, tables: Sequence[TableSpec]) -> StoredBucket:
    state = TableSet(tables)
    indexes: dict[str, list[list[str]]] = {}
    if survey.likely is not None and not survey.damage:
        indexes = dict(store.read_version(survey.likely)[1].meta.get("indexes", {}))
        known = [
            TableSpec.parse(
                spec.name, schema_text(spec.schema), spec.key, spec.partition_by, indexes.get(spec.name, ())
            )
            for spec in tables
        ]
        state = TableSet((*known, *HIDDEN_TABLES))
        store.load(survey.likely, state)
    return StoredBucket(
        survey,
        state.transactions,
        state.forwarded,
        {spec.name: len(state[spec.name]) for spec in tables},
        {spec.name: state[spec.name].size_bytes for spec in tables},
        indexes,
    )


def show_databases(databases: Sequence[StoredDatabase]) -> None:
    """Write a table for each database, with a row for each of its tables."""
    out = console()
    for database in databases:
        own = [bucket.survey for bucket in database.buckets]
        written = max((survey.written_us for survey in own if survey.written_us), default=None)
        title = (
            f"{database.operator.location}\n{database.operator.name} of query {database.operator.query_label}"
        )
        title += f", last written {utc_time(written)}" if written else ""
        table = Table(title=Text(title), title_justify="left", title_style="bold")
        for column in ("table", "columns", "key", "partitioned by", "indexes"):
            table.add_column(column)
        for column in ("rows", "memory"):
            table.add_column(column, justify="right")
        for spec in database.tables:
            rows = sum(bucket.rows[spec.name] for bucket in database.buckets)
            memory = sum(bucket.size_bytes[spec.name] for bucket in database.buckets)
            cells = [spec.name, schema_text(spec.schema), ", ".join(spec.key), spec.partition_by or "-"]
            cells.append("; ".join(", ".join(index) for index in database.indexes.get(spec.name, [])) or "-")
            counts = [f"{rows:,}", size(memory)] if database.is_loaded else ["?", "?"]
            table.add_row(*map(Text, [*cells, *counts]))
        out.print(table)
        out.print(Text(_summary(database)))


def _summary(one: StoredDatabase) -> str:
    surveys = [bucket.survey for bucket in one.buckets]
    current = sorted({survey.likely.version for survey in surveys if survey.likely is not None})
    loadable = sorted({version for survey in surveys for version in survey.versions} | set(current))
    count = len(one.buckets)
    transactions = sum(bucket.transactions for bucket in one.buckets)
    forwarded = sum(bucket.forwarded for bucket in one.buckets)
    share = f", {forwarded / transactions:.1%} forwarded" if forwarded else ""
    program = [f"program {one.program}"] if one.program != ANY_PROGRAM else []
    return ", ".join([
        f"{count:,} bucket{'' if count == 1 else 's'}",
        f"at version {version_range(current)}",
        f"loadable {version_range(loadable)}",
        f"{transactions:,} transactions{share}" if one.is_loaded else "transactions unknown",
        f"{size(sum(survey.size_bytes for survey in surveys))} stored",
        *program,
    ])  # fmt: skip


def describe_database(one: StoredDatabase) -> dict[str, object]:
    """Return all facts about a database, as JSON values."""
    return {
        "location": one.operator.location,
        "query": one.operator.query,
        "query_name": one.operator.query_name,
        "operator": one.operator.name,
        "program": one.program,
        "tables": [
            spec.to_json()
            | {
                "indexes": one.indexes.get(spec.name, []),
                "rows": sum(bucket.rows[spec.name] for bucket in one.buckets) if one.is_loaded else None,
                "memory_bytes": sum(bucket.size_bytes[spec.name] for bucket in one.buckets)
                if one.is_loaded
                else None,
            }
            for spec in one.tables
        ],
        "buckets": [
            describe_bucket(one.operator, number, bucket.survey)
            | {"transactions": bucket.transactions, "forwarded": bucket.forwarded}
            | {"rows_by_table": bucket.rows}
            for number, bucket in enumerate(one.buckets)
        ],
    }
