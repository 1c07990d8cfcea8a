"""Stand-ins for Azure and Google: Azurite where it is installed, and Google's XML interface over moto."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.servers.s3 import BUCKET, KEY, S3Server
from tests.servers.servers import Server

__all__ = ["Azurite", "GoogleServer"]

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that Azurite has, whose key is public."""
_CONTAINER = "container"
_VERSION = "2021-08-06"


class Azurite(Server):
    """Microsoft's emulator of Azure Blob Storage, with one empty container."""

    PROGRAM, USER = "azurite-blob", "nobody"

    @staticmethod
    def _find(name: str) -> str:
        here = Path(__file__).parents[2] / ".venv-azurite" / "node_modules" / ".bin" / name
        found = str(here) if here.exists() else shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not installed; script/servers installs it where npm is")
        return found

    def command(self) -> Sequence[str]:
        return (
            self.program, "--blobPort", str(self.port), "--inMemoryPersistence", "--silent",
            "--skipApiVersionCheck", "--disableTelemetry",
        )  # fmt: skip

    def start(self) -> None:
        super().start()
        path = f"/{_ACCOUNT}/{_CONTAINER}"
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        text = (
            "PUT"
            + "\n" * 12
            + f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n/{_ACCOUNT}{path}\nrestype:container"
        )
        digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
        made = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": _VERSION,
                "Content-Length": "0",
                "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
            },
        )
        urllib.request.urlopen(made).close()

    def uri(self, prefix: str) -> str:
        """Return the location of `prefix`, with the account's key."""
        return (
            f"abfs://{_CONTAINER}:{quote(_KEY, safe='')}@{_ACCOUNT}.dfs.core.windows.net/{prefix}"
            f"?endpoint=http://127.0.0.1:{self.port}/{_ACCOUNT}"
        )


class GoogleServer(S3Server):
    """Google's XML interface, as far as obstore uses it: that of S3 with other names of headers."""

    def uri(self, prefix: str, bucket: str = BUCKET) -> str:
        """Return the location of `prefix`."""
        key = {"gcs_base_url": f"http://127.0.0.1:{self.port}", "disable_oauth": True}
        key |= {"client_email": "", "private_key": "", "private_key_id": ""}
        return f"gs://{bucket}/{prefix}?service_account_key={quote(json.dumps(key))}&base_url={key['gcs_base_url']}"

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # moto finds the service of a request in what signs it.
        scope = f"{KEY}/20260101/us-east-1/s3/aws4_request"
        environ["HTTP_AUTHORIZATION"] = (
            f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
        )
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        for name in [name for name in environ if name.startswith("HTTP_X_GOOG_META_")]:
            environ[name.replace("GOOG", "AMZ")] = environ.pop(name)
        return super()._serve(environ, start_response)
