"""Writes the explanations of the benchmark's queries, and a drawing of one for the documents.

python -m tests.golden.make_explanations
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.queries import QUERIES
from penstock.dataflow import draw


def main() -> None:
    """Write a text for each query, and the drawing."""
    folder = Path(__file__).parent / "explain"
    folder.mkdir(exist_ok=True)
    for name, build in QUERIES.items():
        (folder / f"{name}.txt").write_text(build().plan().explain())
    figures = Path(__file__).parents[2] / "docs" / "figures"
    (figures / "graph-ysb.svg").write_text(draw(QUERIES["YSB"]().plan()))


if __name__ == "__main__":
    main()
