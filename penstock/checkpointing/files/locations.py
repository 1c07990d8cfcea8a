"""Find the file system of a location that a user writes, and redact the secrets in the location."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidUsageError, UnavailableError

__all__ = ["file_system", "is_registered", "redact_secrets", "refusals"]

_SHOWN = frozenset({
    "account_name", "base_url", "endpoint", "endpoint_override", "region", "replication",
    "retry_limit_seconds", "scheme", "server_side_encryption", "skip_signature", "timeout",
    "virtual_hosted_style_request",
})  # fmt: skip
"""The parameters of a URI that may be shown; the values of other parameters could be secrets."""

_FILE_SYSTEMS: dict[tuple[int, str], tuple[Any, str]] = {}
"""The connections, by process and URI. A forked child never uses the connections of its parent."""


def file_system(uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system of `uri`, created once per process, and the path in it.

    Raises
    ------
    InvalidUsageError
        If pyarrow does not understand the location.
    """
    key = (os.getpid(), uri)
    entry = _FILE_SYSTEMS.get(key)
    if entry is None:
        try:
            system, path = _connect(uri)
        except pa.ArrowInvalid as error:
            raise InvalidUsageError(
                "pyarrow does not understand this location",
                location=redact_secrets(uri),
                reason=_reason(error, uri),
                hint="see pyarrow.fs.FileSystem.from_uri",
            ) from None
        if not _FILE_SYSTEMS:
            # Exit functions run in reverse order, so this one runs before pyarrow shuts down S3.
            atexit.register(_FILE_SYSTEMS.clear)
        entry = _FILE_SYSTEMS[key] = system, path.rstrip("/")
    return entry


def _connect(uri: str) -> tuple[Any, str]:
    from pyarrow import fs

    return fs.FileSystem.from_uri(uri)


def is_registered(uri: str) -> bool:
    """Return whether pyarrow has a registered factory for the scheme of a URI."""
    try:
        _connect(uri)
    except pa.ArrowInvalid:
        return False
    except OSError:
        return True
    return True


def redact_secrets(uri: str) -> str:
    """Return `uri` for display: without passwords and without parameters that could be secrets."""
    address, _, query = uri.partition("?")
    begin, mark, end = address.rpartition("@")
    if mark:
        scheme, _, user = begin.partition("://")
        # A slash in the password must be encoded; find the password even if it is not.
        address = f"{scheme}://{'***' if ':' in user else user}@{end}"
    pairs = [text.partition("=") for text in query.split("&") if text]
    shown = "&".join(f"{key}={value if key in _SHOWN else '***'}" for key, _, value in pairs)
    return f"{address}?{shown}" if shown else address


def _reason(error: Exception, uri: str = "") -> str:
    """Return a file system's error in one line, without the secrets of `uri`."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    line = text.splitlines()[0]
    return line if redact_secrets(uri) == uri or "://" not in line else "see the location"


@contextlib.contextmanager
def refusals(fact: str, file: str, uri: str = "") -> Iterator[None]:
    """Convert file-system errors to `UnavailableError`.

    A `FileNotFoundError` whose `filename` is `file` is raised unchanged.
    """
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
