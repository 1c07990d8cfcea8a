"""The rule that decides when a bucket's chain of deltas gets a snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.state_store.lineage import Handle

__all__ = ["SnapshotRule"]


@dataclass(frozen=True, slots=True)
class SnapshotRule:
    """The rule that decides when a snapshot begins, and how long it may take.

    Parameters
    ----------
    max_deltas : int
        A snapshot is due when more deltas than this follow the base.
    deltas_per_base : float
        A snapshot is due when the deltas of a chain hold more bytes than this multiple of its base.
    min_delta_bytes : int
        A chain with fewer bytes of deltas gets no snapshot, unless there are too many deltas.
    max_commits : int
        The number of commits within which a snapshot must be complete. A snapshot that takes longer is not
        adopted.
    """

    max_deltas: int = 64
    deltas_per_base: float = 1.0
    min_delta_bytes: int = 256 * 1024
    max_commits: int = 16

    def is_due(self, held: Handle, more_bytes: int) -> bool:
        """Return whether a snapshot is due with one more delta of about `more_bytes`."""
        sizes = [*(link.size_bytes for link in held.links), more_bytes]
        base, deltas = sizes[: held.base], sizes[held.base :]
        limit = max(self.deltas_per_base * sum(base), self.min_delta_bytes)
        return len(deltas) > self.max_deltas or sum(deltas) > limit
