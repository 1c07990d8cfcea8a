"""The dashboard's web application: one page, and the JSON that it requests."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from http.cookies import SimpleCookie
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from penstock._version import __version__
from penstock.jobs.dashboard.history import History
from penstock.jobs.dashboard.server import LOCAL_HOSTS
from penstock.jobs.dashboard.storage import Refreshed, describe_graph, describe_storage

__all__ = ["make_app"]

_COOKIE: Final = "penstock"
_GRAPH_S: Final = 2.0
_STORAGE_S: Final = 10.0
_MAX_ENTRIES: Final = 2_000
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FILES: Final = ("page.html", "page.css", "page.js", "uPlot.iife.min.js", "uPlot.min.css")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class _Token:
    """Refuses requests without the token.

    The first request has the token in its address, and later requests have the token in a cookie.
    """

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._is_right(request.query_params.get("token", "")):
            answer = RedirectResponse(request.url.path)
            answer.set_cookie(_COOKIE, self._token.decode(), httponly=True, samesite="strict")
            await answer(scope, receive, send)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        cookie = SimpleCookie(request.headers.get("cookie", "")).get(_COOKIE)
        if self._is_right(cookie.value if cookie else "") or (
            scheme.lower() == "bearer" and self._is_right(given)
        ):
            await self._app(scope, receive, send)
            return
        await PlainTextResponse("the token is missing or wrong\n", 401)(scope, receive, send)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)


def make_app(
    history: History,
    checkpoint: Callable[[], tuple[str, str] | None],
    *,
    title: str,
    token: str | None = None,
) -> Starlette:
    """Return the application.

    Parameters
    ----------
    history : History
        The micro-batches.
    checkpoint : callable
        Returns the graph's checkpoint and the location of its state, or None while they are unknown.
    title : str
        The title of the page.
    token : str, optional
        The token that requests must have. If it is None, the application answers only requests that are
        addressed to this machine's own addresses. If it answered other requests, a web site could read the
        pages through a host name that resolves to this machine.
    """

    def of_checkpoint(describe: Callable[[str, str], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        def compute() -> dict[str, Any]:
            known = checkpoint()
            return {} if known is None else describe(*known)

        return compute

    graph = Refreshed(of_checkpoint(lambda location, _: describe_graph(location)), _GRAPH_S)
    storage = Refreshed(of_checkpoint(describe_storage), _STORAGE_S)

    async def batches(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 18):
            return PlainTextResponse("after is the number of an entry\n", 400)
        entries = await run_in_threadpool(history.read_after, int(after), _MAX_ENTRIES)
        return _json({"session": history.session, "entries": entries, "unreadable": history.unreadable})

    async def about(_: Request) -> Response:
        return _json({"title": title, "version": __version__})

    async def show_graph(request: Request) -> Response:
        wait = "wait" in request.query_params
        return _json(await run_in_threadpool(graph.value, wait=wait))

    async def show_storage(request: Request) -> Response:
        wait = "wait" in request.query_params
        return _json(await run_in_threadpool(storage.value, wait=wait))

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "page.html")
        if name not in _FILES:
            return PlainTextResponse("there is no such page\n", 404)
        content = files("penstock.jobs.dashboard").joinpath("static", name).read_bytes()
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)

    if token is None:
        guard = Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL_HOSTS), www_redirect=False)
    else:
        guard = Middleware(_Token, token=token)
    routes = [
        Route("/", file),
        Route("/api/about", about),
        Route("/api/batches", batches),
        Route("/api/graph", show_graph),
        Route("/api/storage", show_storage),
        Route("/{name}", file),
    ]
    return Starlette(routes=routes, middleware=[guard])


def _json(value: dict[str, Any]) -> Response:
    return JSONResponse(value, headers=_HEADERS)
