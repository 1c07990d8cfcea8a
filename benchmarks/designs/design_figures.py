"""Figures of the designer: throughput, compression, search time, limits, progress (H-Store Fig. 4.6 to 4.10).

    python -m benchmarks.designs.design_figures 4.6 4.6f 4.7 4.8 4.9 4.10 known costs [--transactions 2000]
                                        [--partitions 4 8 16 32 64] [--seconds 20] [--seeds 3]

- 4.6: the throughput of the designs of HR+, SCH and MFA, in virtual time
(`benchmarks.designs.design_throughput`).
  SCH has no routes: its transactions begin in a random partition. It also says in how many cases the design
  of the least cost has the most throughput (§4.6.4).
- 4.6f: TATP with the design of HR+, without its routes, its replicated index, or both.
- 4.7: the share of transactions that compression saves.
- 4.8: the time of a search that ends by itself.
- 4.9: TPC-E's cost by the limits of a round: its time, and its backtracks.
- 4.10: the share of single-partition transactions over the time of the search, and that of the known design.
- known: in how many cases the search finds a design that costs at most what the known one costs.
- costs: the throughput with a tenth of distributed transactions, by which `DISTRIBUTED` was chosen.

The paper's searches take hours over traces of 25,000 transactions; these take seconds over smaller ones.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.designs.design_throughput import DISTRIBUTED, throughput
from benchmarks.designs.design_workloads import WORKLOADS, encode, known_choice, trace_of
from benchmarks.designs.designs import designs_of
from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from penstock.designing.cost import Choice, CostModel
from penstock.designing.search import Limits, Progress, search
from penstock.designing.traces.trace import Trace
from penstock.designing.workload import TableOption

__all__ = ["FIGURES", "Options", "report"]

RESULTS = REPOSITORY / "benchmarks" / "results"
ALGORITHMS = ("HR+", "SCH", "MFA")
PAPER_OVER_SCH, PAPER_OVER_MFA = "1.3 to 4.3", "1.1 to 16.3"
PAPER_PARTS = {"routes": 1.541, "index": 1.696, "both": 3.5}
PAPER_SHARE = 0.95
TIE = 0.02
"""Throughputs that differ by so little are equal."""


@dataclass(frozen=True)
class Options:
    """The size of experiments; see the module."""

    transactions: int = 2_000
    partitions: Sequence[int] = (4, 8, 16, 32, 64)
    seconds: float = 20.0
    seeds: int = 3
    workloads: Sequence[str] = tuple(WORKLOADS)


@dataclass(frozen=True)
class Case:
    """A benchmark and a number of partitions, with a model of each of its traces."""

    name: str
    partitions: int
    model: CostModel
    test: CostModel


@cache
def _traces(name: str, count: int, seed: int) -> tuple[Trace, Trace]:
    return trace_of(WORKLOADS[name], count, seed)


def _cases(options: Options, seed: int = 1) -> Iterator[Case]:
    for name in options.workloads:
        designed, tested = _traces(name, options.transactions, seed)
        for number in options.partitions:
            workload = encode(WORKLOADS[name], designed, number)
            table_options = dict(zip(workload.names, workload.options, strict=True))
            test = encode(WORKLOADS[name], tested, number, table_options)
            yield Case(name, number, CostModel(workload), CostModel(test))


def _run(model: CostModel, choice: Choice, seed: int, *, routed: bool) -> float:
    """Return the throughput of a design on a model's trace."""
    workload = model.workload
    if routed:
        needed = model.needed(choice)[workload.record]
        return throughput(needed, workload.partitions)
    masks = model.masks(choice.tables)[workload.record]
    bases = np.random.default_rng(seed).integers(0, workload.partitions, len(masks))
    return throughput(masks, workload.partitions, bases)


def figure_6(options: Options) -> Iterator[str]:
    """Compare the throughput of designs."""
    yield "Throughput in virtual time, in transactions for each unit; simulated, also where cores would do."
    yield ""
    heads = "".join(f"{name:>9}" for name in ALGORITHMS)
    yield f"{'workload':16}{'partitions':>10}{heads}{'/ SCH':>8}{'/ MFA':>8}  {'least cost':12}most"
    over: dict[str, list[float]] = {"SCH": [], "MFA": []}
    hits = cases = 0
    for case in _cases(options):
        found = search(case.model, limits=Limits(seconds=options.seconds)).choice
        designs = designs_of(case.model, found)
        rates = {
            name: _run(case.test, designs[name], case.partitions, routed=name != "SCH") for name in ALGORITHMS
        }
        costs = {name: case.test.measure(designs[name]).total for name in ALGORITHMS}
        cheapest = min(costs, key=lambda name: costs[name])
        fastest = max(rates, key=lambda name: rates[name])
        cases += 1
        hits += rates[cheapest] >= (1 - TIE) * rates[fastest]
        for name, ratios in over.items():
            ratios.append(rates["HR+"] / rates[name])
        yield (
            f"{case.name:16}{case.partitions:>10}" + "".join(f"{rates[name]:>9.2f}" for name in ALGORITHMS)
            + f"{over['SCH'][-1]:>8.2f}{over['MFA'][-1]:>8.2f}  {cheapest:12}{fastest}"
        )  # fmt: skip
    yield ""
    yield f"{'':32}{'ours':>18}{'paper':>16}"
    for name, paper in (("SCH", PAPER_OVER_SCH), ("MFA", PAPER_OVER_MFA)):
        yield f"{f'HR+ over {name}':32}{f'{min(over[name]):.1f} to {max(over[name]):.1f}':>18}{paper:>16}"
    yield f"{'the least cost is the fastest':32}{hits / cases:>18.0%}{PAPER_SHARE:>16.0%}"
    yield ""
    yield "This is §4.6.4: whether the cost model ranks designs as their throughput does. Whether the search"
    yield "finds the known best design is another question: h_store_figknown.txt."


