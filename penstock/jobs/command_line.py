"""The entry point of the script ``penstock``. It is quiet if Ctrl-C interrupts the command's imports."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        from penstock.cli import main as run_command  # most of the time before a command begins

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)
