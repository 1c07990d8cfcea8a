"""The description of an operator: the settings that are fixed for the life of a checkpoint.

The first start writes ``operator.punit``. If a restart adds columns to an input, it writes the whole
description again, as ``operator-2.punit`` and so on. The file with the highest number is valid. Files are
never changed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import Files, open_files
from penstock.errors import ConflictError, InvalidUsageError
from penstock.state_store.location import SPECIFICATION_FILE
from penstock.units import duration_text

__all__ = ["add_columns", "changed_setting_error", "find_added", "missing_state_notes", "read_description"]


def read_description(files: Files) -> Mapping[str, Any] | None:
    """Return the newest description in an operator's directory; None if there is none.

    Raises
    ------
    CorruptDataError
        If a file is damaged.
    UnavailableError
        If the file system refuses.
    """
    found = None
    for name in _names():
        try:
            content = files.read(name)
        except FileNotFoundError:
            return found
        found = decode(content, files.path_of(name)).meta
    return found


def missing_state_notes(
    operator: str, state_location: str, query: str | None, *, has_pointers: bool
) -> Iterator[str]:
    """Yield warnings that an operator without state may have lost the state of its checkpoint.

    Parameters
    ----------
    operator : str
        The name of the operator.
    state_location : str
        The location of the state of all queries.
    query : str, optional
        The id of the operator's query; None for a new query.
    has_pointers : bool
        Whether the checkpoint has, or may have, pointers to state.
    """
    place = open_files(state_location)
    queries = [facts.name for facts in place.list() if facts.is_directory]
    if query is not None and query not in queries and has_pointers:
        yield (
            f"{operator} finds no state of its checkpoint in {state_location}. If earlier starts had another "
            "state_location, set it back"
        )
    elif query not in queries and any(read_description(place.child(one).child(operator)) for one in queries):
        yield (
            f"{operator} starts without state: {state_location} holds only state of other checkpoints. "
            "If the query's checkpoint was deleted or moved by mistake, restore it"
        )


def add_columns(files: Files, changes: Mapping[str, Any]) -> None:
    """Write the description with changed settings, unless another task has already written it."""
    theirs = read_description(files) or {}
    known = {facts.name for facts in files.list()}
    name = next(name for name in _names() if name not in known)
    try:
        files.publish(name, encode(PUnit("operator", {**theirs, **changes})))
    except ConflictError:
        return  # the caller compares with the newest description


def find_added(theirs: Sequence[str], ours: Sequence[str], may_add: Collection[str]) -> list[str] | None:
    """Return the columns that `ours` has in addition to `theirs`; None if there is any other difference.

    Parameters
    ----------
    theirs, ours : sequence of str
        The stored columns and the current columns, each as "name type".
    may_add : collection of str
        The columns that may be added.
    """
    rest = iter(ours)
    added: list[str] = []
    for column in theirs:
        for other in rest:
            if other == column:
                break
            added.append(other)
        else:
            return None
    added += rest
    return added if set(added) <= set(may_add) else None


def _names() -> Iterator[str]:
    stem, suffix = SPECIFICATION_FILE.split(".")
    yield SPECIFICATION_FILE
    number = 2
    while True:
        yield f"{stem}-{number}.{suffix}"
        number += 1


_COPIED_BY = {"buckets": "rescale", "schema": "migrate", "left": "migrate", "right": "migrate"}
"""Maps a setting to the command that copies a query with a new value of this setting."""
_PLURALS = ("aggregates", "classes", "requests", "semantics", "tables")
_OTHER = {"buckets": "another number of buckets", **{name: f"other {name}" for name in _PLURALS}}
"""Maps a setting whose name is a plural to the words for a different value."""


def changed_setting_error(
    name: str,
    was: Any,
    now: Any,
    *,
    operator: str,
    file: str,
    may_add: Collection[str] | None = None,
    in_graph: bool = False,
) -> InvalidUsageError:
    """Return the error for a setting that differs from the description in a file.

    For a setting with columns, `may_add` has the columns that may be added. With `in_graph`, the checkpoint
    belongs to a graph and cannot be copied.
    """
    back = f"set it to {was} (buckets, or spark.sql.shuffle.partitions)"
    back = back if name == "buckets" else "set it back"
    hint = f"{back}, or start with a new checkpoint (and a new directory, if the sink writes files)"
    added = [] if may_add is None else find_added(was or (), now, now) or []
    if refused := [column for column in added if column not in (may_add or ())]:
        hint += (
            f"; the added column {', '.join(refused)} must allow nulls (literals and coalesce with a literal "
            "do not), and no option may name it; or compute it from the operator's output"
        )
    elif name == "program":
        hint += f', or continue over its tables with compatible_with="{was}"'
    elif name in _COPIED_BY and not in_graph:
        hint += f", or with a copy that penstock state {_COPIED_BY[name]} makes"
    if name == "window":
        was, now = map(_window_text, (was, now))
    elif name == "aggregates":
        was, now = map(_aggregates_text, (was, now))
    return InvalidUsageError(
        f"the checkpoint was made with {_OTHER.get(name, f'another {name}')}",
        operator=operator,
        was=json.dumps(was),
        now=json.dumps(now),
        file=file,
        hint=hint,
    )


def _window_text(window: Any) -> Any:
    """Return the setting of windows as plans show it: size, slide and delay; or a gap and a delay."""
    match window:
        case ["session", int(gap_ms), int(delay_ms), *_]:
            text = f"sessions with a gap of {duration_text(gap_ms)}"
        case [size, slide, int(delay_ms)]:
            text = " by ".join(duration_text(one) if isinstance(one, int) else one for one in (size, slide))
        case _:
            return window
    return f"{text}, {duration_text(delay_ms)} late" if delay_ms else text


def _aggregates_text(aggregates: Any) -> Any:
    """Return a text for stored partial aggregates: function, arguments, and column."""
    match aggregates:
        case [*parts] if all(isinstance(part, list) and len(part) > 2 for part in parts):
            return ", ".join(
                f"{function}({', '.join(map(str, [text, *more]))}) AS {column}"
                for function, text, column, *more in parts
            )
    return aggregates
