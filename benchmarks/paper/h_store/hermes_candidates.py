"""Why row-level rules find fewer additional candidates than in H-Store's Fig. 6.9b.

    python -m benchmarks.paper.h_store.hermes_candidates [--transactions 600] [--each 60]

The simulation of `benchmarks.paper.h_store.hermes` runs with one thing changed at a time: the rules of §6.5
as they are written, a load whose distributed transactions all need two nodes, the hot spot of §6.6.3, and
estimates that equal the paths that transactions take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from benchmarks.paper.h_store.hermes import PAPER_NAMES, SCALES, Workload, _mix, _share, simulate, workload
from penstock.speculating.rules import ConflictRules
from penstock.speculating.scheduler import Mode

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "h_store_fig6_9_causes.txt"
PAPER = {"seats": "+10.3%", "small_bank": "+29.3%", "tpcc": "+57.6%"}
Summary = Mapping[int, frozenset[int] | None]


class WrittenRules(ConflictRules):
    """The rules as the paper writes them.

    By row, two updates of one row do not conflict, and any change of a table conflicts with a range of it.
    """

    by_rows = True

    def conflict(self, one: Summary, other: Summary) -> bool:
        """Return whether any two statements of two summaries conflict."""
        return any(
            self._conflict(first, second, one[first], other[second]) for first in one for second in other
        )

    def _conflict(
        self, first: int, second: int, rows: frozenset[int] | None, others: frozenset[int] | None
    ) -> bool:
        if self.by_rows and self._is_range(first, second):
            return True
        if not self._by_table[first][second]:
            return False
        if rows is None or others is None:
            return True
        a, b = self.statements[first], self.statements[second]
        if a.changes and b.changes and not a.verb == b.verb == "insert":
            return False
        return not rows.isdisjoint(others)

    def _is_range(self, first: int, second: int) -> bool:
        a, b = self.statements[first], self.statements[second]
        of_range = (a.changes and b.verb == "select") or (b.changes and a.verb == "select")
        return a.table == b.table and of_range


def _exact(load: Workload) -> Workload:
    """Return a load whose estimates are the paths that transactions take."""
    for one in load.transactions:
        one.estimate = one.path
    return load


def _written(load: Workload) -> Workload:
    return Workload(WrittenRules(load.rules.statements), load.transactions)


VARIANTS: dict[str, tuple[float, int | None, Callable[[Workload], Workload]]] = {
    "as Fig. 6.9": (-1.0, None, lambda load: load),
    "rules as written": (-1.0, None, _written),
    "two nodes": (-1.0, 2, lambda load: load),
    "hot spot only": (1.0, None, lambda load: load),
    "exact estimates": (-1.0, None, _exact),
}
"""For each variant, the hot share, the nodes of distributed transactions, and the change of the load."""


def _yields(load: Workload, each: int, nodes: int | None) -> tuple[list[float], list[float], float]:
    """Return the eligible shares of all candidates and of those compared, and how many were compared."""
    work = _mix(load, each * 16, nodes)
    all_, compared, share = list[float](), list[float](), 0.0
    levels: tuple[Mode, ...] = ("tables", "rows")
    for level in levels:
        if isinstance(load.rules, WrittenRules):
            load.rules.by_rows = level == "rows"
        found = simulate(work, load.single, load.rules, level, 16, counts=True)
        all_.append(_share(found.yields))
        compared.append(_share(found.compared))
        share = len(found.compared) / max(len(found.yields), 1)
    return all_, compared, share


def report(count: int, each: int) -> Iterator[str]:
    """Return the lines of the result."""
    command = f"python -m benchmarks.paper.h_store.hermes_candidates --transactions {count} --each {each}"
    yield from report_head(command)
    yield "Fig. 6.9b: 16 partitions on 2 nodes, SpecTxn; simulated, in virtual time"
    yield ""
    yield (
        f"{'':11}{'':18}{'compared':>9} |{'all: table':>11}{'row':>8}{'more':>8}{'paper':>8} |"
        f"{'compared: table':>16}{'row':>8}{'more':>9}"
    )
    for name in PAPER_NAMES:
        for title, (hot, nodes, change) in VARIANTS.items():
            if name == "seats" and hot >= 0.0:
                continue
            all_, compared, share = _yields(change(workload(name, count, 16, hot)), each, nodes)
            yield (
                f"{SCALES[name][0]:11}{title:18}{share:>9.0%} |{all_[0]:>11.1%}{all_[1]:>8.1%}"
                f"{all_[1] / all_[0] - 1:>+8.1%}{PAPER[name]:>8} |"
                f"{compared[0]:>16.1%}{compared[1]:>8.1%}{compared[1] / max(compared[0], 1e-9) - 1:>+9.1%}"
            )
    yield ""
    yield "compared: the share of choices at SP1 and SP2 after a query has run there. At all others, every"
    yield "candidate is eligible at both levels (§6.3.1), so they make the difference smaller. The paper does"
    yield "not tell whether its percentages include them."
    yield from report_foot()


def main() -> None:
    """Simulate, print and save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.h_store.hermes_candidates", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--transactions", type=int, default=600, help="of each benchmark's trace")
    parser.add_argument("--each", type=int, default=60, help="transactions for each partition")
    parser.add_argument("--out", type=Path, default=RESULT, help="the file of the result")
    options = parser.parse_args()
    print_and_save(report(options.transactions, options.each), options.out)


if __name__ == "__main__":
    main()
