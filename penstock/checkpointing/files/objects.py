"""A directory in an object store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock._clock import new_id
from penstock.checkpointing.files.abc import Content, FileFacts, bytes_of, check_name
from penstock.checkpointing.files.stores import open_store, store_refusals
from penstock.checkpointing.files.uris import UriFiles, missing_file
from penstock.errors import ConflictError, UnavailableError

__all__ = ["ObjectFiles"]

_ATTEMPT: Final = "attempt"
"""The metadata of an object that holds the id of the call that created it."""

_MAX_CREATES: Final = 5
"""The number of attempts to create an object while one reply says that it exists, and the next that it does
not."""


@dataclass(frozen=True, slots=True)
class ObjectFiles(UriFiles):
    """A directory in S3, Google Cloud Storage, Azure, or a compatible store; see `Files`.

    A file is one object, created by one conditional request: the store refuses a name that is taken, even if
    another process writes at the same moment, or a request arrives late. On S3 and Google Cloud Storage such
    an object has at most 5 GiB. A read, a deletion and a page of a list take one request each.
    """

    def publish(self, name: str, *content: Content) -> None:
        """Create the file `name`; see `Files.publish`."""
        target, views = check_name(name), bytes_of(content)
        whole = views[0] if len(views) == 1 else b"".join(views)
        with store_refusals("cannot write state", self.path_of(name)):
            self._create(target, whole)

    def _create(self, name: str, content: Content) -> None:
        """Create an object if there is no object of its name.

        Steps: 1. Create the object conditionally, marked with the id of this call. If a reply was lost or
        the service failed, obstore repeats the request, and may then find this call's own object. 2. If the
        name is taken, read the mark. 3. If the mark is this call's id, the object is created. If there is no
        object, another request was in flight (S3: ConditionalRequestConflict) and failed, or the object was
        deleted: begin again.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        store, path = self._place(name)
        attempt = new_id()
        for _ in range(_MAX_CREATES):
            try:
                obstore.put(
                    store, path, content, mode="create", use_multipart=False, attributes={_ATTEMPT: attempt}
                )
            except AlreadyExistsError:
                try:
                    found = obstore.get(store, path, options={"head": True}).attributes
                except FileNotFoundError:
                    continue
                if found.get(_ATTEMPT) == attempt:
                    return
                raise ConflictError("the file exists already", file=self.path_of(name)) from None
            return
        raise UnavailableError(
            "other processes keep creating and deleting this file",
            file=self.path_of(name),
            tries=_MAX_CREATES,
        )

    def read(self, name: str) -> Content:
        """Return the content of the file `name`, in a buffer owned by obstore; see `Files.read`."""
        return self._read(name, 0, None)

    def read_range(self, name: str, at: int, size: int) -> Content:
        """Return a part of the file `name`; see `Files.read_range`."""
        return self._read(name, at, size)

    def _read(self, name: str, at: int, wanted: int | None) -> memoryview:
        import obstore
        from obstore.exceptions import BaseError

        target = self.path_of(check_name(name))
        with store_refusals("cannot read state", target):
            store, path = self._place(name)
            try:
                if wanted == 0:
                    obstore.head(store, path)
                    return memoryview(b"")
                options: Any = {} if wanted is None else {"range": (at, at + wanted)}
                try:
                    found = obstore.get(store, path, options=options)
                except BaseError:
                    # Stores refuse a range that begins at the end of the object or after it.
                    if at == 0 or at < obstore.head(store, path)["size"]:
                        raise
                    return memoryview(b"")
                size = found.meta["size"] - at if wanted is None else min(wanted, found.meta["size"] - at)
                content = memoryview(found.bytes()).cast("B")
            except FileNotFoundError:
                raise missing_file(target) from None
        if content.nbytes != size:
            raise UnavailableError(
                "a read of state ended early", file=target, size_bytes=size, read_bytes=content.nbytes
            )
        return content

    def delete(self, name: str) -> None:
        """Remove the file `name`; see `Files.delete`."""
        import obstore

        with store_refusals("cannot delete state", self.path_of(check_name(name))):
            store, path = self._place(name)
            try:
                obstore.delete(store, path)
            except FileNotFoundError:
                return

    def list(self) -> list[FileFacts]:
        """Return the direct children; see `Files.list`."""
        import obstore

        with store_refusals("cannot list state", self.location):
            store, path = self._place()
            try:
                found = obstore.list_with_delimiter(store, path or None)
            except FileNotFoundError:
                return []
        facts = [FileFacts(_last(below), 0, is_directory=True) for below in found["common_prefixes"]]
        for meta in found["objects"]:
            if meta["path"] == path:
                continue  # the empty object by which Hadoop and other programs mark a directory
            written_us = int(meta["last_modified"].timestamp() * 1_000_000)
            facts.append(FileFacts(_last(meta["path"]), meta["size"], written_us=written_us))
        return sorted(facts, key=lambda fact: fact.name)

    def _place(self, *names: str) -> tuple[Any, str]:
        store, path = open_store(self.uri)
        return store, "/".join([part for part in (path, *self.below, *names) if part])


def _last(path: str) -> str:
    return path.rpartition("/")[2]
