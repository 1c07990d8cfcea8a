"""The command behind `script/fuzz`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from tests.fuzz.run import Fuzzer, subjects

_PROGRESS_S = 30.0


class _Progress:
    """Prints how many cases ran, now and then."""

    def __init__(self, began: float) -> None:
        self._began = self._shown = began

    def __call__(self, cases: Mapping[str, int]) -> None:
        now = time.perf_counter()
        if now - self._shown >= _PROGRESS_S:
            self._shown = now
            counts = ", ".join(f"{name} {count}" for name, count in cases.items())
            print(f"fuzz: {now - self._began:.0f} s: {counts}", flush=True)


@contextlib.contextmanager
def _session(directory: Path) -> Iterator[Callable[[], SparkSession]]:
    """Give a function that starts one session at its first call, which ends with the context."""
    started: list[SparkSession] = []

    @cache
    def session() -> SparkSession:
        from tests.spark.conftest import lean_session

        started.append(lean_session(directory))
        return started[0]

    try:
        yield session
    finally:
        for one in started:
            one.stop()


def main() -> int:
    """Run the cases that the command line asks for; return 1 if anything differed."""
    parser = argparse.ArgumentParser(prog="script/fuzz", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(subjects()))
    parser.add_argument("--minutes", type=float, default=10.0, help="for all subjects together (default: 10)")
    parser.add_argument("--seed", type=int, help="of the first case (default: drawn)")
    parser.add_argument("--cases", type=int, help="stop after this many cases of each subject")
    given = parser.parse_args()
    unknown = sorted(set(given.subjects) - set(subjects()))
    if unknown:
        parser.error(f"no subject {', '.join(unknown)}; there are {', '.join(subjects())}")
    seed = int.from_bytes(os.urandom(4), "little") if given.seed is None else given.seed
    differences = 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as root, _session(Path(root)) as session:
        fuzzer = Fuzzer(given.subjects or subjects(), Path(root), session, _Progress(began))
        print(f"fuzz: seed {seed}, {', '.join(fuzzer.checks)}", flush=True)
        try:
            for found in fuzzer.run(seed, seconds=60 * given.minutes, cases=given.cases):
                differences += 1
                print(f"fuzz: DIFFERENCE in {found.subject}\n{found.text}replay: {found.replay}", flush=True)
        except KeyboardInterrupt:
            print("fuzz: stopped", flush=True)
        for name, count in fuzzer.cases.items():
            print(f"fuzz: {name}: {count} cases in {fuzzer.seconds[name]:.0f} s")
    print(f"fuzz: {differences or 'no'} differences in {time.perf_counter() - began:.0f} s", flush=True)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
