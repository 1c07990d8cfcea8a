"""Buckets of an operator in a directory, as a copy of their query finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.checkpointing.files import LocalFiles
from penstock.spark_ext.state_copy.query_copy import CopiedBucket
from penstock.state_store.bucket_store import BucketStore, Handle

__all__ = ["Buckets", "restored"]


class Buckets:
    """The buckets of an operator, each with a state in a directory."""

    def __init__(self, directory: Path, count: int, new: Callable[[], Any]) -> None:
        self.stores = [BucketStore(LocalFiles(directory / f"{n:05d}")) for n in range(count)]
        self.states = [new() for _ in range(count)]
        self.handles = [Handle() for _ in range(count)]

    def commit(self) -> None:
        self.handles = [
            store.commit(state, handle)
            for store, state, handle in zip(self.stores, self.states, self.handles, strict=True)
        ]

    def copied(self) -> Any:
        """Return what a copy of the query knows of the buckets."""
        found = []
        for number, (store, handle) in enumerate(zip(self.stores, self.handles, strict=True)):
            assert handle.pointer is not None
            found.append(CopiedBucket("one", f"{number:05d}", store.files, handle.pointer))
        return SimpleNamespace(buckets=found)


def restored(states: Iterable[Any], new: Callable[[], Any]) -> list[Any]:
    made = []
    for written in states:
        state = new()
        if written is not None:
            state.restore(written.units())
        made.append(state)
    return made
