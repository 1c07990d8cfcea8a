"""A schema registry on the loopback address, with the documented requests that read schemas."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote


class Registry:
    """A registry, whose schemas tests add from Python.

    Attributes
    ----------
    requests : Counter
        How often each path was asked for.
    user : tuple of str, optional
        The user and password that requests must have.
    token : str, optional
        The bearer token that requests must have.
    failures : int
        How many of the next requests are answered by an error that passes.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.user: tuple[str, str] | None = None
        self.token: str | None = None
        self.failures = 0
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(
        self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
    ) -> int:
        """Add a version of a subject, and return its schema's number."""
        number = 100 + len(self._schemas)
        self._schemas[number] = {"schema": schema} | ({} if kind == "AVRO" else {"schemaType": kind})
        if references:
            names = ("name", "subject", "version")
            self._schemas[number]["references"] = [dict(zip(names, one, strict=True)) for one in references]
        self._subjects.setdefault(subject, []).append(number)
        return number

    def _answer(self, path: str, authorization: str) -> tuple[int, Any]:
        self.requests[path] += 1
        wanted = None
        if self.user is not None:
            wanted = "Basic " + base64.b64encode(":".join(self.user).encode()).decode()
        elif self.token is not None:
            wanted = f"Bearer {self.token}"
        if wanted is not None and authorization != wanted:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50003, "message": "no leader"}
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                found = self._schemas.get(int(number))
                return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
            case ["subjects", subject, "versions", version]:
                numbers = self._subjects.get(subject)
                if numbers is None:
                    return 404, {"error_code": 40401, "message": "Subject not found"}
                found_number = numbers[-1 if version == "latest" else int(version) - 1]
                return 200, {"subject": subject, "id": found_number, **self._schemas[found_number]}
        return 404, "no such page"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the name that the server looks for
                code, answer = registry._answer(self.path, self.headers.get("Authorization", ""))
                body = json.dumps(answer).encode() if isinstance(answer, dict) else str(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler


def frame(number: int, value: bytes, indexes: Sequence[int] | None = None) -> bytes:
    """Return a value as serializers for registries write it; `indexes` are those of a Protobuf message."""
    head = struct.pack(">bI", 0, number)
    if indexes is not None:
        head += b"\0" if list(indexes) == [0] else b"".join(map(_zigzag, [len(indexes), *indexes]))
    return head + value


def _zigzag(number: int) -> bytes:
    number, found = 2 * number, b""
    while number > 127:
        number, found = number >> 7, found + bytes([number & 127 | 128])
    return found + bytes([number])
