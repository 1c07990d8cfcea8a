"""A Spark checkpoint on a disk of this machine: make it durable, and repair it after a power cut.

Spark does not sync its files. After a power cut, the files of the last seconds may be empty, truncated or
missing, and Spark refuses to start::

    CHECKPOINT/metadata                   the query's id
    CHECKPOINT/offsets/<batch>            the plan of a micro-batch: its rows in each source
    CHECKPOINT/commits/<batch>            the mark that the micro-batch is committed
    CHECKPOINT/sources/<source>/<number>  the files that a source of files has found
    CHECKPOINT/state/<operator>/...       micro-batch ``b`` needs version ``b`` and leaves ``b + 1``

Beside each file, Hadoop's local file system writes a file ``.<name>.crc`` with a checksum for every 512
bytes.

Invariants (docs/design/0015-power-cuts.md):

1. A p-stream takes a micro-batch of a query only when the files that the query would start from are durable.
2. Rows and state are released only after durable files prove that no recovery needs them.
3. So nothing durable depends on the files that a power cut destroys, and a repair may delete these files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock import _durable
from penstock.checkpointing.files import Files, LocalFiles, open_files
from penstock.conf.arguments import check_keywords
from penstock.errors import CorruptDataError

__all__ = ["Repair", "list_numbers", "local_path", "make_durable", "plan_of", "repair_checkpoint"]

_LOGGER = logging.getLogger(__name__)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_OFFSETS, _COMMITS, _METADATA, _STATE, _SOURCES = "offsets", "commits", "metadata", "state", "sources"
_VERSION = re.compile(r"(\d+)(_[^.]*)?\.(delta|snapshot|changelog|zip)")
_NUMBER = re.compile(r"(\d+)(\.compact)?")
_SUMS_MAGIC, _SUMS_HEAD, _CHUNK = b"crc\0", 8, 512

_File = tuple[Files, str]
"""A directory, and a name in it."""


def list_numbers(log: Path) -> set[int]:
    """Return the numbers of the micro-batches that have a file in a log of a checkpoint."""
    return {int(path.name) for path in log.glob("[0-9]*") if path.name.isdecimal()}


def local_path(location: str) -> Path | None:
    """Return the local path of a checkpoint location in Spark's form; None if it is not on a local disk.

    Spark does not decode a URI: ``%20``, ``#`` and ``?`` are parts of names.
    """
    scheme = _SCHEME.match(location)
    if scheme is None:
        return Path(location)
    if scheme[1].lower() != "file":
        return None
    path = location[len("file:") :]
    return Path("/" + path[2:].partition("/")[2] if path.startswith("//") else path)


def has_foreign_results(output: str, checkpoint: str | None) -> bool:
    """Return whether the log of a file sink has micro-batches, but the checkpoint of its query has none.

    Spark's file sink skips each micro-batch whose number is in the sink's log, even if the log belongs to a
    different checkpoint.

    Parameters
    ----------
    output : str
        The sink's directory.
    checkpoint : str or None
        The checkpoint of a query or of a graph; None if it is new.
    """
    directory, begun = local_path(output), None if checkpoint is None else local_path(checkpoint)
    if directory is None or not any((directory / "_spark_metadata").glob("[0-9]*")):
        return False
    if begun is None:
        return checkpoint is None
    return not any(any(begun.glob(f"{queries}offsets/[0-9]*")) for queries in ("", "queries/*/"))


def make_durable(location: str | None) -> None:
    """Sync all files that Spark has written to a checkpoint.

    Files on other file systems are durable already.

    Parameters
    ----------
    location : str or None
        The checkpoint, in the form given to Spark. If the location is unknown, or this process cannot see
        it, all disks of the machine are synced.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    path = None if location is None else local_path(location)
    if location is not None and path is None:
        return
    try:
        if path is not None:
            _durable.sync_file_system(path)
            return
    except FileNotFoundError:
        pass
    _durable.sync_everything()


