"""Find the Python modules that a pipeline needs, and those that are not installed, without starting Spark."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.conf.pipeline import ForeachBatchSink, Pipeline
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import own_references

__all__ = ["Modules", "find_modules", "import_beside", "pipeline_modules", "user_code"]

_ON_EVERY_WORKER: Final = frozenset({"penstock", "pyspark", "py4j"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_HINT: Final = "the module must be installed, beside the pipeline's YAML or Python file, or on PYTHONPATH"


@dataclass(slots=True)
class Modules:
    """Modules to pack, and modules that workers must have installed.

    Attributes
    ----------
    files : dict of str to Path
        The files of the modules to pack, by their names in an archive, relative to its root.
    packed, installed : set of str
        Top-level names of the modules to pack, and of installed modules.
    """

    files: dict[str, Path] = field(default_factory=dict)
    packed: set[str] = field(default_factory=set)
    installed: set[str] = field(default_factory=set)


def user_code(pipeline: Pipeline) -> list[str]:
    """Return the functions and classes that a pipeline names, as ``module:name``.

    Raises
    ------
    InvalidUsageError
        If an aggregate is not SQL.
    """
    step = pipeline.queue or pipeline.union
    functions = [step.apply] if step is not None and step.apply is not None else []
    if isinstance(pipeline.sink, ForeachBatchSink):
        functions.append(pipeline.sink.function)
    if pipeline.operator is not None:
        functions.append(pipeline.operator.name)
    sections = (pipeline, pipeline.by_window, pipeline.window_join)
    functions += own_references(
        text for section in sections if section is not None for text in (section.aggregates or {}).values()
    )
    return functions


def import_beside(pipeline: Pipeline, reference: str | Path) -> None:
    """Let this process, and processes that it starts later, import modules beside a pipeline's file.

    The directory becomes importable only if it has a module that the pipeline names and that cannot be
    imported yet. Under ``spark-submit`` nothing changes, because workers would not see the directory.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    reference : str or Path
        Its file. The name of a packaged example is also allowed.
    """
    try:
        names = {name.partition(":")[0].partition(".")[0] for name in user_code(pipeline)}
    except InvalidUsageError:
        return  # the checks report what is wrong, and where
    if not Path(reference).is_file() or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    directory = str(Path(reference).absolute().parent)
    find = importlib.machinery.PathFinder.find_spec
    if any(_spec(name, []) is None and find(name, [directory]) is not None for name in names):
        sys.path.append(directory)
        paths = [path for path in (os.environ.get("PYTHONPATH"), directory) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def pipeline_modules(pipeline: Pipeline) -> Modules:
    """Find the modules that a pipeline's functions and Python file import.

    Raises
    ------
    InvalidUsageError
        If a module that the pipeline names does not exist, or a file is not Python.
    """
    names = [name.partition(":")[0] for name in user_code(pipeline)]
    return find_modules(names, None if pipeline.database is None else Path(pipeline.database.file))


def find_modules(names: list[str], program: Path | None = None) -> Modules:
    """Find modules, and all modules that they import, directly or through other modules.

    Imports are read from the source, so modules that are imported by a computed name are not found. For a
    module in a package, the whole top-level package is taken.

    Parameters
    ----------
    names : list of str
        The names of modules that must exist.
    program : Path, optional
        A Python file that may import modules from its directory. The file itself is not included.

    Raises
    ------
    InvalidUsageError
        If one of `names` does not exist, or a file is not Python.
    """
    result = Modules()
    beside = [] if program is None else [str(program.absolute().parent)]
    waiting = [name.partition(".")[0] for name in names]
    for name in waiting:
        if _spec(name, beside) is None:
            raise InvalidUsageError(f"there is no module {name!r}", hint=_HINT)
    if program is not None:
        waiting += _imports(program)
    seen = set(sys.stdlib_module_names | _ON_EVERY_WORKER)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = _spec(name, beside)
        if spec is None:  # an optional import, or an import for another platform
            continue
        files = _files(spec)
        if not files:
            result.installed.add(name)
            continue
        result.packed.add(name)
        result.files |= files
        for file in files.values():
            if file.suffix == ".py":
                waiting += _imports(file)
    return result


def _spec(name: str, beside: list[str]) -> importlib.machinery.ModuleSpec | None:
    spec = importlib.machinery.PathFinder.find_spec(name, beside)
    if spec is not None:
        return spec
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module that was made without a file
        return None


def _files(spec: importlib.machinery.ModuleSpec) -> dict[str, Path]:
    """Return a top-level module's files by their names in an archive; none if the module is installed."""
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if not places and spec.origin is not None:
        places = [Path(spec.origin)]
    files: dict[str, Path] = {}
    for place in places:
        if _INSTALLED.intersection(place.parts):
            return {}
        if place.is_file():
            files[place.name] = place
        # A directory without __init__.py may hold files that do not belong to the package.
        pattern = "*.py" if spec.origin is None else "*"
        for file in sorted(place.rglob(pattern)) if place.is_dir() else ():
            inside = file.relative_to(place)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
            if file.is_file() and not hidden:
                files[f"{spec.name}/{inside.as_posix()}"] = file
    return files


def _imports(file: Path) -> Iterator[str]:
    """Yield the top-level names of the modules that a file imports anywhere.

    Raises
    ------
    InvalidUsageError
        If the file cannot be read, or is not Python.
    """
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidUsageError("a Python file cannot be read", file=file, reason=error) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
            yield node.module.partition(".")[0]
