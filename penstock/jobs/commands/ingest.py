"""``penstock ingest``: appends files, pipes, sockets and messages to a p-stream."""

from __future__ import annotations

import sys
from signal import Signals
from typing import Annotated

import typer

from penstock.jobs.commands.common import SIGNALLED, DebugOption, errors

__all__ = ["ingest"]


def ingest(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="The p-stream: a path or a URI such as s3://bucket/stream. Created if it is missing.",
            show_default=False,
        ),
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Files, or quoted patterns of files; HOST:PORT of a server that sends lines; "
            "mqtt://HOST:PORT/TOPIC; ws://HOST:PORT/PATH. Leave it out for stdin.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="KIND",
            help="csv, json (one array, or NDJSON), ndjson, parquet, arrow (IPC), stdin, socket, mqtt or "
            "websocket.",
            show_default=False,
        ),
    ] = ...,  # type: ignore[assignment]  # typer's mark for an option that must be given
    line_format: Annotated[
        str,
        typer.Option(
            "--format", help="The format of lines from stdin or a socket, and of messages: csv or ndjson."
        ),
    ] = "ndjson",
    schema: Annotated[
        str | None,
        typer.Option(
            help='The columns, such as "ts timestamp, value double NOT NULL". Without it, a new stream\'s '
            "columns are inferred from the first 8 MiB.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        bool, typer.Option(help="Whether the first line of csv holds the column names.")
    ] = True,
    delimiter: Annotated[str, typer.Option(help="The field delimiter of csv; '\\t' for a tab.")] = ",",
    multiline: Annotated[
        bool, typer.Option("--multiline", help="Allow line breaks in quoted fields of csv.")
    ] = False,
    null: Annotated[
        list[str] | None,
        typer.Option(
            help="Read this unquoted field of csv as null, as well as the empty field. May be repeated.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Wait for more rows in the files, and for new files; connect again to a WebSocket.",
        ),
    ] = False,
    topic_column: Annotated[
        str | None,
        typer.Option(help="The column that gets the topics of MQTT messages.", show_default=False),
    ] = None,
    send: Annotated[
        list[str] | None,
        typer.Option(
            help="A message to send to a WebSocket after each connect, such as a subscription. May be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="What to do with a record that cannot be read: fail, or skip (and count) it.")
    ] = "fail",
    writer: Annotated[
        str, typer.Option(help="The writer's name. Writers that run at the same time need different names.")
    ] = "ingest",
    goal: Annotated[
        str,
        typer.Option(
            help="How columns are compressed: fast, balanced, small, or a bandwidth such as 500MB/s."
        ),
    ] = "balanced",
    interval: Annotated[str, typer.Option(help="How long rows may wait to be committed together.")] = "200ms",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
    debug: DebugOption = False,
) -> None:
    """Append files, stdin, a socket or messages to a p-stream.

    Files are read exactly once. Each commit records how far they were read. If the command ends for any
    reason, even by a kill, run the same command again, and it continues from the last commit. Stdin and
    sockets cannot be read again: if the command is killed, rows that it has read but not committed are lost,
    and rows that are sent again are appended again.

    MQTT messages are acknowledged once their rows are durable. The broker keeps all other messages for a day,
    so a restart of this command loses none. After a crash, some messages may be appended twice. WebSocket
    messages that arrive while the command does not run are lost.

    Ctrl-C and SIGTERM commit what was read, and end the command with exit code 130 or 143.

    \b
    penstock ingest readings --from csv 'logs/*.csv' --follow
    penstock ingest plugs --from csv plugs.csv --schema "ts bigint, load double"
    penstock ingest sensors --from mqtt 'mqtt://localhost/plant/+/temperature' --topic-column topic
    zcat clicks.gz | penstock ingest clicks --from stdin --format ndjson
    """  # noqa: D301 - the escape is the mark of lines that are not joined
    with errors(debug=debug):
        import pyarrow as pa

        from penstock.errors import InvalidUsageError
        from penstock.jobs.ingest import Settings, ingest_sources
        from penstock.jobs.ingest.progress import ProgressLine
        from penstock.jobs.signals import StopSignals

        if on_error not in {"fail", "skip"}:
            raise InvalidUsageError(
                "the value of --on-error is unknown", on_error=on_error, hint="use fail or skip"
            )
        settings = Settings(
            location=path,
            kind=kind,
            sources=tuple(sources or ()),
            line_format=line_format,
            schema=schema,
            header=header,
            delimiter=delimiter.replace("\\t", "\t"),
            multiline=multiline,
            null=tuple(null or ()),
            follow=follow,
            topic_column=topic_column,
            greetings=tuple(send or ()),
            skip_bad=on_error == "skip",
            writer=writer,
            goal=goal,
            interval=interval,
        )
        # With pyarrow's own handlers, a signal would abort the parsers halfway with an error.
        pa.enable_signal_handlers(False)
        with StopSignals() as signals, ProgressLine(quiet=quiet, live=sys.stderr.isatty()) as report:
            ingest_sources(settings, report, lambda: signals.received is not None)
    if signals.received is not None:
        if not quiet:
            typer.echo(f"stopped by {Signals(signals.received).name}", err=True)
        raise typer.Exit(SIGNALLED + signals.received)
