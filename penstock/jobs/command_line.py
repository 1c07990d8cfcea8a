"""The entry point of the script ``penstock``. It prints no traceback if Ctrl-C interrupts the imports."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        from penstock import cli  # this import takes most of the time before a command begins

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)
