"""Run random cases of every subject until the time is up, and report each difference with its seed.

A subject is a module of `tests/fuzz/subjects` with a function ``check(case: Case) -> None``. It draws an
input from ``case.random``, runs it through Penstock and through an independent oracle, and raises
`AssertionError` where they differ. Any other exception is a difference, too.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import tests.fuzz.subjects
from tests.fuzz.case import Case


def subjects() -> list[str]:
    """Return the names of all subjects."""
    return sorted(module.name for module in pkgutil.iter_modules(tests.fuzz.subjects.__path__))


@dataclass(frozen=True)
class Difference:
    """A case that failed."""

    subject: str
    seed: int
    text: str

    @property
    def replay(self) -> str:
        """The command that runs this case alone."""
        return f"script/fuzz --seed {self.seed} --cases 1 {self.subject}"


class Fuzzer:
    """Runs cases of several subjects by turns; each subject gets the same time."""

    def __init__(
        self,
        names: Sequence[str],
        directory: Path,
        session: Callable[[], SparkSession],
        progress: Callable[[Mapping[str, int]], None] = lambda cases: None,
    ) -> None:
        self.checks = {name: importlib.import_module(f"tests.fuzz.subjects.{name}").check for name in names}
        self.cases = dict.fromkeys(names, 0)
        self.seconds = dict.fromkeys(names, 0.0)
        self._directory = directory
        self._session = session
        self._progress = progress

    def run_case(self, subject: str, seed: int) -> Difference | None:
        """Run one case; return the difference, if any."""
        directory = self._directory / f"{subject}-{seed}"
        directory.mkdir(parents=True)
        began = time.perf_counter()
        try:
            self.checks[subject](Case(seed, directory, self._session))
        except Exception:
            return Difference(subject, seed, traceback.format_exc())
        finally:
            self.cases[subject] += 1
            self.seconds[subject] += time.perf_counter() - began
            shutil.rmtree(directory, ignore_errors=True)
        return None

    def run(self, seed: int, *, seconds: float, cases: int | None = None) -> Iterator[Difference]:
        """Run seeds from `seed` on until `seconds` are over, or `cases` of each subject are done."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            waiting = [name for name in self.checks if cases is None or self.cases[name] < cases]
            if not waiting:
                return
            subject = min(waiting, key=self.seconds.__getitem__)
            found = self.run_case(subject, seed + self.cases[subject])
            if found is not None:
                yield found
            self._progress(self.cases)