def figure_6f(options: Options) -> Iterator[str]:
    """Take routes and the replicated index away from TATP's design."""
    yield "TATP by the known design, in virtual time; each as a multiple of the design without both."
    yield ""
    yield f"{'partitions':>10}{'none':>9}{'routes':>9}{'index':>9}{'both':>9}"
    paper = "".join(f"{PAPER_PARTS[name]:>9.2f}" for name in PAPER_PARTS)
    yield f"{'paper':>10}{1.0:>9.2f}{paper}"
    for case in _cases(Options(options.transactions, options.partitions, workloads=("TATP",))):
        workload = case.test.workload
        with_index = known_choice(WORKLOADS["TATP"], workload)
        if with_index is None:
            raise ValueError("TATP has a known design")
        tables = with_index.tables.copy()
        place = workload.names.index("subscribers")
        tables[place] = workload.options[place].index(TableOption("s_id"))
        without = Choice(tables, with_index.routing)
        none, routes, index, both = (
            _run(case.test, choice, 1, routed=routed)
            for choice, routed in ((without, False), (without, True), (with_index, False), (with_index, True))
        )
        ratios = "".join(f"{rate / none:>9.2f}" for rate in (none, routes, index, both))
        yield f"{case.partitions:>10}{ratios}"


def figure_7(options: Options) -> Iterator[str]:
    """Compress traces."""
    yield "The share of transactions that are joined with others; the paper's falls with the partitions, too,"
    yield "and is least for TPC-C."
    yield ""
    yield f"{'workload':16}" + "".join(f"{number:>8}" for number in options.partitions)
    rates: dict[str, list[float]] = {}
    for case in _cases(options):
        workload = case.model.workload
        rates.setdefault(case.name, []).append(1 - workload.records / workload.trace.transactions)
    for name, row in rates.items():
        yield f"{name:16}" + "".join(f"{rate:>8.1%}" for rate in row)


def figure_8(options: Options) -> Iterator[str]:
    """Measure searches that end by themselves."""
    yield "Seconds of a search of at most so many designs, and its designs a second; the paper: linear time."
    yield ""
    yield f"{'workload':16}" + "".join(f"{number:>16}" for number in options.partitions)
    lines: dict[str, list[str]] = {}
    for case in _cases(options):
        found = search(case.model, limits=Limits(seconds=600.0, rounds=5, backtracks=40, exhaustive=0))
        cell = f"{found.seconds:.2f} {found.designs / max(found.seconds, 1e-9):,.0f}"
        lines.setdefault(case.name, []).append(cell)
    for name, row in lines.items():
        yield f"{name:16}" + "".join(f"{cell:>16}" for cell in row)


def figure_9(options: Options) -> Iterator[str]:
    """Change the limits of a round."""
    yield "TPC-E's cost after so many seconds. The paper: rounds of five minutes and 100 to 120 backtracks"
    yield "find cheaper designs sooner, in a search of two hours; a round of five minutes is 4 % of that."
    marks = [options.seconds * share for share in (0.05, 0.1, 0.25, 0.5, 1.0)]
    (number,) = options.partitions[-1:]
    (case,) = _cases(Options(options.transactions, [number], workloads=("TPC-E",)))
    rounds = [options.seconds * share for share in (0.005, 0.01, 0.02, 0.04, 0.1, 0.25)]
    huge = 1 << 60
    for title, limits in (
        ("seconds of a round", {f"{one:g}": Limits(options.seconds, huge, huge, one, 0) for one in rounds}),
        ("backtracks for each table", {f"{one}": Limits(options.seconds, huge, one, math.inf, 0)
                                       for one in (5, 20, 60, 100, 120, 200)}),
    ):  # fmt: skip
        yield ""
        yield f"{title:26}" + "".join(f"{f'{mark:g} s':>10}" for mark in marks)
        for label, one in limits.items():
            costs = _over_time(case.model, one, marks, lambda progress: progress.cost.total)
            yield f"{label:26}" + "".join(f"{cost:>10.4f}" for cost in costs)


