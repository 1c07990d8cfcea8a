"""Directories of immutable files, on a disk of this machine or on any file system that pyarrow knows.

`open_files` takes a location as users write it and returns a `Files`. What each kind promises:

=================  ====================  ===========================  ==================================
what               local                 ``s3://``, ``gs://``,        ``hdfs://``, ``viewfs://``, others
                                         ``abfs[s]://``
=================  ====================  ===========================  ==================================
how a file comes   temporary, synced,    one upload of the whole      temporary, moved to its name
                   linked to its name    object
name is taken      `ConflictError`,      replaced as a whole          `ConflictError`, unless both come
                   always                                             at the same moment
durable            file and directory    as the store says            when closed; not synced to disk
                   synced                                             unless the data nodes are told to
private            0600 and 0700         policy of the bucket         umask of the cluster
=================  ====================  ===========================  ==================================

pyarrow has no conditional create for any object store. Names are unique to an attempt, so only a file
whose name is fixed can be replaced; those who race for it must write equal content.

Nothing here retries: pyarrow's clients do (S3 for about six seconds; Google Cloud Storage for up to 15
minutes, unless the URI says ``retry_limit_seconds=``).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from penstock import _durable
from penstock._clock import new_id
from penstock.errors import ConflictError, InvalidUsageError, UnavailableError

__all__ = ["Content", "FileFacts", "Files", "LocalFiles", "RemoteFiles", "open_files"]

Content = bytes | memoryview
"""What a file holds."""

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_OBJECT_STORES = frozenset({"s3", "gs", "gcs", "abfs", "abfss"})
_KNOWN = _OBJECT_STORES | {"hdfs", "viewfs"}
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}

_EMPTY_FIRST = frozenset({"abfs", "abfss"})
"""Where pyarrow creates an empty object when it begins an upload."""

_PART_BYTES = 10 * 1024 * 1024
"""pyarrow uploads less than this to S3 in one request."""

_TELLING = frozenset({
    "allow_bucket_creation", "allow_bucket_deletion", "blob_storage_authority", "dfs_storage_authority",
    "enable_tls", "endpoint_override", "location", "project_id", "region", "replication",
    "retry_limit_seconds", "scheme", "tls_ca_dir_path", "tls_ca_file_path",
})  # fmt: skip
"""The parameters of a URI that may be shown; the values of others could be secrets."""

_DELAYED = "allow_delayed_open"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One entry of a directory. A directory's `size_bytes` is 0."""

    name: str
    size_bytes: int
    is_directory: bool = False

    @property
    def is_unfinished(self) -> bool:
        """Whether this is the temporary file of an attempt that runs or was killed."""
        return self.name.startswith(".") and self.name.endswith(".tmp")


class Files(Protocol):
    """One directory of immutable files.

    Used in the driver and in Python workers, by any number of threads and processes at once. It is
    small, holds no connection, and may be pickled; the connection is made by the first call in each
    process, so a process that forks before that call leaves nothing of it to its children.
    """

    @property
    def location(self) -> str:
        """What a user recognises: an absolute path, or a URI in which secrets are ``***``.

        It is for messages. Where a URI holds secrets, or where it is that of a child, pickle the object
        instead of opening its location.
        """

    def publish(self, name: str, content: Content) -> None:
        """Create the file `name`: whole or not at all, and durable when this returns.

        Parameters
        ----------
        name : str
            A name without directories.
        content : bytes or memoryview
            At least one byte; it is read before this returns, and stays the caller's.

        Raises
        ------
        ConflictError
            If there is a file of this name, where the file system can tell (see the module).
        UnavailableError
            If the file system refuses. The file may be there all the same, and is then whole: an answer
            can get lost.
        InvalidUsageError
            If the name or the location is not possible, or the content is empty.
        """

    def read(self, name: str) -> Content:
        """Return the content of the file `name`.

        Raises
        ------
        FileNotFoundError
            If there is no such file, or no such bucket.
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the name or the location is not possible.
        """

    def read_range(self, name: str, at: int, size: int) -> Content:
        """Return `size` bytes of the file `name` from `at` on; fewer where the file ends before.

        Raises
        ------
        FileNotFoundError, UnavailableError, InvalidUsageError
            As `read`.
        """

    def delete(self, name: str) -> None:
        """Remove the file `name`; one that is gone already is no error.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the name or the location is not possible.
        """

    def list(self) -> list[FileFacts]:
        """Return the direct children, unfinished ones too, by name; none if there is no directory.

        For operators and garbage collection, never where a batch waits. What is published or deleted
        meanwhile may be in it or not.

        Raises
        ------
        UnavailableError
            If the file system refuses.
        InvalidUsageError
            If the location is not possible.
        """

    def child(self, name: str) -> Files:
        """Return the directory `name` below this one, which is made when a file is published into it.

        Raises
        ------
        InvalidUsageError
            If the name is not possible.
        """

    def path_of(self, name: str) -> str:
        """Return the file's full name, for messages."""


