"""Choose between modes of evaluation by their measured costs."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["MeasuredCosts"]

_MIN_SERIAL_S = 0.25
"""Once a program has run serially for this long, other modes are compiled and tried."""
_FIRST_RETRIAL = 16
_LAST_RETRIAL = 1024
"""The smallest and the greatest number of batches after which slower modes are tried again.

The number doubles each time that the slower modes lose.
"""
_NEWEST_WEIGHT = 0.3
"""The weight of the last batch in a mode's cost."""


@dataclass
class MeasuredCosts:
    """Chooses the mode of each batch of a program.

    At first all batches run serially, until they have taken some time. Then each other mode runs two batches,
    of which only the second is measured. From then on the cheapest mode runs, and the other modes are tried
    again from time to time.

    Parameters
    ----------
    modes : tuple of str
        The modes to choose from, including ``serial``.

    Attributes
    ----------
    costs : dict
        The seconds per transaction in each mode that was measured; recent batches have the most weight.
    """

    modes: tuple[str, ...]
    costs: dict[str, float] = field(default_factory=dict)
    _serial_s: float = 0.0
    _untried: list[str] = field(default_factory=list)
    _incumbent: str = "serial"
    _until_retrial: int = 0
    _retrial: int = _FIRST_RETRIAL

    def choose(self) -> str:
        """Return the mode for the next batch."""
        if self._serial_s < _MIN_SERIAL_S:
            return "serial"
        if not self._untried and self._until_retrial <= 0:
            self._incumbent = self.best
            # Try each mode twice, because its first batch may compile the kernel.
            self._untried = [mode for mode in self.modes if mode != self._incumbent for _ in range(2)]
            self._until_retrial = self._retrial
        if self._untried:
            return self._untried[0]
        self._until_retrial -= 1
        return self.best

    @property
    def best(self) -> str:
        """The mode with the lowest cost."""
        return min(self.costs, key=self.costs.__getitem__, default="serial")

    def note(self, mode: str, transactions: int, seconds: float) -> None:
        """Record the time of a batch that ran in the last mode that `choose` returned."""
        cost = seconds / transactions
        if mode == "serial":
            self._serial_s += seconds
        first = bool(self._untried and self._untried[0] == mode and self._untried[1:2] == [mode])
        if not first:
            self.costs[mode] = cost + (1 - _NEWEST_WEIGHT) * (self.costs.get(mode, cost) - cost)
        if self._untried and self._untried[0] == mode:
            del self._untried[0]
            if not self._untried:
                won = self.best == self._incumbent
                self._retrial = min(2 * self._retrial, _LAST_RETRIAL) if won else _FIRST_RETRIAL
