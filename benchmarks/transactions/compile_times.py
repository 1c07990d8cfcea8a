"""Time from the first event of a program to its results: its kernel is compiled, others come from the cache.

``python -m benchmarks.transactions.compile_times [--rounds N] [PROGRAM ...]`` prints the CPU time of
processes that each compile one program. ``by numba`` compiles the same kernel from its bytecode, as a kernel
with a set is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import machine, median, print_and_save, run_contender
from penstock._clock import new_id
from penstock._kernels import load_run
from penstock.procedures.compiler.program import Program
from penstock.procedures.engine import TableSet, event_schema
from penstock.procedures.programs import PROGRAMS

NAMES = ("GS", "SL", "OB", "TP", "linear_road", "voter")
COMPILERS = ("own", "numba")
_RESULTS = Path(__file__).parents[1] / "results" / "compile_times.txt"
_OWN = "penstock.procedures.machine_code.kernel import generated_kernel"
_NUMBA = "penstock._kernels import program_kernel"


def program_of(name: str) -> Program:
    """Return a packaged program, or the workflow of ``examples/voter.py``."""
    if name == "voter":
        from examples.voter import vote

        event = pa.schema({"phone": pa.int64(), "contestant": pa.int64()})
        program = vote.program(event)
    else:
        program = PROGRAMS[name].procedure.program()
    if not isinstance(program, Program):
        raise TypeError(f"{name} is not compiled")
    return program


def compile_once(name: str, compiler: str) -> dict[str, float]:
    """Compile the kernel of a program anew; return its lines, and the CPU seconds until it has run."""
    program = program_of(name)
    source = program.source.replace(_OWN, _NUMBA) if compiler == "numba" else program.source
    # A comment of its own makes it another kernel, which is in no cache.
    program.__dict__["kernel"] = load_run(f"{source}# {new_id()}\n")
    events = pa.RecordBatch.from_pylist([], schema=event_schema(program.event))
    state = TableSet(program.tables)
    begin = time.process_time()
    state.run(program, events)
    return {"lines": len(source.splitlines()), "seconds": time.process_time() - begin}


def _in_a_process(name: str, compiler: str) -> dict[str, float]:
    return run_contender("transactions.compile_times", name, "--once", compiler)


def report(names: list[str], rounds: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "CPU seconds that compile a program's kernel, in a process of its own; median of the rounds."
    yield f"{machine()}; {rounds} rounds; load average {os.getloadavg()[0]:.1f} at the begin"
    yield f"$ python -m benchmarks.transactions.compile_times {' '.join(names)} --rounds {rounds}"
    yield ""
    yield f"{'program':10} {'lines':>6} {'seconds':>8} {'by numba':>9}"
    for name in names:
        # The first round compiles the helpers, which later ones find in the cache.
        made = [[_in_a_process(name, compiler) for compiler in COMPILERS] for _ in range(rounds + 1)][1:]
        own, numba = (median([pair[place]["seconds"] for pair in made]) for place in (0, 1))
        yield f"{name:10} {made[0][0]['lines']:6.0f} {own:8.2f} {numba:9.2f}"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", choices=COMPILERS, help="compile in this process, and print JSON")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(compile_once(options.names[0], options.once)))
        return 0
    print_and_save(report(list(options.names), options.rounds), _RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