def plan_of(location: str | None, batch: int) -> int | None:
    """Return a checksum of Spark's plan for a micro-batch; None if the plan is not on a local disk.

    If a micro-batch runs again from Spark's log, the checksum is the same. If Spark plans the micro-batch
    again because the log was set back, the checksum differs.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    path = None if location is None else local_path(location)
    if path is None:
        return None
    try:
        return zlib.crc32(_durable.read(path / _OFFSETS / str(batch)))
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Repair:
    """The files that a repair of a checkpoint deletes.

    Attributes
    ----------
    batch : int or None
        The newest micro-batch whose plan is kept. None if the query will start from the beginning, or if
        nothing needs repair.
    files : tuple of str
        The paths of the files.
    """

    batch: int | None = None
    files: tuple[str, ...] = ()


@dataclass(slots=True)
class _Log:
    """The numbered files of a directory, and whether each of them is whole."""

    files: Files
    names: dict[int, dict[str, bool]] = field(default_factory=dict)

    def add(self, number: int, name: str, *, whole: bool) -> None:
        self.names.setdefault(number, {})[name] = whole

    def has(self, number: int) -> bool:
        """Return whether any file with this number is whole; a version of state needs only one whole file."""
        return any(self.names.get(number, {}).values())

    @property
    def lacks(self) -> list[int]:
        """The numbers without a whole file."""
        return [number for number in self.names if not self.has(number)]

    @property
    def is_torn(self) -> bool:
        return not all(whole for names in self.names.values() for whole in names.values())

    def find_damaged(self, number: int) -> Iterator[_File]:
        """Yield the files that are torn, or have a number above `number`."""
        for later, names in self.names.items():
            yield from ((self.files, name) for name, whole in names.items() if later > number or not whole)


@check_keywords
def repair_checkpoint(location: str | os.PathLike[str], *, dry_run: bool = True) -> Repair:
    """Delete the newest files of a query's checkpoint that a power cut damaged, so that Spark starts again.

    Call it on the driver while the query does not run. If no file is torn, the call does nothing. Otherwise
    the query continues from the newest micro-batch whose files are all whole, and later files are deleted. If
    the checkpoint is not on a local disk, only the remains of an unfinished first file of Spark's offset
    log are deleted.

    A planned micro-batch whose files are not whole is planned again. A sink other than a p-stream may drop
    the rows of this micro-batch, if the sink skips micro-batches whose numbers it has already seen.

    Parameters
    ----------
    location : str or path
        The checkpoint.
    dry_run : bool
        Whether the call only reports the files and deletes nothing.

    Raises
    ------
    CorruptDataError
        If no micro-batch is left from which the query can continue.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> penstock.repair_checkpoint("/checkpoints/loads", dry_run=False)  # doctest: +SKIP
    """
    text = os.fspath(location)
    files = open_files((local_path(text) or text) if _SCHEME.match(text) else text)
    if isinstance(files, LocalFiles):
        batch, deletions = _find_deletions(files)
    else:
        batch, deletions = None, _torn_start(files.child(_OFFSETS))
    if deletions and not dry_run:
        for place, name in deletions:
            place.delete(name)
        make_durable(os.fspath(location))
    if deletions:
        _LOGGER.warning(
            "torn files of a checkpoint [checkpoint=%s files=%d newest_batch=%s dry_run=%s]",
            files.location, len(deletions), batch, dry_run,
        )  # fmt: skip
    return Repair(batch, tuple(place.path_of(name) for place, name in deletions))


def _find_deletions(files: LocalFiles) -> tuple[int | None, list[_File]]:
    """Return the newest micro-batch that is kept, and the files to delete."""
    checkpoint = _Checkpoint(files)
    if not checkpoint.is_torn:
        return None, _torn_start(checkpoint.offsets.files)
    batch, deletions = _Checkpoint(files, thorough=True).repair()
    return batch, [file_line for file in dict.fromkeys(deletions) for file_line in _add_checksum_files(file)]


def _torn_start(offsets: Files) -> list[_File]:
    """Return the remains of an unfinished first offset, which Spark would attribute to another query."""
    names = [fact.name for fact in offsets.list()]
    return [] if any(map(str.isdecimal, names)) else [(offsets, name) for name in names if name[0] == "."]


def _add_checksum_files(file: _File) -> Iterator[_File]:
    files, name = file
    yield file
    if any(fact.name == _sums_of(name) for fact in files.list()):
        yield files, _sums_of(name)


class _Checkpoint:
    """The undamaged part of a checkpoint.

    Parameters
    ----------
    files : Files
        The checkpoint's directory.
    thorough : bool
        Whether the state is read whole; see `_states`.
    """

    def __init__(self, files: LocalFiles, *, thorough: bool = False) -> None:
        self.files = files
        self.offsets = _log(files.child(_OFFSETS))
        self.commits = _log(files.child(_COMMITS))
        self.sources = [
            _log(files.child(_SOURCES).child(fact.name))
            for fact in files.child(_SOURCES).list()
            if fact.is_directory and fact.name.isdecimal()
        ]
        since = 0 if thorough else max(self.commits.names, default=0)
        self.states = list(_states(files.child(_STATE), since))
        self.has_torn_metadata = any(
            fact.name == _METADATA and not _is_whole(files, fact.name, text=True) for fact in files.list()
        )

    @property
    def is_torn(self) -> bool:
        logs = (self.offsets, self.commits, *self.sources, *self.states)
        return self.has_torn_metadata or any(log.is_torn for log in logs)

    def repair(self) -> tuple[int | None, list[_File]]:
        """Return the newest micro-batch that is kept, and the files to delete."""
        for batch in sorted(self.offsets.names, reverse=True):
            if self.has_torn_metadata or not self._is_planned(batch):
                continue
            if self.commits.has(batch) and self._has_state(batch + 1):
                return self._list_deletions(batch, committed=batch)
            follows = batch == 0 or (self.commits.has(batch - 1) and self.offsets.has(batch - 1))
            if follows and self._has_state(batch):
                return self._list_deletions(batch, committed=batch - 1)
        if min(self.offsets.names, default=0) > 0:
            raise CorruptDataError(
                "no micro-batch of the checkpoint is whole",
                file=self.files.location,
                hint="restore the checkpoint with all that the query wrote, or start with a new checkpoint",
            )
        return self._list_deletions(-1, committed=-1)

    def _is_planned(self, batch: int) -> bool:
        """Return whether a micro-batch's plan is whole, including the logs of its file sources."""
        if not self.offsets.has(batch):
            return False
        numbers = self._read_source_numbers(batch)
        return not any(
            number <= numbers.get(n, -1) for n, log in enumerate(self.sources) for number in log.lacks
        )

    def _read_source_numbers(self, batch: int) -> dict[int, int]:
        """Return, for each file source, the number of the log entry that a micro-batch has reached."""
        lines = bytes(self.offsets.files.read(str(batch))).decode().splitlines()[2:]
        numbers = {}
        for source, line in enumerate(lines):
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict) and "logOffset" in document:
                numbers[source] = int(document["logOffset"])
        return numbers

    def _has_state(self, version: int) -> bool:
        return not any(lacking <= version for log in self.states for lacking in log.lacks)

    def _list_deletions(self, batch: int, committed: int) -> tuple[int | None, list[_File]]:
        """List the files to delete so that `batch` is the newest plan, and `committed` the newest commit."""
        deletions = [*self.offsets.find_damaged(batch), *self.commits.find_damaged(committed)]
        numbers = self._read_source_numbers(batch) if batch >= 0 else {}
        for source, log in enumerate(self.sources):
            if log.is_torn:
                deletions += log.find_damaged(numbers.get(source, -1))
        for log in self.states:
            deletions += log.find_damaged(committed + 1)
        if batch >= 0:
            return batch, deletions
        if self.has_torn_metadata:
            deletions.append((self.files, _METADATA))
        place = self.offsets.files
        return None, deletions + [(place, fact.name) for fact in place.list() if fact.name.startswith(".")]


