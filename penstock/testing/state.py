"""Conformance tests of a working copy: the state of an operator in a bucket, which is stored in p-units."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import open_files
from penstock.state_store.bucket_store import BucketStore, Handle, State

__all__ = ["StateTests"]

_STEPS = 12


class StateTests:
    """The contract of `penstock.state_store.bucket_store.State`.

    Two states that took the same steps have the same content, however they were stored and restored.
    """

    @pytest.fixture
    def new(self) -> Callable[[], State]:
        """Return a factory of empty states."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    def change(self, state: Any, step: int) -> None:
        """Change a state, in a different way for each step."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    def content(self, state: Any) -> object:
        """Return the content of a state as a value to compare."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    def test_deltas_restore_a_state(self, new: Callable[[], State]) -> None:
        """Convert each delta of a state to bytes and back, and apply it to a copy."""
        state, follower = new(), new()
        for step in range(_STEPS):
            self.change(state, step)
            follower.restore([_round_trip(state.delta())])
            assert self.content(follower) == self.content(state)

    def test_all_deltas_at_once_restore_a_state(self, new: Callable[[], State]) -> None:
        """Restore an empty state from the whole chain, and continue with it."""
        state, units = new(), list[PUnit]()
        for step in range(_STEPS):
            self.change(state, step)
            units.append(_round_trip(state.delta()))
        follower = new()
        follower.restore(iter(units))
        for copy in (state, follower):
            self.change(copy, _STEPS)
        assert self.content(follower) == self.content(state)

    def test_a_snapshot_is_of_its_moment(self, new: Callable[[], State]) -> None:
        """Take a snapshot, change the state, then read the snapshot and restore from it."""
        state = new()
        for step in range(_STEPS):
            self.change(state, step)
        state.delta()
        before, units = self.content(state), state.snapshot()
        self.change(state, _STEPS)
        state.delta()
        follower = new()
        follower.restore(map(_round_trip, units))
        assert self.content(follower) == before

    def test_a_delta_follows_a_snapshot(self, new: Callable[[], State]) -> None:
        """Restore from a snapshot and a delta after it."""
        state = new()
        self.change(state, 0)
        state.delta()
        units: Iterable[PUnit] = list(state.snapshot())
        self.change(state, 1)
        follower = new()
        follower.restore([*map(_round_trip, units), _round_trip(state.delta())])
        assert self.content(follower) == self.content(state)

    def test_a_store_keeps_every_version(self, new: Callable[[], State], tmp_path: Path) -> None:
        """Commit after each step, and load each version."""
        store, state, handle = BucketStore(open_files(tmp_path)), new(), Handle()
        for step in range(_STEPS):
            self.change(state, step)
            handle = store.commit(state, handle)
            assert handle.pointer is not None
            other = new()
            store.load(handle.pointer, other)
            assert self.content(other) == self.content(state)


def _round_trip(unit: PUnit) -> PUnit:
    return decode(bytes(encode(unit)), "memory")
