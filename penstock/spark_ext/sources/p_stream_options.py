"""The options of the data source ``pstream``, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.checkpointing.p_stream.description import EARLIEST, Start, check_name, parse_start
from penstock.checkpointing.p_stream.segments import UNIT_ROWS
from penstock.checkpointing.p_stream.update_log import UpdateLog
from penstock.compression.choice.goals import goal_of
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.scan.spec import Scan

__all__ = ["ReadOptions", "WriteOptions"]

_READ = (
    "buckets",
    "columns",
    "lookup",
    "maxBytes",
    "maxRows",
    "partitions",
    "reader",
    "scan",
    "start",
    "transactions",
)
_WRITE = (
    "batch",
    "deleteWhen",
    "descriptors",
    "deterministic",
    "directIo",
    "goal",
    "keepDeletes",
    "key",
    "time",
    "unitRows",
    "writer",
)
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname"})
_INTERNAL = frozenset({"buckets", "descriptors", "lookup", "scan", "transactions"})
"""Options that only Penstock itself sets."""


def _known_options(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the options other than Spark's own, with names in lower case."""
    texts = {name.lower(): text for name, text in options.items()}
    unknown = sorted(texts.keys() - {name.lower() for name in names} - _OF_SPARK)
    if unknown:
        raise InvalidUsageError(
            "the data source pstream does not have these options",
            options=", ".join(unknown),
            hint=did_you_mean(unknown[0], (name for name in names if name not in _INTERNAL), "options"),
        )
    return texts


def path_in(options: Mapping[str, str]) -> str:
    """Return the p-stream's location.

    Raises
    ------
    InvalidUsageError
        If the location is not given.
    """
    path = {name.lower(): text for name, text in options.items()}.get("path")
    if not path:
        raise InvalidUsageError(
            "the data source pstream needs a path", hint="load(PATH) or option('path', PATH)"
        )
    return path


def _count(texts: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = texts.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidUsageError(
            "an option is not a whole number, or is too small", option=name, got=text, least=least
        )
    return value


def _flag(texts: Mapping[str, str], name: str) -> bool | None:
    text = texts.get(name.lower())
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise InvalidUsageError("an option is neither true nor false", option=name, got=text)
    return text.lower() == "true"


def _name(texts: Mapping[str, str], name: str) -> str | None:
    text = texts.get(name)
    return None if text is None else check_name(text)


def _columns(text: str | None, option: str = "columns") -> tuple[str, ...] | None:
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidUsageError(f"the option {option} is not a JSON list of names", got=text)
    return tuple(names)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of reading a p-stream.

    Parameters
    ----------
    path : str
        The location of the p-stream.
    reader : str or None
        The name to subscribe under.
    start : str or int or datetime
        The position at which a new reader begins.
    columns : tuple of str or None
        The columns to read; None for all.
    max_rows, max_bytes : int or None
        The limits of a micro-batch.
    partitions : int or None
        The greatest number of tasks of a batch.
    scan : Scan or None
        The scan that readers run on their rows. If given, `columns` is None.
    buckets : int or None
        The number of buckets for parcels of a scan's fragments.
    lookup : str or None
        The text of a `Lookup` for the fragments, before they become parcels.
    transactions : str or None
        How readers pass rows to transactions, as JSON; see `TransactionScan`.
    """

    path: str
    reader: str | None
    start: Start
    columns: tuple[str, ...] | None
    max_rows: int | None
    max_bytes: int | None
    partitions: int | None
    scan: Scan | None
    buckets: int | None
    lookup: str | None
    transactions: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Return the checked options.

        Raises
        ------
        InvalidUsageError
            If an option is unknown or wrong.
        """
        texts = _known_options(options, _READ)
        if "scan" in texts and "columns" in texts:
            raise InvalidUsageError("a scan names its columns", hint="leave out the option columns")
        scan = Scan.from_json(texts["scan"]) if "scan" in texts else None
        if "buckets" in texts and (scan is None or scan.fragments is None):
            raise InvalidUsageError("the option buckets is for a scan's fragments only")
        if "lookup" in texts and "buckets" not in texts:
            raise InvalidUsageError("the option lookup is for fragments that become parcels only")
        return cls(
            path=path_in(options),
            reader=_name(texts, "reader"),
            start=parse_start(texts.get("start", EARLIEST)),
            columns=_columns(texts.get("columns")),
            max_rows=_count(texts, "maxRows"),
            max_bytes=_count(texts, "maxBytes"),
            partitions=_count(texts, "partitions"),
            scan=scan,
            buckets=_count(texts, "buckets"),
            lookup=texts.get("lookup"),
            transactions=texts.get("transactions"),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of writing a p-stream.

    Parameters
    ----------
    path : str
        The location of the p-stream.
    writer : str or None
        The writer's name.
    batch : int or None
        The writer's batch number for the rows of a batch job.
    goal : str
        The goal of the compression; see `penstock.compression.choice.goals.goal_of`.
    unit_rows : int
        The greatest number of rows of a p-unit.
    descriptors : bool
        Whether the input is descriptors of rows that an operator has written.
    deterministic : bool
        Whether a micro-batch that runs again has the same rows in the same order.
    direct_io : bool or None
        Whether rows of a new p-stream bypass the page cache on write and read.
    update_log : UpdateLog or None
        Makes a new p-stream an update log.
    checkpoint : str or None
        The query's checkpoint, if Spark passes it.
    """

    path: str
    writer: str | None
    batch: int | None
    goal: str
    unit_rows: int
    descriptors: bool = False
    deterministic: bool = False
    direct_io: bool | None = None
    update_log: UpdateLog | None = None
    checkpoint: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Return the checked options.

        Raises
        ------
        InvalidUsageError
            If an option is unknown or wrong.
        """
        texts = _known_options(options, _WRITE)
        goal = texts.get("goal", "balanced")
        goal_of(goal)  # refuses an invalid goal here
        return cls(
            path=path_in(options),
            writer=_name(texts, "writer"),
            batch=_count(texts, "batch", least=0),
            goal=goal,
            unit_rows=_count(texts, "unitRows") or UNIT_ROWS,
            descriptors=_flag(texts, "descriptors") or False,
            deterministic=_flag(texts, "deterministic") or False,
            direct_io=_flag(texts, "directIo"),
            update_log=UpdateLog.of(
                _columns(texts.get("key"), "key"),
                texts.get("time"),
                texts.get("deletewhen"),
                texts.get("keepdeletes"),
            ),
            checkpoint=texts.get("checkpointlocation"),
        )
