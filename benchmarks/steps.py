"""The time that Python workers of a running query spend in each step, from stack samples."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import SAMPLER, Probe, daemons
from penstock.spark_ext.daemon import DAEMON

__all__ = ["OTHER", "STEPS", "StepProfile", "step_of"]

STEPS: dict[str, str] = {
    "store": r"state_store/bucket_store",
    "results": r"spark_ext/sources/p_stream_(rows|sink)|segments:SegmentWriter|compression/table:encode",
    "fold": r"operators/scan/fragments/",
    "select": r"operators/(sql/|scan/lookup)",
    "read": r"operators/scan/|p_stream/(reader|segments)|parquet_reader",
    "pack": r"spark_ext/border/(window_packing:EntryPacker|parcels:to_parcels)",
    "windows": r"windows/",
    "unpack": r"spark_ext/(border/(parcels|window|packing)|worker/(window|stateful:)|graph/window)",
}
"""The functions of each step of a micro-batch, as ``module:function``.

A sample belongs to the first step that has one of its frames. The map side packs entries, the operator
unpacks them; results are its writes into a p-stream.
"""
OTHER = "border"
"""Samples outside all steps: in Spark's own worker, Arrow's streams and the protocol."""
_WAITS = frozenset({"read_int", "readinto", "manager", "_worker", "_run", "wait", "select", "accept"})
"""Functions that wait when they are the innermost."""
_FRAME = re.compile(r"^(.*) \((.*?)(?:\.py)?:\d+\)$")
_SAMPLE = re.compile(r"^(.*) (\d+)$")
_RATE = 100
_PROGRAM = Path(sys.executable).with_name(SAMPLER)


class StepProfile(Probe):
    """Samples the workers of a query, while it is entered, from the moment that it is ready."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        if not _PROGRAM.exists():
            raise SystemExit(f"{SAMPLER} is not installed; pip install 'penstock[bench]'")
        super().__init__(self._sample_once_ready)
        self._ready = ready
        self._place = tempfile.TemporaryDirectory(prefix="penstock-steps-")
        self._samplers: dict[Path, subprocess.Popen[bytes]] = {}
        self.shares: dict[str, float] = {}
        self.samples = 0

    def _sample_once_ready(self) -> None:
        if self._samplers or not self._ready():
            return
        for pid in daemons(os.getpid()):
            if not _is_daemon(pid):
                continue
            file = Path(self._place.name) / f"{pid}.txt"
            command = [str(_PROGRAM), "record", "--pid", str(pid)]
            command += ["--subprocesses", "--format", "raw", "--rate", str(_RATE), "--output", str(file)]
            self._samplers[file] = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        found: Counter[str | None] = Counter()
        for file, sampler in self._samplers.items():
            sampler.send_signal(signal.SIGINT)
            sampler.wait()
            # A daemon that has no work has no file.
            for line in file.read_text().splitlines() if file.exists() else ():
                sample = _SAMPLE.match(line)
                assert sample is not None
                found[step_of(sample[1].split(";"))] += int(sample[2])
        self._place.cleanup()
        del found[None]
        self.samples = sum(found.values())
        if not self.samples:
            raise RuntimeError(f"{SAMPLER} took no samples of workers")
        self.shares = {step: found[step] / self.samples for step in (*STEPS, OTHER)}


def _is_daemon(pid: int) -> bool:
    try:
        return DAEMON in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def step_of(stack: list[str]) -> str | None:
    """Return the step of a stack of frames, the outermost first; None where it waits."""
    calls = [f"{frame[2]}:{frame[1]}" for frame in map(_FRAME.match, stack) if frame is not None]
    if not calls or re.split(r"[:.]", calls[-1])[-1] in _WAITS:
        return None
    ours = " ".join(call for call in calls if "penstock/" in call)
    return next((step for step, functions in STEPS.items() if re.search(functions, ours)), OTHER)
