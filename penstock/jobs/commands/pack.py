"""``penstock pack``: an archive for ``spark-submit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.jobs.commands.common import DebugOption, errors, size

__all__ = ["pack"]


def pack(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="[PIPELINE]",
            help="A YAML file, or the name of a packaged example; by default, only Penstock is packed.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The archive: .zip for --py-files, .tar.gz for --archives."),
    ] = Path("penstock.zip"),
    module: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Pack this module, too; for modules that are imported by a computed name. May be repeated.",
            show_default=False,
        ),
    ] = None,
    with_dependencies: Annotated[
        bool,
        typer.Option("--with-dependencies", help="Pack the virtual environment that runs this command."),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Pack Penstock and a pipeline for the workers of a cluster.

    The archive has Penstock, the pipeline's file, the Python file of its database, the imported modules that
    are not installed, and run_pipeline.py, the program for spark-submit.
    """
    with errors(debug=debug):
        from penstock.jobs.cluster.archive import RUN_SCRIPT, pack_pipeline

        prefix = Path(sys.prefix) if with_dependencies else None
        packed = pack_pipeline(out, pipeline, modules=tuple(module or ()), prefix=prefix)
        modules = packed.modules
        parts = ["penstock", *([packed.pipeline] if packed.pipeline else []), *sorted(modules.packed)]
        typer.echo(f"{out}: {size(out.stat().st_size)}: {', '.join(parts)}")
        if with_dependencies:
            use = f"--archives {out}#environment --conf spark.pyspark.python=./environment/bin/python"
        elif out.suffix == ".zip":
            use = f"--py-files {out}"
        else:
            use = f"--archives {out}#packed --conf spark.executorEnv.PYTHONPATH=packed"
        if modules.installed and not with_dependencies:
            typer.echo(f"workers need these modules: {', '.join(sorted(modules.installed))}", err=True)
        if packed.pipeline is None:
            program = "PROGRAM.py"
        else:
            program = f"{RUN_SCRIPT} {packed.pipeline}"
            unpack = f"unzip {out} {RUN_SCRIPT}" if out.suffix == ".zip" else f"tar -xzf {out} {RUN_SCRIPT}"
            typer.echo(f"first take its program out: {unpack}", err=True)
        typer.echo(f"run it by: spark-submit {use} {program}", err=True)
