"""`Dashboard`: the history of a run, its checkpoint, and the server that shows them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from penstock._extras import has_extra, need_extra
from penstock.jobs.dashboard.history import History
from penstock.units import parse_address

if TYPE_CHECKING:
    from penstock.conf.pipeline import Pipeline

__all__ = ["Dashboard", "choose_address", "pipeline_dashboard"]

_OFF = "off"


class Dashboard:
    """A dashboard that is served until `close`.

    Parameters
    ----------
    title : str
        The title of the page.
    address : str
        ``HOST:PORT``, or a port of 127.0.0.1; 0 chooses a free port.
    metrics : str, optional
        A metrics file. The dashboard shows the end of the file, and new lines when they arrive. Without a
        file, the caller adds micro-batches to `history`.
    token : str, optional
        The token that requests must have; needed if other machines can reach the address.

    Raises
    ------
    InvalidUsageError
        If the extra or the token is missing, or the address cannot be used.
    """

    def __init__(
        self, title: str, address: str, *, metrics: str | None = None, token: str | None = None
    ) -> None:
        need_extra("dashboard", "the dashboard")
        from penstock.jobs.dashboard.app import make_app
        from penstock.jobs.dashboard.server import DashboardServer

        self.follows_file = metrics is not None
        self.history = History(None if metrics is None else Path(metrics))
        self._places: tuple[str, str] | None = None
        app = make_app(self.history, lambda: self._places, title=title, token=token)
        self._server = DashboardServer(app, *parse_address(address), token)
        self.url = self._server.url

    def show_checkpoint(self, checkpoint: str, state_location: str | None) -> None:
        """Show a graph's checkpoint, and its state if the state is at another location."""
        self._places = checkpoint, state_location or f"{checkpoint.rstrip('/')}/state"

    def close(self) -> None:
        """End the server."""
        self._server.close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def choose_address(given: str | None) -> str | None:
    """Return the address of a run's dashboard; None if there is no dashboard.

    The default is a free port of 127.0.0.1 if standard error is a terminal and the extra is installed.
    ``off`` means no dashboard.
    """
    if given is not None:
        return None if given == _OFF else given
    return "0" if sys.stderr.isatty() and has_extra("dashboard") else None


@contextmanager
def pipeline_dashboard(pipeline: Pipeline, address: str | None) -> Iterator[Dashboard | None]:
    """Serve the dashboard of a pipeline that runs in this process, and print its address.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    address : str, optional
        See `choose_address`. If a token is needed, it is in the environment variable ``PENSTOCK_TOKEN``.

    Raises
    ------
    InvalidUsageError
        See `Dashboard`.
    """
    chosen = choose_address(address)
    if chosen is None:
        yield None
        return
    query = pipeline.query
    token = os.environ.get("PENSTOCK_TOKEN") or None
    with Dashboard(query.name, chosen, metrics=query.metrics, token=token) as dashboard:
        print(f"dashboard: {dashboard.url}", file=sys.stderr, flush=True)
        yield dashboard
