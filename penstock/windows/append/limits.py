"""Thresholds of pane state."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PaneLimits"]


@dataclass(frozen=True, slots=True)
class PaneLimits:
    """Thresholds of `Panes`; results do not depend on them.

    Parameters
    ----------
    unit_entries : int
        Maximum number of pane partials in a p-unit of a snapshot.
    chunk_windows : int
        Approximate number of windows that one thread assembles at once.
    min_entries_for_stacks : int
        The minimum number of entries for which stacks are built.
    min_sharing_for_stacks : int
        Stacks are built only if the ratio of the window length to the time that a micro-batch advances is at
        least this number.
    min_silent_groups, groups_per_live : int
        Groups without entries are forgotten if the number of all groups exceeds `min_silent_groups` plus
        `groups_per_live` times the number of groups with entries. Then the remaining groups are renumbered.
    front_slack : int
        The front of the stacks is compacted when it has this many times the entries that it needs.
    min_repeats_to_combine : int
        Kept entries of one pane and group are combined only if more than this number of entries arrived for
        panes that already had entries.
    """

    unit_entries: int = 1 << 20
    chunk_windows: int = 1 << 17
    min_entries_for_stacks: int = 1024
    min_sharing_for_stacks: int = 4
    min_silent_groups: int = 1024
    groups_per_live: int = 2
    front_slack: int = 2
    min_repeats_to_combine: int = 1024