def open_files(location: str | os.PathLike[str]) -> Files:
    """Return the directory at `location`, which need not exist; nothing is connected to or made yet.

    Parameters
    ----------
    location : str or path
        A path, relative to the working directory of this process if it is relative, or a URI: ``file:``,
        ``s3://bucket/prefix?region=...``, ``s3://bucket/prefix?endpoint_override=host:port&scheme=http``,
        ``gs://``, ``abfss://``, ``hdfs://`` and what else ``pyarrow.fs.FileSystem.from_uri`` takes. In a
        URI, other characters than the usual are percent-encoded.

    Raises
    ------
    InvalidUsageError
        If no file system is known for it. A mistake in the rest of a URI is found by the first use.

    Examples
    --------
    >>> open_files("s3://bucket/state?region=eu-central-1").child("query").path_of("settings")
    's3://bucket/state/query/settings'
    """
    text = os.fspath(location)
    if not text:
        raise InvalidUsageError("a location is empty", hint="give a path or a URI")
    found = _URI.match(text)
    if found is None:
        # Workers, and the next start, may have other working directories.
        return LocalFiles(Path(text).absolute())
    scheme = found["scheme"].lower()
    if not isinstance(location, str):
        raise InvalidUsageError("a path holds a URI", location=_shown(text), hint="give the URI as text")
    if "#" in text:
        raise InvalidUsageError("a location has no fragment", location=_shown(text), hint="write %23 for #")
    if scheme == "file":
        return LocalFiles(_path_in(text))
    if scheme not in _KNOWN and not _is_registered(text):
        other = _OTHER_NAMES.get(scheme)
        raise InvalidUsageError(
            "no file system is known for this location",
            location=_shown(text),
            hint=f"write {other}:// instead of {scheme}://"
            if other
            else "give an absolute path or a URI that begins with file://, s3://, gs://, abfss:// or hdfs://",
        )
    if not urlsplit(text).netloc and scheme not in {"hdfs", "viewfs"}:
        raise InvalidUsageError("the location names no bucket or container", location=_shown(text))
    return RemoteFiles(text)


def _path_in(uri: str) -> Path:
    """Return the path in a ``file:`` URI."""
    parts = urlsplit(uri)
    if parts.netloc not in {"", "localhost"} or parts.query:
        raise InvalidUsageError(
            "a file: location is of this machine and has no parameters",
            location=_shown(uri),
            hint="write file:///absolute/path, or the path alone",
        )
    return Path("/" + unquote(parts.path).lstrip("/"))


def _is_registered(uri: str) -> bool:
    """Say whether pyarrow takes a URI of an uncommon scheme, for which a factory may be registered."""
    try:
        _connect(uri)
    except pa.ArrowInvalid:
        return False
    except OSError:
        return True
    return True


def _checked(name: str) -> str:
    if name in {"", ".", ".."} or any(character in name for character in "/\\\0"):
        raise InvalidUsageError("a file's name is empty or leads elsewhere", name=repr(name))
    return name


def _bytes_of(content: Content) -> memoryview:
    view = memoryview(content).cast("B")
    if not view:
        raise InvalidUsageError("a file has at least one byte", hint="do not publish what is empty")
    return view


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A directory on a disk of this machine, or on what is mounted there; see `Files`.

    Files and directories are private to the user. All work is done by `penstock._durable`.
    """

    directory: Path

    @property
    def location(self) -> str:
        """The absolute path."""
        return str(self.directory)

    def publish(self, name: str, content: Content) -> None:
        """Create the file `name`; see `Files.publish`."""
        path, view = self.directory / _checked(name), _bytes_of(content)
        _durable.make_directory(self.directory)
        _durable.publish(path, view)

    def read(self, name: str) -> Content:
        """Return the content of the file `name`; see `Files.read`."""
        return _durable.read(self.directory / _checked(name))

    def read_range(self, name: str, at: int, size: int) -> Content:
        """Return a part of the file `name`; see `Files.read_range`."""
        return _durable.read(self.directory / _checked(name), at, size)

    def delete(self, name: str) -> None:
        """Remove the file `name`; see `Files.delete`."""
        _durable.delete(self.directory / _checked(name))

    def list(self) -> list[FileFacts]:
        """Return the direct children; see `Files.list`."""
        with _refusals("cannot list state", self.location):
            try:
                with os.scandir(self.directory) as entries:
                    facts = [fact for entry in entries if (fact := _facts(entry)) is not None]
            except FileNotFoundError:
                return []
        return sorted(facts, key=lambda fact: fact.name)

    def child(self, name: str) -> LocalFiles:
        """Return the directory `name` below this one; see `Files.child`."""
        return LocalFiles(self.directory / _checked(name))

    def path_of(self, name: str) -> str:
        """Return the file's path; see `Files.path_of`."""
        return str(self.directory / name)