def figure_10(options: Options) -> Iterator[str]:
    """Follow the best design."""
    yield "Single-partition transactions of the best design after so many seconds, and of the known design."
    yield ""
    marks = [options.seconds * share for share in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)]
    yield (
        f"{'workload':16}{'partitions':>10}" + "".join(f"{f'{mark:g} s':>9}" for mark in marks) + "    known"
    )
    (number,) = options.partitions[-1:]
    for case in _cases(Options(options.transactions, [number], workloads=options.workloads)):
        limits = Limits(options.seconds, rounds=1 << 60, exhaustive=0)
        shares = _over_time(case.model, limits, marks, lambda progress: progress.cost.single)
        known = known_choice(WORKLOADS[case.name], case.model.workload)
        shown = "none" if known is None else f"{case.model.measure(known).single:.1%}"
        row = "".join(f"{share:>9.1%}" for share in shares)
        yield f"{case.name:16}{case.partitions:>10}{row}{shown:>9}"


def _over_time(
    model: CostModel, limits: Limits, marks: Sequence[float], value: Callable[[Progress], float]
) -> list[float]:
    """Return the value of the best design at times of a search."""
    seen: list[tuple[float, float]] = []

    def note(progress: Progress) -> None:
        seen.append((progress.seconds, value(progress)))

    search(model, limits=limits, progress=note)
    return [([found for at, found in seen if at <= mark] or [seen[0][1]])[-1] for mark in marks]


def known_designs(options: Options) -> Iterator[str]:
    """Count the cases in which the search finds the known design, or a cheaper one."""
    yield "The cost of the search's design and of the known one; 0 or less is found."
    yield ""
    yield f"{'workload':16}{'partitions':>10}{'seed':>6}{'known':>10}{'found':>10}{'more':>10}"
    hits = cases = 0
    named = [name for name in options.workloads if WORKLOADS[name].known]
    for seed in range(1, options.seeds + 1):
        for case in _cases(Options(options.transactions, options.partitions, workloads=named), seed):
            known = known_choice(WORKLOADS[case.name], case.model.workload)
            if known is None:
                raise ValueError(f"{case.name} has a known design")
            cost = case.model.measure(known).total
            found = search(case.model, seed=seed, limits=Limits(seconds=options.seconds)).cost.total
            cases += 1
            hits += found <= cost + 1e-12
            yield (
                f"{case.name:16}{case.partitions:>10}{seed:>6}{cost:>10.4f}{found:>10.4f}"
                f"{found - cost:>+10.4f}"
            )
    yield ""
    yield "Whether the design of the least cost is also the fastest is another question: h_store_fig4_6.txt."
    yield f"found in {hits} of {cases} cases: {hits / cases:.1%}"


def distributed_costs(options: Options) -> Iterator[str]:
    """Run transactions of which a tenth needs two partitions."""
    yield f"Distributed transactions over two partitions hold them for {DISTRIBUTED:g} units. In the paper's"
    yield "Fig. 4.1a a tenth of them halves the throughput of 64 partitions."
    yield ""
    yield f"{'partitions':>10}{'none':>9}{'a tenth':>9}{'ratio':>9}"
    draw = np.random.default_rng(1)
    for number in options.partitions:
        count = 100 * number
        home = np.uint64(1) << draw.integers(0, number, count).astype(np.uint64)
        other = np.uint64(1) << draw.integers(0, number, count).astype(np.uint64)
        mixed = home | np.where(draw.random(count) < 0.1, other, np.uint64(0))
        rates = [throughput(masks, number) for masks in (home, mixed)]
        yield f"{number:>10}{rates[0]:>9.2f}{rates[1]:>9.2f}{rates[0] / rates[1]:>9.2f}"


FIGURES: dict[str, Callable[[Options], Iterator[str]]] = {
    "4.6": figure_6, "4.6f": figure_6f, "4.7": figure_7, "4.8": figure_8, "4.9": figure_9,
    "4.10": figure_10, "known": known_designs, "costs": distributed_costs,
}  # fmt: skip


def report(figure: str, options: Options) -> Iterator[str]:
    """Return the lines of a result."""
    yield from report_head(
        f"python -m benchmarks.designs.design_figures {figure} --transactions {options.transactions} "
        f"--partitions {' '.join(map(str, options.partitions))} --seconds {options.seconds:g} "
        f"--seeds {options.seeds}"
    )
    yield from FIGURES[figure](options)
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], default=[])
    parser.add_argument("--transactions", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="a directory")
    chosen = parser.parse_args()
    options = Options(
        chosen.transactions, chosen.partitions, chosen.seconds, chosen.seeds, tuple(chosen.workloads)
    )
    for figure in chosen.figures or FIGURES:
        print_and_save(report(figure, options), chosen.out / f"h_store_fig{figure.replace('.', '_')}.txt")


if __name__ == "__main__":
    main()
