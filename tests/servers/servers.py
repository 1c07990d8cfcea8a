"""Servers that tests start for themselves, on free ports and in directories of their own."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.processes import kill, running, until

__all__ = ["MariaDb", "Mosquitto", "PostgreSql", "Redis", "Server"]

_PATIENCE_S = 300.0  # a machine under load starts a server slowly
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


class Server:
    """A server in a directory of its own. It can be killed and started again with its data.

    As root, it runs as `USER`, since databases refuse to run as root.
    """

    PROGRAM: str
    USER: str

    def __init__(self) -> None:
        self.program = self._find(self.PROGRAM)
        # Not below pytest's directories, which are for their owner only.
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-server-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        if os.getuid() == 0:
            owner = pwd.getpwnam(self.USER)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
        self.initialize()
        self.start()

    @staticmethod
    def _find(name: str) -> str:
        newest = max((str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None)
        found = newest or shutil.which(name, path=_PATH)
        if found is None:
            pytest.skip(f"{name} is not installed; script/servers installs it")
        return found

    def initialize(self) -> None:
        """Make the files of the server."""

    def command(self) -> Sequence[str]:
        """Return the command that runs the server in the foreground."""
        raise NotImplementedError

    def run(self, *command: str) -> None:
        """Run a command as the server's user."""
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._as_user)  # type: ignore[call-overload]

    @property
    def _as_user(self) -> dict[str, object]:
        return {"user": self.USER, "cwd": self.directory} if os.getuid() == 0 else {"cwd": self.directory}

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, **self._as_user)  # type: ignore[call-overload]
        assert until(self.answers, _PATIENCE_S), (self.directory / "log").read_text()

    def answers(self) -> bool:
        """Return whether the server takes connections."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the server by a signal, and its processes: PostgreSQL does not start again before they end."""
        self.process.send_signal(signal.SIGSTOP)  # it starts no further process
        children = [process.id for process in running() if process.parent == self.process.pid]
        self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)
        self.process.wait(_PATIENCE_S)
        kill(children)

    def remove(self) -> None:
        """End the server, and delete its files."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.directory)


class PostgreSql(Server):
    PROGRAM, USER = "postgres", "postgres"

    def initialize(self) -> None:
        self.run(
            self._find("initdb"),
            "--pgdata",
            str(self.directory / "data"),
            "--auth",
            "trust",
            "--no-sync",
            "-U",
            "u",
        )

    def command(self) -> Sequence[str]:
        return (
            self.program, "-D", str(self.directory / "data"), "-p", str(self.port), "-h", "127.0.0.1",
            "-k", str(self.directory), "-c", "shared_buffers=32MB",
        )  # fmt: skip

    def answers(self) -> bool:
        ready = (
            self._find("pg_isready"),
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "u",
            "-d",
            "postgres",
        )
        return subprocess.run(ready, check=False).returncode == 0

    @property
    def uri(self) -> str:
        return f"postgresql://u:any@127.0.0.1:{self.port}/postgres"


class Redis(Server):
    PROGRAM, USER = "redis-server", "redis"

    def command(self) -> Sequence[str]:
        return (
            self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory),
            "--appendonly", "yes", "--appendfsync", "always",
        )  # fmt: skip

    @property
    def uri(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class MariaDb(Server):
    PROGRAM, USER = "mariadbd", "mysql"

    def initialize(self) -> None:
        install = self._find("mariadb-install-db")
        data = f"--datadir={self.directory / 'data'}"
        self.run(install, "--no-defaults", data, "--auth-root-authentication-method=normal", "--skip-test-db")
        (self.directory / "init.sql").write_text(
            "CREATE DATABASE IF NOT EXISTS shop;\n"
            "CREATE USER IF NOT EXISTS u@'127.0.0.1' IDENTIFIED BY 'p4ss';\n"
            "GRANT ALL ON shop.* TO u@'127.0.0.1';\n"
        )

    def command(self) -> Sequence[str]:
        here = self.directory
        return (
            self.program, "--no-defaults", f"--datadir={here / 'data'}", f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={here / 'socket'}", f"--pid-file={here / 'pid'}",
            f"--init-file={here / 'init.sql'}", "--innodb-buffer-pool-size=32M", "--skip-name-resolve",
        )  # fmt: skip

    @property
    def uri(self) -> str:
        return f"mysql://u:p4ss@127.0.0.1:{self.port}/shop"


class Mosquitto(Server):
    """A broker of MQTT, which keeps its sessions through restarts by `stop`."""

    PROGRAM, USER = "mosquitto", "mosquitto"

    def initialize(self) -> None:
        (self.directory / "mosquitto.conf").write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {self.directory}/\nmax_queued_messages 0\n"
        )

    def command(self) -> Sequence[str]:
        return self.program, "-c", str(self.directory / "mosquitto.conf")

    def publish(self, messages: Iterable[tuple[str, object]]) -> None:
        """Send values as JSON to topics, in their order, and wait until they are acknowledged."""
        from paho.mqtt.client import Client, MQTTv5
        from paho.mqtt.enums import CallbackAPIVersion

        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        sent = [client.publish(topic, json.dumps(value), qos=1) for topic, value in messages]
        for message in sent:
            message.wait_for_publish(_PATIENCE_S)
        client.disconnect()
        client.loop_stop()
