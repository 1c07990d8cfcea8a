"""Kill the process of a database at random, and check that no call is lost or happens twice.

python -m tests.crash.databases.database_kills [KILLS [SEED]] [--partitions N]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.procedures.engine import TableSet
from tests.crash.databases.database_job import ACKNOWLEDGED, Armed, digest, events_of, state_digest, workload
from tests.crash.harness import ROOT, partitions_to_run, repeat_kills

_LONGEST_RUN_S = 300.0
_MAX_ROUNDS = 1 << 20


class Expected:
    """The results of an uninterrupted run of a workload after each round."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._database, self._program = workload(seed)
        self._state = TableSet(self._database.catalog.all_tables.values())
        self._states = [state_digest(self._state, self._database)]
        self._results = [""]

    def _run_to(self, number: int) -> None:
        while len(self._states) <= number:
            events = events_of(self._seed, len(self._states), self._program)
            results = self._state.run(self._program, events, np.array([0, events.num_rows]))
            self._states.append(state_digest(self._state, self._database))
            self._results.append(digest(results.to_pylist()))

    def state(self, number: int) -> str:
        """Return the digest of the state after so many rounds."""
        self._run_to(number)
        return self._states[number]

    def results(self, number: int) -> str:
        """Return the digest of the results of a round."""
        self._run_to(number)
        return self._results[number]


class Jobs:
    """Processes that run one after the other; each continues after the last one was killed.

    Parameters
    ----------
    directory : Path
        The directory of the database and of the acknowledgements.
    seed : int
        Tells the workload.
    partitions : int
        The partitions of the database.
    """

    def __init__(self, directory: Path, seed: int, partitions: int = 1) -> None:
        self.directory = directory
        self._expected = Expected(seed)
        self._attempt = 0
        self._told = 0
        self.rounds = 0
        """The rounds that are acknowledged, or were found by a later process."""
        self.loaded: set[int] = set()
        self._log = (directory / "job.log").open("w")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.databases.database_job",
             str(directory), str(seed), str(partitions)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self._answer("started")

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.kill()
        self._server.communicate()
        self._log.close()

    def _answer(self, expected: str | None = None) -> str:
        assert self._server.stdout is not None
        said = self._server.stdout.readline().strip()
        assert said and expected in (None, said), (said, self.why())
        return said

    def why(self) -> str:
        """Return the output of the processes."""
        return (self.directory / "job.log").read_text()[-3000:]

    def run(
        self,
        *,
        rounds: int = _MAX_ROUNDS,
        kill_after_lines: int = 0,
        kill_after_s: float = _LONGEST_RUN_S,
        armed: Armed | None = None,
    ) -> int:
        """Run a process until it ends or is killed; check what it said, and return its exit code."""
        self._attempt += 1
        job: dict[str, Any] = {
            "attempt": self._attempt, "rounds": rounds, "kill_after_lines": kill_after_lines,
            "kill_after_s": kill_after_s, "armed": armed or {},
        }  # fmt: skip
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        code = int(self._answer())
        assert code <= 0, self.why()
        self._check()
        return code

    def _check(self) -> None:
        """Check the lines that are new."""
        place = self.directory / ACKNOWLEDGED
        lines = place.read_text().splitlines() if place.exists() else []
        for line in lines[self._told :]:
            word, *rest = line.split(" ")
            if word == "opened":
                self._check_opened(int(rest[0]), rest[1], {int(one) for one in rest[2].split(",") if one})
            elif word == "loaded":
                self.loaded.add(int(rest[0]))
            elif word == "ran":
                self.rounds = int(rest[0])
                assert rest[1] == self._expected.results(self.rounds), f"results of round {self.rounds}"
        self._told = len(lines)

    def _check_opened(self, rounds: int, state: str, loaded: set[int]) -> None:
        # A call that did not return ran at most three rounds, or loaded a row before the next one.
        assert self.rounds <= rounds <= self.rounds + 3, f"{self.rounds} rounds were done, {rounds} are there"
        assert state == self._expected.state(rounds), f"the state after {rounds} rounds"
        assert loaded >= self.loaded, f"loads are lost: {self.loaded - loaded}"
        assert loaded - self.loaded <= {self.rounds + 1}, f"loads of nobody: {loaded - self.loaded}"
        self.rounds, self.loaded = rounds, loaded


def run_with_kills(
    directory: Path, seed: int, kills: int, partitions: int = 1, *, say: Callable[[str], None] = print
) -> None:
    """Kill `kills` processes at moments drawn from `seed`; check each start and the end.

    Raises
    ------
    AssertionError
        If something is lost or came twice, or a process failed.
    """
    draw = random.Random(seed)
    with Jobs(directory, seed, partitions) as jobs:
        killed = in_starts = 0
        while killed < kills:
            before = jobs.rounds, len(jobs.loaded)
            # In its start, or after some calls; then at any moment of what it is in.
            lines = draw.choice([0, 1, 2, 3, 5, 8])
            moment = draw.uniform(0, 0.03 if lines else 0.3)
            killed += jobs.run(kill_after_lines=lines, kill_after_s=moment) < 0
            in_starts += before == (jobs.rounds, len(jobs.loaded))
        assert jobs.run(rounds=5) == 0
        assert jobs.run(rounds=0) == 0
        say(
            f"{killed} processes were killed, {in_starts} before their first call returned; "
            f"{jobs.rounds} rounds and {len(jobs.loaded)} loads are there once"
        )


if __name__ == "__main__":
    number = partitions_to_run()
    run = partial(run_with_kills, partitions=number)
    repeat_kills("tests.crash.databases.database_kills", run, 100, f"--partitions {number}")
