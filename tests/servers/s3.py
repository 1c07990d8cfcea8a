"""A real S3 server on the loopback address, which counts requests and fails when told to."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "bucket"
KEY, SECRET = "penstock", "not-to-be-seen"

_CODES = {
    400: "InvalidRequest", 403: "AccessDenied", 409: "ConditionalRequestConflict", 412: "PreconditionFailed",
    500: "InternalError", 503: "SlowDown",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request: S3's name for it, and its path."""

    operation: str
    path: str


@dataclass
class S3Server:
    """Starts with one empty bucket, and keeps all in memory.

    Attributes
    ----------
    requests : list of Request
        All since the start, or since the list was cleared.
    refuse : callable, optional
        Given a request, returns the HTTP status to fail it with, or None to serve it.
    lose_reply : callable, optional
        Given a request that was served, returns whether the caller gets an error of the service instead.
    """

    requests: list[Request] = field(default_factory=list)
    refuse: Callable[[Request], int | None] | None = None
    lose_reply: Callable[[Request], bool] | None = None

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.port = self._server.port
        # All servers of a process share their content: a new server deletes the content of the last one.
        for path, method in (("moto-api/reset", "POST"), (BUCKET, "PUT")):
            made = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
            urllib.request.urlopen(made).close()
        self.requests.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def uri(self, prefix: str, bucket: str = BUCKET) -> str:
        """Return the location of `prefix`, with a key and its secret."""
        return (
            f"s3://{KEY}:{SECRET}@{bucket}/{prefix}?scheme=http&endpoint_override=127.0.0.1:{self.port}"
            "&region=us-east-1"
        )

    @property
    def operations(self) -> list[str]:
        """The operations of all requests, in order."""
        return [request.operation for request in self.requests]

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        request = Request(_operation(environ["REQUEST_METHOD"], query), environ["PATH_INFO"])
        self.requests.append(request)
        status = self.refuse(request) if self.refuse else None
        if status is None:
            if self.lose_reply is None or not self.lose_reply(request):
                answer: Iterable[bytes] = self._app(environ, start_response)
                return answer
            # Served in full; the caller sees the error below.
            for _ in self._app(environ, lambda *_: lambda _: None):
                pass
            status = 503
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{_CODES[status]}</Code><Message>refused by the test</Message></Error>".encode()
        start_response(
            f"{status} Refused", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        )
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]


def _operation(method: str, query: dict[str, list[str]]) -> str:
    if "uploads" in query:
        return "CreateMultipartUpload"
    if "partNumber" in query:
        return "UploadPart"
    if "uploadId" in query:
        return "CompleteMultipartUpload" if method == "POST" else "AbortMultipartUpload"
    return "List" if "list-type" in query else method
