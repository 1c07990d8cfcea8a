"""``penstock dashboard``: shows a pipeline live in a browser."""

from __future__ import annotations

from pathlib import Path
from signal import Signals
from typing import Annotated

import typer

from penstock.jobs.commands.common import SIGNALLED, DebugOption, errors

__all__ = ["dashboard"]


_CHECKPOINT = ("metadata", "offsets", "queries")
"""The names that the directories of checkpoints have, beside the files of graphs."""


def dashboard(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE",
            help="A pipeline: its YAML file, the name of a packaged example, or its checkpoint.",
            show_default=False,
        ),
    ],
    metrics: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The metrics file; by default query.metrics.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Override a field of the pipeline.", show_default=False
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="The address to listen at. An address that other machines reach needs a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free port.")] = 8816,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the token that the page's address must have. By default PENSTOCK_TOKEN has it.",
            show_default=False,
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Show a pipeline live in a browser, until Ctrl-C or SIGTERM.

    The pipeline may run in another process, or have ended. The page shows the pipeline's metrics file
    (query.metrics) and the content of its checkpoint. The page loads nothing from other hosts.

    \b
    penstock dashboard pipeline.yaml
    penstock dashboard checkpoint --metrics metrics.jsonl
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        import os

        from penstock.checkpointing.files import open_files
        from penstock.conf.pipeline import load_document
        from penstock.errors import InvalidUsageError
        from penstock.jobs.dashboard.dashboard import Dashboard
        from penstock.jobs.signals import StopSignals

        token = os.environ.get("PENSTOCK_TOKEN") or None
        if token_file is not None:
            try:
                token = token_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise InvalidUsageError(
                    "cannot read a file", file=token_file, reason=error.strerror
                ) from error
        state: str | None = None
        if Path(what).is_dir() or ("://" in what and open_files(what).list()):
            names = {facts.name for facts in open_files(what).list()}
            if names and not any(name in _CHECKPOINT or name.startswith("graph-") for name in names):
                raise InvalidUsageError(
                    "the directory is not a checkpoint",
                    directory=what,
                    hint="give a pipeline's YAML file, or the directory that query.checkpoint names",
                )
            title, checkpoint = what.rstrip("/").rpartition("/")[2], what
        else:
            query = load_document(what, overrides or [])[0].query
            title, state = query.name, query.state_location
            checkpoint, metrics = query.checkpoint or "", metrics or query.metrics
        if not checkpoint and metrics is None:
            raise InvalidUsageError(
                "the pipeline has neither a checkpoint nor a metrics file to show",
                hint="set query.checkpoint and query.metrics, or run it with --dashboard",
            )
        with (
            StopSignals() as signals,
            Dashboard(
                title, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", metrics=metrics, token=token
            ) as shown,
        ):
            if checkpoint:
                shown.show_checkpoint(checkpoint, state)
            typer.echo(f"dashboard: {shown.url}")
            signals.wait()
    typer.echo(f"stopped by {Signals(signals.received or 0).name}", err=True)
    raise typer.Exit(SIGNALLED + (signals.received or 0))