def _facts(entry: os.DirEntry[str]) -> FileFacts | None:
    """Return what is known of an entry; None if it is gone by now."""
    try:
        if entry.is_dir():
            return FileFacts(entry.name, 0, is_directory=True)
        return FileFacts(entry.name, entry.stat().st_size)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """A directory on a file system of pyarrow's; see `Files` and the module.

    On S3 a file of less than 10 MiB takes one PUT, a larger one an upload in parts, of which pyarrow holds a
    second copy in memory. A read takes two requests (HEAD, GET), and a delete three (HEAD, DELETE, and a PUT
    of an empty object that stands for the directory). What an upload in parts leaves when its process dies
    is no file, but takes space: let the bucket's policy end such uploads after some days.

    Parameters
    ----------
    uri : str
        The location as the user wrote it, secrets too.
    below : tuple of str
        The names of the children that lead from there to here.
    """

    uri: str = field(repr=False)
    below: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """The URI, in which secrets are ``***``."""
        address, mark, parameters = _shown(self.uri).partition("?")
        return "/".join([address.rstrip("/"), *self.below]) + mark + parameters

    def publish(self, name: str, content: Content) -> None:
        """Create the file `name`; see `Files.publish`."""
        target, view = _checked(name), _bytes_of(content)
        with self._refusals("cannot write state", self.path_of(name)):
            # A large upload to S3 begins when it is opened: if that fails, no stream is left behind whose end
            # would create an object that is not whole.
            system, directory = self._place(delayed=view.nbytes < _PART_BYTES)
            if self._scheme in _OBJECT_STORES:
                _write(system, f"{directory}/{target}", view)
            else:
                self._write_and_move(system, directory, target, view)

    def _write_and_move(self, system: Any, directory: str, name: str, view: memoryview) -> None:
        """Publish where a file is seen while it grows.

        Steps: 1. look whether the name is taken, 2. write a temporary file, 3. move it to its name.
        pyarrow's move replaces what is there, hence step 1.
        """
        path, temporary = f"{directory}/{name}", f"{directory}/.{name}.{new_id()}.tmp"
        if _exists(system, path):
            raise ConflictError("the file exists already", file=self.path_of(name))
        system.create_dir(directory, recursive=True)
        try:
            _write(system, temporary, view)
            system.move(temporary, path)
        except (OSError, pa.ArrowException):
            with contextlib.suppress(OSError, pa.ArrowException):
                system.delete_file(temporary)
            raise

    def read(self, name: str) -> Content:
        """Return the content of the file `name`, in memory of pyarrow's; see `Files.read`."""
        return self._read(name, 0, None)

    def read_range(self, name: str, at: int, size: int) -> Content:
        """Return a part of the file `name`; see `Files.read_range`."""
        return self._read(name, at, size)

    def _read(self, name: str, at: int, wanted: int | None) -> memoryview:
        target = self.path_of(_checked(name))
        with self._refusals("cannot read state", target):
            system, directory = self._place()
            try:
                with system.open_input_file(f"{directory}/{name}") as stream:
                    whole = stream.size()
                    size = max(0, whole - at if wanted is None else min(wanted, whole - at))
                    if at:
                        stream.seek(min(at, whole))
                    content = memoryview(stream.read_buffer(size) if size else b"").cast("B")
            except FileNotFoundError:
                raise _missing(target) from None
        if whole == 0 and self._scheme in _EMPTY_FIRST:
            raise _missing(target)
        if content.nbytes != size:
            raise UnavailableError(
                "a read of state ended early", file=target, size_bytes=size, read_bytes=content.nbytes
            )
        return content

    def delete(self, name: str) -> None:
        """Remove the file `name`; see `Files.delete`."""
        with self._refusals("cannot delete state", self.path_of(_checked(name))):
            system, directory = self._place()
            with contextlib.suppress(FileNotFoundError):
                system.delete_file(f"{directory}/{name}")

    def list(self) -> list[FileFacts]:
        """Return the direct children; see `Files.list`."""
        from pyarrow import fs

        with self._refusals("cannot list state", self.location):
            system, directory = self._place()
            found = system.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return sorted(
            (
                FileFacts(info.base_name, info.size or 0, is_directory=info.type == fs.FileType.Directory)
                for info in found
            ),
            key=lambda fact: fact.name,
        )

    def child(self, name: str) -> RemoteFiles:
        """Return the directory `name` below this one; see `Files.child`."""
        return RemoteFiles(self.uri, (*self.below, _checked(name)))

    def path_of(self, name: str) -> str:
        """Return the file's URI without parameters; see `Files.path_of`."""
        return f"{self.location.partition('?')[0]}/{name}"

    @property
    def _scheme(self) -> str:
        return self.uri.partition(":")[0].lower()

    def _place(self, *, delayed: bool = True) -> tuple[Any, str]:
        system, path = _file_system(self.uri, delayed=delayed)
        return system, "/".join([path, *self.below])

    def _refusals(self, fact: str, file: str) -> contextlib.AbstractContextManager[None]:
        return _refusals(fact, file, self.uri)


