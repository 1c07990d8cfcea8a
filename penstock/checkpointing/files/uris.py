"""A directory at a URI: its names for messages, and its subdirectories."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from typing import Self

from penstock.checkpointing.files.abc import check_name
from penstock.checkpointing.files.locations import redact_secrets

__all__ = ["UriFiles", "missing_file"]


@dataclass(frozen=True, slots=True)
class UriFiles:
    """The part of `Files` that needs no connection.

    Parameters
    ----------
    uri : str
        The location as the user wrote it, including secrets.
    below : tuple of str
        The names of the subdirectories from `uri` to this directory.
    """

    uri: str = field(repr=False)
    below: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """The URI, in which secrets are ``***``."""
        address, mark, parameters = redact_secrets(self.uri).partition("?")
        return "/".join([address.rstrip("/"), *self.below]) + mark + parameters

    def child(self, name: str) -> Self:
        """Return the directory `name` below this directory; see `Files.child`."""
        return replace(self, below=(*self.below, check_name(name)))

    def path_of(self, name: str) -> str:
        """Return the file's URI without parameters; see `Files.path_of`."""
        return f"{self.location.partition('?')[0]}/{name}"


def missing_file(file: str) -> FileNotFoundError:
    """Return the error for a missing file, with its full name."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
