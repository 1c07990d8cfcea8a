"""Measure and draw figures of the S-Store paper.

Each contender runs at each point in turn, in several repeats; figures are medians, a ratio is the median of
those of the repeats.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.harness import machine, pyplot, save
from benchmarks.paper.s_store.figures import FIGURES, draw, merge, tell
from benchmarks.paper.s_store.scale import Scale


def main() -> None:
    """Write each figure as a text and as a plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper.s_store", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="such as 5 or 9a; all by default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fast", action="store_true", help="fewer and shorter points")
    parser.add_argument("--texts", type=Path, default=Path("penstock-figures"), help="where tables go")
    parser.add_argument("--plots", type=Path, default=Path("penstock-figures"), help="where plots go")
    options = parser.parse_args()
    if unknown := [name for name in options.figures if name not in FIGURES]:
        parser.error(f"there is no figure {', '.join(unknown)}: choose of {', '.join(FIGURES)}")
    scale = Scale.fast() if options.fast else Scale()
    options.texts.mkdir(parents=True, exist_ok=True)
    options.plots.mkdir(parents=True, exist_ok=True)
    for number in options.figures or FIGURES:
        figure = FIGURES[number]
        load = os.getloadavg()[0]
        if options.repeats > 1:
            figure.run(Scale.fast())  # Compiles what later points share.
        points = merge(figure, [figure.run(scale) for _ in range(options.repeats)])
        fast = " --fast" if options.fast else ""
        text = "\n".join([
            f"S-Store, Figure {number}: {figure.title}; {figure.unit}.",
            f"The paper: {figure.paper}",
            "",
            f"{machine()}; load average {load:.1f} at the begin and {os.getloadavg()[0]:.1f} at the end",
            f"$ python -m benchmarks.paper.s_store {number} --repeats {options.repeats}{fast}",
            "",
            *tell(figure, points),
            "",
        ])  # fmt: skip
        print(text, flush=True)
        (options.texts / f"s_store_fig{number}.txt").write_text(text)
        save(draw(figure, points, pyplot()), options.plots / f"s-store-{number}.svg")


if __name__ == "__main__":
    main()
