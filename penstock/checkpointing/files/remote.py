"""A directory on a file system of pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock._clock import new_id
from penstock.checkpointing.files.abc import Content, FileFacts, bytes_of, check_name
from penstock.checkpointing.files.locations import file_system, refusals
from penstock.checkpointing.files.uris import UriFiles, missing_file
from penstock.errors import ConflictError, UnavailableError

__all__ = ["RemoteFiles"]


@dataclass(frozen=True, slots=True)
class RemoteFiles(UriFiles):
    """A directory on HDFS, or on another file system of pyarrow; see `Files`."""

    def publish(self, name: str, *content: Content) -> None:
        """Create the file `name`; see `Files.publish`.

        Steps: 1. check whether the name is taken, 2. write a temporary file, 3. move it to its name. Step 1
        is needed because pyarrow's move replaces an existing file.
        """
        target, views = check_name(name), bytes_of(content)
        with self._refusals("cannot write state", self.path_of(name)):
            system, directory = self._place()
            path, temporary = f"{directory}/{target}", f"{directory}/.{target}.{new_id()}.tmp"
            if _exists(system, path):
                raise ConflictError("the file exists already", file=self.path_of(name))
            system.create_dir(directory, recursive=True)
            try:
                _write(system, temporary, views)
                system.move(temporary, path)
            except (OSError, pa.ArrowException):
                with contextlib.suppress(OSError, pa.ArrowException):
                    system.delete_file(temporary)
                raise

    def read(self, name: str) -> Content:
        """Return the content of the file `name`, in a buffer owned by pyarrow; see `Files.read`."""
        return self._read(name, 0, None)

    def read_range(self, name: str, at: int, size: int) -> Content:
        """Return a part of the file `name`; see `Files.read_range`."""
        return self._read(name, at, size)

    def _read(self, name: str, at: int, wanted: int | None) -> memoryview:
        target = self.path_of(check_name(name))
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
                raise missing_file(target) from None
        if content.nbytes != size:
            raise UnavailableError(
                "a read of state ended early", file=target, size_bytes=size, read_bytes=content.nbytes
            )
        return content

    def delete(self, name: str) -> None:
        """Remove the file `name`; see `Files.delete`."""
        with self._refusals("cannot delete state", self.path_of(check_name(name))):
            system, directory = self._place()
            with contextlib.suppress(FileNotFoundError):
                system.delete_file(f"{directory}/{name}")

    def list(self) -> list[FileFacts]:
        """Return the direct children; see `Files.list`."""
        from pyarrow import fs

        with self._refusals("cannot list state", self.location):
            system, directory = self._place()
            entries = system.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return sorted(
            (
                FileFacts(
                    info.base_name,
                    info.size or 0,
                    is_directory=info.type == fs.FileType.Directory,
                    written_us=None if info.mtime_ns is None else info.mtime_ns // 1000,
                )
                for info in entries
            ),
            key=lambda fact: fact.name,
        )

    def _place(self) -> tuple[Any, str]:
        system, path = file_system(self.uri)
        return system, "/".join([path, *self.below])

    def _refusals(self, fact: str, file: str) -> contextlib.AbstractContextManager[None]:
        return refusals(fact, file, self.uri)


def _exists(system: Any, path: str) -> bool:
    from pyarrow import fs

    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def _write(system: Any, path: str, views: Sequence[memoryview]) -> None:
    stream = system.open_output_stream(path, compression=None)
    try:
        for view in views:
            stream.write(view)
    except Exception:
        # pyarrow cannot abort a stream: closing it publishes the part that was written.
        with contextlib.suppress(OSError, pa.ArrowException):
            stream.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            system.delete_file(path)
        raise
    stream.close()
