"""``penstock gc --orphans``: files that no committed pointer reaches, in state, p-streams and checkpoints.

Only files known to be unreachable are orphans:

- in the state of a query whose committed pointers are known: the files that none of these pointers needs;
- in a graph's directory: state of a query that does not belong to the graph;
- state of a query that the caller declares gone for good;
- in a p-stream: files of attempts that are over.

State of any other query is kept, because its checkpoint may be anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock._durable import delete_empty_directories
from penstock.checkpointing.files import FileFacts, Files, LocalFiles, open_files
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import PStream
from penstock.checkpointing.p_stream.survey import is_p_stream, survey_p_stream
from penstock.checkpointing.spark_checkpoint import make_durable
from penstock.errors import InvalidUsageError
from penstock.jobs.commands.common import amount
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.location import Operator, find_operators
from penstock.state_store.survey import survey_bucket

__all__ = ["Orphans", "Report", "delete_orphans", "find_orphans"]


@dataclass(frozen=True, slots=True)
class Orphans:
    """Unreachable files in or below one directory, the reason, and whether the directory can be deleted."""

    location: str
    reason: str
    files: tuple[tuple[Files, FileFacts], ...]
    with_directory: bool = False

    @property
    def size_bytes(self) -> int:
        """The total bytes of the files."""
        return sum(facts.size_bytes for _, facts in self.files)


@dataclass(slots=True)
class Report:
    """The orphans found. `kept` lists possible orphans, with the reason; `damage` lists damaged files."""

    orphans: list[Orphans] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def add(self, location: str, reason: str, files: Collection[tuple[Files, FileFacts]]) -> None:
        """Add files, if there are any."""
        if files:
            self.orphans.append(Orphans(location, reason, tuple(files)))

    def add_operator(self, operator: Operator, reason: str) -> None:
        """Add the whole state of an operator."""
        self.orphans.append(Orphans(operator.location, reason, tuple(_all_files(operator)), True))


def find_orphans(path: str, checkpoint: str | None, gone: Collection[str], retain_versions: int) -> Report:
    """Look for orphans; delete nothing.

    Parameters
    ----------
    path : str
        A state location, a p-stream, a graph's directory, or a query's checkpoint that also holds the query's
        state location.
    checkpoint : str or None
        The checkpoint of a query whose state is at `path`. Spark reads it.
    gone : collection of str
        The ids of queries whose checkpoints are gone for good.
    retain_versions : int
        The setting `retain_versions` of the checkpoint's query.

    Raises
    ------
    InvalidUsageError
        If `path` holds no data of Penstock, or a query in `gone` has no state in `path` or still has a
        checkpoint.
    CorruptDataError, UnavailableError
        If a checkpoint or a log is damaged, or the file system refuses.
    """
    files, report = open_files(path), Report()
    if is_p_stream(files):
        _refuse(gone, [])
        _search_p_stream(path, report)
    elif (document := (directory := GraphDirectory(path)).newest("graph")) is not None:
        _search_graph(directory, document, gone, report)
    else:
        entries = files.list()
        if {"metadata", "offsets"} <= {facts.name for facts in entries}:
            operators, checkpoint = _operators_in_checkpoint(files, entries), checkpoint or path
        else:
            operators = find_operators(files)
        databases = [operator for operator in operators if _is_database(operator)]
        report.kept += [
            f"{one.location}: a database has no checkpoint; leave out --orphans" for one in databases
        ]
        others = [operator for operator in operators if operator not in databases]
        _search_state(others, checkpoint, gone, retain_versions, report)
    return report


def _is_database(operator: Operator) -> bool:
    """Return whether an operator's state is the tables of a database that a program opens."""
    place, slash, name = operator.location.rpartition("/")
    return bool(slash) and name == "tables" and is_p_stream(open_files(f"{place}/log"))


def _operators_in_checkpoint(checkpoint: Files, entries: Sequence[FileFacts]) -> list[Operator]:
    """Return the operators whose state location is a directory in a query's checkpoint.

    Raises
    ------
    InvalidUsageError
        If there is no such directory.
    """
    operators: list[Operator] = []
    for facts in entries:
        if facts.is_directory:
            with suppress(InvalidUsageError):
                operators += find_operators(checkpoint.child(facts.name))
    if not operators:
        raise InvalidUsageError(
            "there is no state at this location",
            location=checkpoint.location,
            hint="give the query's state_location, and its checkpoint with --checkpoint",
        )
    return operators