def _log(files: Files) -> _Log:
    log = _Log(files)
    for fact in files.list():
        if match := _NUMBER.fullmatch(fact.name):
            log.add(int(match[1]), fact.name, whole=_is_whole(files, fact.name, text=True))
    return log


def _states(files: LocalFiles, since: int) -> Iterator[_Log]:
    """Yield the versions of each part of the state. An operator's description is version 1.

    Files older than the version `since` are assumed to be whole. Only their snapshots are checked, by
    comparing lengths with the checksum files, because Spark writes snapshots late. There are many files, so a
    file is read only if necessary.
    """
    log = _Log(files)
    for name, is_directory in _list(files.directory):
        if is_directory:
            yield from _states(files.child(name), since)
        elif match := _VERSION.fullmatch(name):
            number = int(match[1])
            if number >= since:
                log.add(number, name, whole=_is_whole(files, name))
            elif match[3] in {"snapshot", "zip"}:
                log.add(number, name, whole=_is_long_enough(files.directory, name))
        elif not name.startswith(".") and (files.directory / name).stat().st_size == 0:
            log.add(1, name, whole=False)
    yield log


def _list(directory: Path) -> list[tuple[str, bool]]:
    """Return each name in a directory, and whether it is a directory."""
    try:
        with os.scandir(directory) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]
    except FileNotFoundError:
        return []


def _is_long_enough(directory: Path, name: str) -> bool:
    size = (directory / name).stat().st_size
    try:
        sums_size = (directory / _sums_of(name)).stat().st_size
    except FileNotFoundError:
        return size > 0
    return size > 0 and sums_size == _SUMS_HEAD + 4 * -(-size // _CHUNK)


def _sums_of(name: str) -> str:
    return f".{name}.crc"


def _is_whole(files: Files, name: str, *, text: bool = False) -> bool:
    """Return whether a file is undamaged, by its checksums.

    For a text file without checksums, the text itself is checked.
    """
    content = bytes(files.read(name))
    if not content:
        return False
    try:
        sums = bytes(files.read(_sums_of(name)))
    except FileNotFoundError:
        return not text or _ends_well(content)
    parts = range(0, len(content), _CHUNK)
    expected = struct.pack(
        f">i{len(parts)}I", _CHUNK, *(zlib.crc32(content[at : at + _CHUNK]) for at in parts)
    )
    return sums == _SUMS_MAGIC + expected


def _ends_well(content: bytes) -> bool:
    """Return whether the last line of a log is whole: JSON, or ``-`` for a source without an offset."""
    line = content.rpartition(b"\n")[2]
    try:
        json.loads(line)
    except ValueError:
        return line == b"-" or line.isdigit()
    return True
