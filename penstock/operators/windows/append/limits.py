"""The thresholds by which panes decide."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PaneLimits"]


@dataclass(frozen=True, slots=True)
class PaneLimits:
    """Thresholds of `Panes`; results do not depend on them.

    Parameters
    ----------
    unit_entries : int
        Pane partials in a unit of a snapshot, at most.
    chunk_windows : int
        Windows that one thread assembles at once, about.
    min_entries_for_stacks : int
        Stacks are made for at least this many entries.
    min_sharing_for_stacks : int
        Stacks are made if windows are at least this many times as long as a micro-batch advances.
    min_silent_groups : int
        Groups without entries are forgotten if there are more than this number ...
    groups_per_live : int
        ... beyond this many groups for each that has entries. Then groups are renumbered.
    front_slack : int
        The front of stacks is compacted once it has this many times the entries that it needs.
    """

    unit_entries: int = 1 << 20
    chunk_windows: int = 1 << 17
    min_entries_for_stacks: int = 1024
    min_sharing_for_stacks: int = 4
    min_silent_groups: int = 1024
    groups_per_live: int = 2
    front_slack: int = 2