def delete_orphans(report: Report) -> Iterator[FileFacts]:
    """Delete the orphans found; yield each file once it is deleted.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    for orphans in report.orphans:
        for files, facts in orphans.files:
            files.delete(facts.name)
            yield facts
        place = open_files(orphans.location) if orphans.with_directory else None
        if isinstance(place, LocalFiles):
            delete_empty_directories(place.directory, place.directory.parent)


def _refuse(gone: Collection[str], there: Collection[str], running: Collection[str] = ()) -> None:
    for query in gone:
        if query in running:
            raise InvalidUsageError("the query still has a checkpoint", query=query)
        if query not in there:
            raise InvalidUsageError(
                "there is no state of this query", query=query, found=", ".join(sorted(there)) or "none"
            )


def _search_p_stream(location: str, report: Report) -> None:
    survey = survey_p_stream(PStream(location))
    garbage = [(file.files, FileFacts(file.name, file.size_bytes)) for file in survey.garbage]
    report.add(survey.location, "no commit names them or ever will", garbage)
    report.damage += survey.damage
    if survey.pending_files:
        pending = amount(survey.pending_files, survey.pending_bytes)
        report.kept.append(f"{survey.location}: {pending}: a writer may still commit them")


def _search_graph(
    directory: GraphDirectory, document: dict[str, object], gone: Collection[str], report: Report
) -> None:
    queries = document.get("queries")
    names = [str(query["name"]) for query in queries] if isinstance(queries, list) else []
    ids = {name: directory.progress(name).id for name in names}
    state = directory.files.child("state")
    operators = find_operators(state) if state.list() else []
    _refuse(
        gone, {operator.query for operator in operators}, [identity for identity in ids.values() if identity]
    )
    unknown = [name for name, identity in ids.items() if identity is None]
    for operator in operators:
        if operator.query in ids.values():
            _garbage(operator, {}, 1, report)
        elif operator.query in gone:
            report.add_operator(operator, "the query is gone")
        elif unknown:
            report.kept.append(f"{operator.location}: it may be of {unknown[0]}, whose checkpoint has no id")
        else:
            report.add_operator(operator, "no query of the graph has this id")
    own = directory.files.child("p-streams")
    for facts in own.list():
        if facts.is_directory and is_p_stream(own.child(facts.name)):
            _search_p_stream(directory.place("p-streams", facts.name), report)


def _search_state(
    operators: list[Operator],
    checkpoint: str | None,
    gone: Collection[str],
    retain_versions: int,
    report: Report,
) -> None:
    chosen: list[Operator] = []
    committed: dict[str, Pointer] = {}
    if checkpoint is not None:
        from penstock.jobs.inspect.committed import read_committed

        chosen, committed = read_committed(checkpoint, operators)
        # Sync the checkpoint first: if a power cut undid the commit, the orphans would be needed again.
        make_durable(checkpoint)
    _refuse(gone, {operator.query for operator in operators}, {operator.query for operator in chosen})
    for operator in operators:
        if operator.query in gone:
            report.add_operator(operator, "the query is gone")
        elif operator in chosen:
            _garbage(operator, committed, retain_versions, report)
        else:
            named = f" of query {operator.query_name}" if operator.query_name else ""
            report.kept.append(
                f"{operator.location}{named}: its checkpoint is not known; pass --checkpoint, or "
                f"--drop-query {operator.query} if its checkpoint is gone for good"
            )


def _garbage(operator: Operator, committed: dict[str, Pointer], retain_versions: int, report: Report) -> None:
    """Add the files that neither a loadable version needs, nor a version that may be committed."""
    report.damage += [f"{damage.file}: {damage.fact}" for damage in operator.damage]
    for bucket in operator.buckets:
        survey = survey_bucket(
            bucket, committed=committed.get(bucket.location), retain_versions=retain_versions
        )
        report.add(
            survey.location, "no version that may be needed uses them", [(bucket, f) for f in survey.garbage]
        )
        report.damage += [f"{damage.file}: {damage.fact}" for damage in survey.damage]
        if survey.withheld:
            report.kept.append(f"{survey.location}: {survey.withheld}")


def _all_files(operator: Operator) -> Iterator[tuple[Files, FileFacts]]:
    for files in (*operator.buckets, *((operator.files,) if operator.files else ())):
        yield from ((files, facts) for facts in files.list() if not facts.is_directory)
