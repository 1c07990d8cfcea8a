"""Writes what the benchmark's queries are explained as: python -m tests.golden.make_explanations."""

from __future__ import annotations

from pathlib import Path

from benchmarks.queries import QUERIES


def main() -> None:
    """Write one text for each query."""
    folder = Path(__file__).parent / "explain"
    folder.mkdir(exist_ok=True)
    for name, build in QUERIES.items():
        (folder / f"{name}.txt").write_text(build().plan().explain())


if __name__ == "__main__":
    main()
