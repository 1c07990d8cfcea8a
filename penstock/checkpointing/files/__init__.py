"""Directories of immutable files, on a disk of this machine, in an object store, or on HDFS.

`open_files` takes a location as users write it and returns a `Files`. The guarantees of each kind:

=================  ====================  ===========================  ==================================
kind               local                 ``s3[a]://``, ``gs://``,     ``hdfs://``, ``viewfs://``, others
                                         ``az://``, ``abfs[s]://``
=================  ====================  ===========================  ==================================
creation           temporary, synced,    one conditional upload of    temporary file, moved to its name
                   linked to its name    the whole object
if the name        `ConflictError`,      `ConflictError`, always      `ConflictError`, unless two writers
exists             always                                             publish at the same moment
durability         file and directory    as the store promises        when closed; not synced to disk,
                   synced                                             unless data nodes are so configured
access             0600 and 0700         policy of the bucket         umask of the cluster
library            `penstock._durable`   obstore                      pyarrow
=================  ====================  ===========================  ==================================

Only the clients of object stores retry, for 30 seconds unless the URI has ``retry_limit_seconds=``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.checkpointing.files.abc import Content, FileFacts, Files
from penstock.checkpointing.files.local import LocalFiles
from penstock.checkpointing.files.locations import is_registered, redact_secrets
from penstock.checkpointing.files.objects import ObjectFiles
from penstock.checkpointing.files.remote import RemoteFiles
from penstock.checkpointing.files.stores import OBJECT_STORES
from penstock.errors import InvalidUsageError

__all__ = [
    "Content",
    "FileFacts",
    "Files",
    "LocalFiles",
    "ObjectFiles",
    "RemoteFiles",
    "absolute_location",
    "open_files",
]

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_KNOWN = {"hdfs", "viewfs"}
_OTHER_NAMES = {"s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}


def absolute_location(location: str | os.PathLike[str]) -> str:
    """Return a location as an absolute path or a URI, valid in any working directory.

    Raises
    ------
    InvalidUsageError
        If `location` is not a path.
    """
    if not isinstance(location, str | os.PathLike):
        raise InvalidUsageError("a location is not a path", got=type(location).__name__)
    text = os.fspath(location)
    return text if _URI.match(text) else os.fspath(Path(text).absolute())


def open_files(location: str | os.PathLike[str]) -> Files:
    """Return the directory at `location`, which need not exist. Nothing is created or connected to yet.

    Parameters
    ----------
    location : str or path
        A path, which may be relative to the working directory of this process, or a URI: ``file:``,
        ``s3://bucket/prefix?region=...``, ``s3://bucket/prefix?endpoint=http://host:port``,
        ``gs://bucket/prefix``, ``abfss://container@account.dfs.core.windows.net/prefix``,
        ``az://container/prefix?account_name=...``, ``hdfs://`` and any other URI that
        ``pyarrow.fs.FileSystem.from_uri`` accepts. Special characters in a URI are percent-encoded. The
        parameters for object stores are the settings of obstore's ``S3Config``, ``GCSConfig`` and
        ``AzureConfig``. Other settings come from the environment variables that these classes name, from the
        machine's role, and for S3 from AWS's shared files (profile).

    Raises
    ------
    InvalidUsageError
        If no file system is known for the location. Other mistakes in a URI are reported at the first use.

    Examples
    --------
    >>> open_files("s3://bucket/state?region=eu-central-1").child("query").path_of("settings")
    's3://bucket/state/query/settings'
    """
    text = os.fspath(location)
    if not text or "\0" in text:
        raise InvalidUsageError("a location is empty or has a null character", hint="give a path or a URI")
    match = _URI.match(text)
    if match is None:
        # Workers, and the next start, may have different working directories.
        return LocalFiles(Path(text).absolute())
    scheme = match["scheme"].lower()
    if not isinstance(location, str):
        raise InvalidUsageError(
            "a path object holds a URI", location=redact_secrets(text), hint="pass the URI as a str"
        )
    if "#" in text:
        raise InvalidUsageError(
            "a location cannot have a fragment", location=redact_secrets(text), hint="write %23 for #"
        )
    if scheme == "file":
        return LocalFiles(_path_in(text))
    if scheme not in _KNOWN | OBJECT_STORES.keys() and not is_registered(text):
        other = _OTHER_NAMES.get(scheme)
        raise InvalidUsageError(
            "no file system is known for this location",
            location=redact_secrets(text),
            hint=f"write {other}:// instead of {scheme}://"
            if other
            else "give an absolute path or a URI that begins with file://, s3://, gs://, abfss:// or hdfs://",
        )
    if not urlsplit(text).netloc and scheme not in {"hdfs", "viewfs"}:
        raise InvalidUsageError("the location names no bucket or container", location=redact_secrets(text))
    return ObjectFiles(text) if scheme in OBJECT_STORES else RemoteFiles(text)


def _path_in(uri: str) -> Path:
    """Return the path in a ``file:`` URI."""
    parts = urlsplit(uri)
    if parts.netloc not in {"", "localhost"} or parts.query:
        raise InvalidUsageError(
            "a file: location takes no host and no parameters",
            location=redact_secrets(uri),
            hint="write file:///absolute/path, or the path alone",
        )
    return Path("/" + unquote(parts.path).lstrip("/"))
