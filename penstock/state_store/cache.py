"""The states that a Python worker keeps between micro-batches.

Workers are not tied to partitions, so a worker may need a state again some versions later, or never. A task
*takes* a state out of the cache and puts it back only after the commit, so a task that fails leaves no
half-changed state in the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from penstock.state_store.bucket_store import BucketStore, Handle, Pointer, State

__all__ = ["CachedState", "LoadedState", "StateCache"]


class CachedState(State, Protocol):
    """A working copy with a known memory size."""

    @property
    def size_bytes(self) -> int:
        """The memory of the state, in bytes."""

    def close(self) -> None:
        """Release memory and files. The state cannot be used afterwards."""


S = TypeVar("S", bound=CachedState)


@dataclass(slots=True)
class LoadedState(Generic[S]):
    """A state at the requested version. One of the three counts is 1, and shows how the state was found."""

    state: S
    handle: Handle
    hits: int = 0
    catch_ups: int = 0
    loads: int = 0

    def replace_with(self, other: LoadedState[S]) -> None:
        """Take over the state and the counts of another result."""
        self.state, self.handle = other.state, other.handle
        self.hits, self.catch_ups, self.loads = other.hits, other.catch_ups, other.loads


@contextmanager
def _close_on_error(state: CachedState) -> Iterator[None]:
    try:
        yield
    except BaseException:
        state.close()
        raise


class StateCache(Generic[S]):
    """An LRU cache of loaded states by location, bounded in bytes.

    Parameters
    ----------
    capacity_bytes : int
        The maximum size of all cached states together. A single state that is larger is not cached.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._entries: OrderedDict[str, tuple[S, Handle]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of cached states."""
        return len(self._entries)

    def take(self, store: BucketStore, pointer: Pointer | None, new: Callable[[], S]) -> LoadedState[S]:
        """Take the state at `pointer` out of the cache. If necessary, apply later deltas, or load it whole.

        Parameters
        ----------
        pointer : Pointer or None
            The version to find; None for the empty state of a bucket without versions.
        new : callable
            A function that makes an empty state.
        """
        entry = self._entries.pop(store.files.location, None)
        if pointer is None:
            if entry is not None:
                entry[0].close()
            return LoadedState(new(), Handle(), hits=1)
        if entry is not None:
            state, held = entry
            if held.pointer == pointer:
                return LoadedState(state, held, hits=1)
            with _close_on_error(state):
                handle = store.catch_up(pointer, state, held)
            if handle is not None:
                return LoadedState(state, handle, catch_ups=1)
            state.close()
        state = new()
        with _close_on_error(state):
            return LoadedState(state, store.load(pointer, state), loads=1)

    def put(self, store: BucketStore, state: S, handle: Handle) -> None:
        """Cache `state`, whose version is `handle`. Close the state if it is larger than the capacity."""
        if state.size_bytes > self.capacity_bytes:
            state.close()
            return
        self._entries[store.files.location] = (state, handle)
        self._entries.move_to_end(store.files.location)
        while self._entries and self.size_bytes > self.capacity_bytes:
            _, (oldest, _) = self._entries.popitem(last=False)
            oldest.close()

    def forget(self, location: str) -> None:
        """Close the states in all directories below `location`."""
        for below in [one for one in self._entries if one.startswith(f"{location}/")]:
            self._entries.pop(below)[0].close()

    @property
    def size_bytes(self) -> int:
        """The memory of the cached states, in bytes."""
        return sum(state.size_bytes for state, _ in self._entries.values())