def _exists(system: Any, path: str) -> bool:
    from pyarrow import fs

    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def _write(system: Any, path: str, view: memoryview) -> None:
    stream = system.open_output_stream(path, compression=None)
    try:
        stream.write(view)
    except Exception:
        # pyarrow cannot give up a stream: its end makes a file of what was written.
        with contextlib.suppress(OSError, pa.ArrowException):
            stream.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            system.delete_file(path)
        raise
    stream.close()


def _missing(file: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)


_FILE_SYSTEMS: dict[tuple[int, str, bool], tuple[Any, str]] = {}
"""The connections of each process. Those of a parent stay, unused: their threads did not survive the fork."""


def _file_system(uri: str, *, delayed: bool = True) -> tuple[Any, str]:
    """Return pyarrow's file system of `uri` and the path in it, made once in each process.

    With `delayed`, S3 is asked for nothing before a stream is closed, so that one request can do.
    """
    key = (os.getpid(), uri, delayed)
    found = _FILE_SYSTEMS.get(key)
    if found is None:
        try:
            system, path = _connect_to_s3(uri, delayed=delayed) if _is_s3(uri) else _connect(uri)
        except pa.ArrowInvalid as error:
            raise InvalidUsageError(
                "pyarrow does not understand this location",
                location=_shown(uri),
                reason=_reason(error, uri),
                hint="see pyarrow.fs.FileSystem.from_uri",
            ) from None
        if not _FILE_SYSTEMS:
            # Registered after pyarrow's own, hence called before S3 is shut down.
            atexit.register(_FILE_SYSTEMS.clear)
        found = _FILE_SYSTEMS[key] = system, path.rstrip("/")
    return found


def _is_s3(uri: str) -> bool:
    return uri.lower().startswith("s3:")


def _connect_to_s3(uri: str, *, delayed: bool) -> tuple[Any, str]:
    address, _, query = uri.partition("?")
    parameters = [text for text in query.split("&") if text and not text.startswith(f"{_DELAYED}=")]
    if delayed:
        parameters.append(f"{_DELAYED}=true")
    return _connect("?".join([address, "&".join(parameters)] if parameters else [address]))


def _connect(uri: str) -> tuple[Any, str]:
    from pyarrow import fs

    return fs.FileSystem.from_uri(uri)


def _shown(uri: str) -> str:
    """Return `uri` as it may be seen: without passwords and without parameters that could be secrets."""
    address, _, query = uri.partition("?")
    begin, mark, end = address.rpartition("@")
    if mark:
        scheme, _, user = begin.partition("://")
        # Also where a slash in the password, which must be encoded, was not.
        address = f"{scheme}://{'***' if ':' in user else user}@{end}"
    pairs = [text.partition("=") for text in query.split("&") if text]
    shown = "&".join(f"{key}={value if key in _TELLING else '***'}" for key, _, value in pairs)
    return f"{address}?{shown}" if shown else address


def _reason(error: Exception, uri: str = "") -> str:
    """Return what a file system says, in one line, without the secrets of `uri`."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    line = text.splitlines()[0]
    return line if _shown(uri) == uri or "://" not in line else "see the location"


@contextlib.contextmanager
def _refusals(fact: str, file: str, uri: str = "") -> Iterator[None]:
    """Turn what a file system raises into `UnavailableError`; `FileNotFoundError` of ours passes."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename == file:
            raise
        raise UnavailableError(fact, file=file, reason=_reason(error, uri)) from None
    except (OSError, pa.ArrowException) as error:
        raise UnavailableError(
            fact,
            file=file,
            reason=_reason(error, uri),
            hint="check the location, its permissions and whether the service answers",
        ) from None
