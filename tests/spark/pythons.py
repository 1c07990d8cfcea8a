"""Pythons for Spark's workers."""

from __future__ import annotations

import sys
from pathlib import Path

_HIDES_PENSTOCK = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "penstock":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def python_without_penstock(directory: Path) -> str:
    """Make a program in `directory` that runs this Python without Penstock; return its path."""
    (directory / "sitecustomize.py").write_text(_HIDES_PENSTOCK)
    program = directory / "python3"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={directory}:$PYTHONPATH exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)
