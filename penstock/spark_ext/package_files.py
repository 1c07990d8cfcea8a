"""The files of Penstock itself, for archives from which other machines import it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import InvalidUsageError

__all__ = ["package_files", "write_zip"]

_PACKAGE: Final = Path(__file__).parents[1]


def package_files() -> dict[str, Path]:
    """Return the files of this package by their names in an archive.

    Raises
    ------
    InvalidUsageError
        If Penstock itself was imported from an archive.
    """
    if not _PACKAGE.is_dir():
        raise InvalidUsageError(
            "Penstock runs from an archive and cannot be packed again",
            package=_PACKAGE,
            hint="pass that archive on, or install Penstock",
        )
    return {
        file.relative_to(_PACKAGE.parent).as_posix(): file
        for file in sorted(_PACKAGE.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }


def write_zip(path: Path, files: Mapping[str, Path]) -> None:
    """Write files into a zip file, from which Python imports."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            archive.write(file, name)
