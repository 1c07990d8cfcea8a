"""Choose by measured times whether tables are gathered at the coordinator or stay in their partitions."""

from __future__ import annotations

from math import inf

from penstock.procedures.partitions.partitioned_rows import GatheredTables
from penstock.speculating.in_process.trials import BITS_PER_SIZE, FIRST_TRIALS, MAX_LOSS, Trials

__all__ = ["GatherTrials"]


class GatherTrials:
    """Measures the debt of `GatheredTables`: the time lost since the last move, because tables did not move.

    Calls over gathered tables are compared with calls over partitions that have the same program, about the
    same size, and about as many forwarded transactions. Calls over partitions run their transactions with
    speculation (beside each other) or without (split); the faster way counts. Tables move as soon as the lost
    time exceeds the time of a move.

    Tables also move so that calls can be measured again at the other place: at the coordinator, or in the
    partitions. Such a trial costs the time of two moves, and the time that calls lose until the tables move
    back. A trial begins only if all trials, including this trial, cost less than `MAX_LOSS` of the whole
    time.

    Attributes
    ----------
    split : Trials
        Chooses whether transactions over partitions run beside each other or split, from the times of calls.
    """

    def __init__(self) -> None:
        self.split, self._gathered = Trials(), Trials()
        self._spent_s = self._lost_s = 0.0

    @staticmethod
    def name(digest: str, several: int) -> str:
        """Return a name for the calls of a program with about `several` forwarded transactions."""
        return f"{digest} {several.bit_length() // BITS_PER_SIZE}"

    def note_split(self, digest: str, several: int, count: int, seconds: float, *, beside: bool) -> None:
        """Record the time of a call over partitions, whose transactions ran beside each other or split."""
        self._spent_s += seconds
        self.split.note(self.name(digest, several), count, seconds, new=beside)

    def note_gathered(self, digest: str, count: int, seconds: float) -> None:
        """Record the time of a call over gathered tables."""
        self._spent_s += seconds
        self._gathered.note(digest, count, seconds, new=False)

    def debt(self, digest: str, count: int, several: int, tables: GatheredTables) -> float | None:
        """Return how a call changes the debt, in moved rows; None if too few calls were measured.

        The change is infinite if the call begins a trial of the other place.
        """
        split_s, splits = self.split.measured(self.name(digest, several), count)
        gathered_s, gathers = self._gathered.measured(digest, count)
        move_s = sum(tables.move_s.values()) or split_s * tables.limit  # an assumption before the first move
        if not several or not move_s:
            return None
        lost_s = (split_s - gathered_s) * count
        known = min(splits, gathers) >= FIRST_TRIALS
        cost_s = 2 * move_s + max(move_s, abs(lost_s) * (1 if known else FIRST_TRIALS))
        if self._lost_s + cost_s <= MAX_LOSS * self._spent_s:
            self._lost_s += cost_s
            return -inf if tables.names else inf
        return lost_s / move_s * tables.limit if known else None
