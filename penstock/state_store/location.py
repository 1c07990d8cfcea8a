"""Find the operators whose state is in a state location.

State is in ``<location>/<query id>/<operator>/<bucket>/``. `find_operators` takes a directory at any of these
levels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.checkpointing import decode
from penstock.checkpointing.files import FileFacts, Files
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.state_store.bucket_store import number_of

__all__ = ["QUERY_NAME", "SPECIFICATION_FILE", "Damage", "Operator", "find_operators", "names_in"]

SPECIFICATION_FILE = "operator.punit"
"""The file with an operator's specification, which is fixed for the life of a checkpoint."""

QUERY_NAME = "query_name"
"""The field of an operator's description that holds the name of its query at the first start."""

_BUCKET = re.compile("[0-9]{5,}")
_SUFFIX = ".punit"


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that cannot be read, and the reason."""

    file: str
    fact: str


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator's part of a state location.

    Attributes
    ----------
    location : str
        The operator's directory, for messages.
    query, name : str
        The query's id and the operator's name: the last two parts of the operator's location.
    files : Files or None
        The operator's directory; None if only one of its buckets was given.
    buckets : tuple of Files
        The directories of the buckets, by name.
    damage : tuple of Damage
        The damage found in the files that all buckets share.
    query_name : str or None
        The query's name at its first start, if it had one.
    """

    location: str
    query: str
    name: str
    files: Files | None
    buckets: tuple[Files, ...]
    damage: tuple[Damage, ...] = ()
    query_name: str | None = None

    @property
    def query_label(self) -> str:
        """The query's name and id, or its id alone."""
        return f"{self.query_name} ({self.query})" if self.query_name else self.query


def find_operators(place: Files) -> list[Operator]:
    """Return the operators whose state is in `place`, in the order of their names.

    Parameters
    ----------
    place : Files
        A state location, or the directory of a query, an operator or a bucket in a state location.

    Raises
    ------
    InvalidUsageError
        If there is no state in `place`.
    UnavailableError
        If the file system refuses.
    """
    entries = place.list()
    if _is_bucket(entries):
        *above, query, name, _ = ["", "", *names_in(place.location)]
        return [Operator("/".join([*above[2:], query, name]), query, name, None, (place,))]
    operators = list(_operators(place, entries, 2))
    if not operators:
        below = place.child("state")
        if any(facts.name == "state" and facts.is_directory for facts in entries) and any(
            _operators(below, below.list(), 2)
        ):
            hint = f"the state is in {below.location}"
            raise InvalidUsageError(
                "there is no state at this location, but below it", location=place.location, hint=hint
            )
        raise InvalidUsageError(
            "there is no state at this location",
            location=place.location,
            hint="give a state_location, the directory of a query, operator or bucket in one, or the "
            "directory of a database; gc also takes a p-stream. By default the state_location of a pipeline "
            "is CHECKPOINT/state",
        )
    return operators


def _is_bucket(entries: Sequence[FileFacts]) -> bool:
    return any(not facts.is_directory and number_of(facts.name) is not None for facts in entries)


def _operators(place: Files, entries: Sequence[FileFacts], depth: int) -> Iterator[Operator]:
    """Yield the operators in `place` and up to `depth` levels below it."""
    directories = [facts.name for facts in entries if facts.is_directory]
    buckets = tuple(place.child(name) for name in directories if _BUCKET.fullmatch(name))
    if any(_is_bucket(bucket.list()) for bucket in buckets):
        query, name = ["", "", *names_in(place.location)][-2:]
        damage, named = _read_shared(place, entries)
        yield Operator(place.location, query, name, place, buckets, tuple(damage), named)
    elif depth:
        for name in directories:
            child = place.child(name)
            yield from _operators(child, child.list(), depth - 1)


def _read_shared(place: Files, entries: Sequence[FileFacts]) -> tuple[list[Damage], str | None]:
    """Read the files that all buckets share; return their damage and the query's name."""
    damage: list[Damage] = []
    name: str | None = None
    for facts in entries:
        if facts.is_directory or facts.is_unfinished or not facts.name.endswith(_SUFFIX):
            continue
        try:
            query_name = decode(place.read(facts.name), place.path_of(facts.name)).meta.get(QUERY_NAME)
            name = query_name if isinstance(query_name, str) else name
        except CorruptDataError as error:
            damage.append(Damage(place.path_of(facts.name), error.fact))
        except FileNotFoundError:
            continue
    return damage, name


def names_in(location: str) -> list[str]:
    """Split a location at its slashes."""
    return location.partition("?")[0].split("/")
