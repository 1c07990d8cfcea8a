"""Pythons for Spark's workers."""

from __future__ import annotations

import sys
from pathlib import Path

import penstock

_HIDES_PENSTOCK = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "penstock":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""

_REMOVES_PENSTOCK = f"""
import sys

sys.path[:] = [path for path in sys.path if path != {str(Path(penstock.__file__).parents[1])!r}]
"""


def python_without_penstock(directory: Path, *, may_be_sent: bool = False) -> str:
    """Make a program in `directory` that runs this Python without Penstock; return its path.

    With `may_be_sent` it imports Penstock from elsewhere, such as a file of Spark.
    """
    (directory / "sitecustomize.py").write_text(_REMOVES_PENSTOCK if may_be_sent else _HIDES_PENSTOCK)
    program = directory / "python3"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={directory}:$PYTHONPATH exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)
