"""Jars that tests and benchmarks need beside Spark's own, fetched once with Spark's Ivy."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import pyspark

Module: TypeAlias = tuple[str, ...]
"""The organisation, name and version of a module, and perhaps the classifier of its jar."""

JAVA: Final = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else "java"
_CACHE: Final = Path(sys.prefix, "cache", "jars")
_MODULES: Final = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="penstock" module="tests"/>
<configurations><conf name="default"/></configurations>
<dependencies>{}</dependencies>
</ivy-module>"""


class MissingJarsError(Exception):
    """The jars could not be fetched."""


def fetch(modules: Sequence[Module], configuration: str) -> Path:
    """Return the directory with the jars of `modules`, which are fetched if they are not there.

    Ivy looks where it does by default and compares the checksums that are there.

    Parameters
    ----------
    modules : sequence of Module
        The modules; the first names the directory.
    configuration : str
        Ivy's: "master" for the jar alone, "default" for what it needs, too.

    Raises
    ------
    MissingJarsError
        If Ivy could not fetch them.
    """
    target = _CACHE / "-".join(modules[0])
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _fetch(target, modules, configuration)
    return target


def _fetch(target: Path, modules: Sequence[Module], configuration: str) -> None:
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    needed = target.with_name(f"{target.name}.xml")
    needed.write_text(_MODULES.format("".join(_dependency(module, configuration) for module in modules)))
    command = [
        *(
            JAVA,
            "-jar",
            str(ivy),
            "-cache",
            str(_CACHE / "ivy"),
            "-ivy",
            str(needed),
            "-types",
            "jar",
            "bundle",
        ),
        *("-retrieve", f"{unfinished}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingJarsError(f"{modules[0][1]} could not be fetched: {error}") from None
    if done.returncode or any(not list(unfinished.glob(f"{module[1]}-*.jar")) for module in modules):
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        said = next((line for line in lines if "not found" in line or "ERROR" in line), lines[-1:])
        raise MissingJarsError(f"{modules[0][1]} could not be fetched: {said}")
    unfinished.rename(target)


def _dependency(module: Module, configuration: str) -> str:
    organisation, name, version, *classifier = module
    artifact = (
        f'<artifact name="{name}" type="jar" ext="jar" m:classifier="{classifier[0]}"/>' if classifier else ""
    )
    return (
        f'<dependency org="{organisation}" name="{name}" rev="{version}" conf="default-&gt;{configuration}">'
        f"{artifact}</dependency>"
    )
