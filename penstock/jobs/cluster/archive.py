"""Archives for Spark's workers: Penstock, a pipeline and its modules, and optionally a whole environment."""

from __future__ import annotations

import sys
import tarfile
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from penstock._extras import need_extra
from penstock.conf.pipeline import example_names, load_pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.cluster.modules import Modules, find_modules, import_beside, pipeline_modules
from penstock.spark_ext.package_files import package_files, write_zip

__all__ = ["RUN_SCRIPT", "Packed", "pack_pipeline", "write_modules"]

RUN_SCRIPT: Final = "run_pipeline.py"
"""The program for `spark-submit` at the root of an archive."""

_TAR: Final = (".tar.gz", ".tgz")
_SCRIPT: Final = Path(__file__).parents[1] / "spark_submit.py"


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive that was written.

    Attributes
    ----------
    path : Path
        The archive.
    pipeline : str or None
        The name of the pipeline's file in the archive, or of the packaged example.
    modules : Modules
        The pipeline's own modules.
    """

    path: Path
    pipeline: str | None
    modules: Modules


def pack_pipeline(
    out: Path, pipeline: str | None = None, *, modules: tuple[str, ...] = (), prefix: Path | None = None
) -> Packed:
    """Write an archive from which Python imports Penstock and the modules of a pipeline.

    The archive also has the pipeline's file, the Python file of its database, and the program `RUN_SCRIPT`.
    In the directory where the archive was unpacked, `spark-submit` runs the pipeline.

    Parameters
    ----------
    out : Path
        The archive, replaced if it exists: ``.zip`` for ``--py-files``, or ``.tar.gz`` for ``--archives``.
    pipeline : str, optional
        The pipeline's file, or the name of a packaged example.
    modules : tuple of str
        More modules, such as modules that are imported by a computed name.
    prefix : Path, optional
        A virtual environment to pack as well. If given, the archive is this environment, with the modules in
        it.

    Raises
    ------
    InvalidUsageError
        If the pipeline is wrong, a module is missing or cannot be packed, or a file of the pipeline is not
        below the current directory.
    """
    if not out.name.endswith(_TAR if prefix is not None else (".zip", *_TAR)):
        suffixes = ".tar.gz" if prefix is not None else ".zip or .tar.gz"
        raise InvalidUsageError("unknown archive type", out=out, hint=f"use a name that ends in {suffixes}")
    extra = find_modules(list(modules))
    files: dict[str, Path] = {RUN_SCRIPT: _SCRIPT}
    name = pipeline
    if pipeline is not None:
        loaded = load_pipeline(pipeline)
        import_beside(loaded, pipeline)
        own = pipeline_modules(loaded)
        extra.files |= own.files
        extra.packed |= own.packed
        extra.installed |= own.installed
        if Path(pipeline).is_file() or pipeline not in example_names():
            name = _below_here(pipeline, "pipeline")
            files[name] = Path(pipeline)
        if loaded.database is not None:
            files[_below_here(loaded.database.file, "database.file")] = Path(loaded.database.file)
    out.parent.mkdir(parents=True, exist_ok=True)
    if prefix is not None:
        _write_environment(out, prefix, files, extra.files)
        return Packed(out, name, extra)
    _refuse_compiled(extra)
    files |= package_files() | extra.files
    if out.name.endswith(_TAR):
        with tarfile.open(out, "w:gz", dereference=True) as archive:
            for target, file in files.items():
                archive.add(file, target)
    else:
        write_zip(out, files)
    return Packed(out, name, extra)


def write_modules(out: Path, modules: Modules) -> None:
    """Write a zip file with a pipeline's modules, for workers of a running driver.

    Raises
    ------
    InvalidUsageError
        If a module cannot be imported from a zip file.
    """
    _refuse_compiled(modules)
    write_zip(out, modules.files)


def _refuse_compiled(modules: Modules) -> None:
    for name, file in modules.files.items():
        if file.name.endswith(tuple(EXTENSION_SUFFIXES)):
            raise InvalidUsageError(
                "Python cannot import a compiled module from an archive",
                module=name,
                hint="install it in the workers' Python, or pack the environment with --with-dependencies",
            )


def _below_here(file: str, field: str) -> str:
    """Return a file's name in the archive, so that the unpacked pipeline finds it by the same path."""
    path = Path(file)
    if field == "pipeline" and path.absolute().is_relative_to(Path.cwd()):
        path = path.absolute().relative_to(Path.cwd())
    if path.is_absolute() or ".." in path.parts:
        raise InvalidUsageError(
            f"{field} is not below the current directory",
            file=file,
            hint="pack in the directory in which the pipeline runs, and name files relative to it",
        )
    return path.as_posix()


def _write_environment(out: Path, prefix: Path, files: dict[str, Path], modules: dict[str, Path]) -> None:
    """Pack a virtual environment; the files go to its root, the modules to the directory of its packages."""
    need_extra("pack", "packing an environment")
    from venv_pack import Env, File, VenvPackException

    try:
        environment = Env(str(prefix))
    except VenvPackException as error:
        raise InvalidUsageError(
            "the environment cannot be packed",
            environment=prefix,
            reason=" ".join(str(error).split()),
            hint="make a virtual environment with what the workers need, install Penstock there without -e, "
            "and run its penstock",
        ) from None
    # Leave out files that Spark provides itself; they would be most of the archive.
    for pattern in ("*/pyspark/jars/*", "*/pyspark/examples/*", "*/__pycache__/*"):
        environment = environment.exclude(pattern)
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    names = {f"{packages}/{name}": file for name, file in modules.items()} | files
    environment.files += [File(str(file.absolute()), name) for name, file in names.items()]
    environment.pack(str(out), force=True)
