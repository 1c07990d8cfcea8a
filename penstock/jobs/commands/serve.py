"""``penstock serve``: offers a database to other processes over Arrow Flight."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.jobs.commands.common import SIGNALLED, DebugOption, errors

if TYPE_CHECKING:
    from penstock.procedures.in_process.open_database import OpenDatabase
    from penstock.procedures.replicas.replica import Replica

__all__ = ["serve"]


def serve(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A Python file that makes the database at its top. The command imports the file, so code "
            'under if __name__ == "__main__": does not run.',
            show_default=False,
        ),
    ],
    location: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The directory of the database. Without it, the tables are lost at the end.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The database, if the file makes several.", show_default=False)
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="The address to listen at. An address that other machines reach needs a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free port.")] = 8815,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the token that clients must send. By default PENSTOCK_TOKEN has it.",
            show_default=False,
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="A certificate chain in PEM, for TLS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The private key of the certificate, in PEM.", show_default=False)
    ] = None,
    commit_interval: Annotated[
        str,
        typer.Option(help="How long a call may wait so that other calls become durable in the same sync."),
    ] = "0ms",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Follow the log of the process that has the database open, until a client lets this one "
            "take over. Until then it only answers reads.",
        ),
    ] = False,
    partitions: Annotated[
        int, typer.Option(min=1, help="The number of threads, each with its own rows.")
    ] = 1,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE=VALUE,...",
            help="A table that is partitioned by ranges: the least value of each partition except the first. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None,
    predictor: Annotated[
        Path | None,
        typer.Option(
            metavar="JSON",
            help="A predictor of transactions, which penstock predict has trained for these partitions.",
            show_default=False,
        ),
    ] = None,
    speculate: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Let partitions run other transactions while transactions over several partitions run; the "
            "value is how conflicts are found: rows, tables, or occ.",
            show_default=False,
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Offer a database to other processes, until Ctrl-C or SIGTERM.

    A call is answered only once it is durable, so no answered call is lost when the server stops. Clients use
    penstock.DatabaseClient.

    \b
    penstock serve bank.py --location bank
    penstock serve bank.py --location bank --host 0.0.0.0 --token-file token \\
        --tls-certificate chain.pem --tls-key key.pem
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        from penstock.errors import InvalidUsageError
        from penstock.jobs.pipelines.databases import database_in
        from penstock.jobs.signals import StopSignals
        from penstock.predicting.models.predictor import Predictor
        from penstock.procedures.partitions.placement import read_ranges
        from penstock.procedures.served.server import DatabaseServer, check_address

        if (tls_certificate is None) != (tls_key is None):
            raise InvalidUsageError("TLS needs both a certificate and its key")
        certificate = None
        if tls_certificate is not None and tls_key is not None:
            certificate = _read(tls_certificate), _read(tls_key)
        token = _read(token_file).decode().strip() if token_file else os.environ.get("PENSTOCK_TOKEN") or None
        database = database_in(file, name)
        if follow and location is None:
            raise InvalidUsageError("a replica follows a database in a directory", hint="set --location")

        def make() -> OpenDatabase | Replica:
            bounds = read_ranges(database.tables, ranges or [])
            stored = None if predictor is None else Predictor.load(predictor)
            if follow and location is not None:
                return database.follow(
                    location,
                    partitions=partitions,
                    ranges=bounds,
                    predictor=stored,
                    speculate=speculate or False,
                )
            return database.open(
                location,
                commit_interval=commit_interval,
                partitions=partitions,
                ranges=bounds,
                predictor=stored,
                speculate=speculate or False,
            )

        # Opening the database stops a server that has it open already, so check the address first.
        check_address(host, port, token)
        with StopSignals() as signals, make() as made:
            server = DatabaseServer(
                made, host, port, token=token, certificate=certificate, commit_interval=commit_interval
            )
            # Exempt all present objects from later garbage collections, because they stay and a full
            # collection takes long.
            gc.collect()
            gc.freeze()
            try:
                typer.echo(f"serving {database.name} at {server.uri}; Ctrl-C ends")
                signals.wait()
            finally:
                ended = server.stop()
                server.database.close()
    typer.echo(f"stopped by {Signals(signals.received or 0).name}", err=True)
    if not ended:
        typer.echo("a client did not read its rows, and got only a part of them", err=True)
        # The server's threads still wait for this client, and the interpreter would wait for these threads.
        sys.stdout.flush()
        os._exit(SIGNALLED + (signals.received or 0))
    raise typer.Exit(SIGNALLED + (signals.received or 0))


def _read(path: Path) -> bytes:
    from penstock.errors import InvalidUsageError

    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidUsageError("cannot read a file", file=path, reason=error.strerror) from error
