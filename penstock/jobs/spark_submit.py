"""The script for ``spark-submit``: ``spark-submit [options] spark_submit.py PIPELINE [--set a.b=c]...``.

The script does the same as ``penstock run``, in the session that ``spark-submit`` configures. See
docs/how-to/spark-submit.md.
"""

from __future__ import annotations

import sys

from penstock.cli import app

if __name__ == "__main__":
    app(["run", *sys.argv[1:]])
