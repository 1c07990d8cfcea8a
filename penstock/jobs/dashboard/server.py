"""The dashboard's server, in a separate thread."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError, UnavailableError

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["LOCAL_HOSTS", "DashboardServer", "check_token"]

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
_END_S = 5.0


def check_token(host: str, token: str | None) -> None:
    """Check that no other machine can see the dashboard without a token.

    Raises
    ------
    InvalidUsageError
        If another machine can see it, or the token has characters that a URL may not have.
    """
    if token is None and host not in LOCAL_HOSTS:
        raise InvalidUsageError(
            "other machines could see the dashboard without a token", host=host,
            hint="set PENSTOCK_TOKEN or --token-file, or listen at 127.0.0.1",
        )  # fmt: skip
    if token is not None and not (token.isascii() and token.replace("-", "").replace("_", "").isalnum()):
        raise InvalidUsageError("a token has only ASCII letters, digits, - and _, and at least one of them")


class DashboardServer:
    """A web server in a thread, until `close`.

    Parameters
    ----------
    app : starlette.applications.Starlette
        The application.
    host, port
        The address to listen at; port 0 chooses a free port.
    token : str, optional
        The token that the application requires; `url` contains it.

    Raises
    ------
    InvalidUsageError
        If the extra is missing, or the address cannot be used.
    """

    def __init__(self, app: Starlette, host: str, port: int, token: str | None = None) -> None:
        need_extra("dashboard", "the dashboard")
        check_token(host, token)
        import uvicorn

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen()  # before the thread is ready, so that early requests are not refused
        except OSError as error:
            listening.close()
            raise InvalidUsageError(
                "the dashboard cannot listen", address=f"{host}:{port}", reason=error.strerror,
                hint="choose another port",
            ) from error  # fmt: skip
        named = f"[{host}]" if ":" in host else host
        self.url = f"http://{named}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")
        self._listening = listening
        config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False, ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="penstock-dashboard", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # In a thread other than the main thread, uvicorn installs no signal handlers.
        self._server.run(sockets=[self._listening])

    def close(self) -> None:
        """End the server; open pages show that it has ended."""
        self._server.should_exit = True
        self._thread.join(_END_S)
        self._listening.close()
        if self._thread.is_alive():
            raise UnavailableError("the dashboard does not end", url=self.url)

    def __enter__(self) -> DashboardServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
