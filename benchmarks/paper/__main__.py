"""Draw figures of the UpStream paper; see `benchmarks.paper.figures`."""

import argparse
from pathlib import Path

from benchmarks.paper import figures

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="such as 7 or 16; all by default")
    parser.add_argument("--out", type=Path, default=Path("penstock-figures"), help="where the plots go")
    parser.add_argument("--fast", action="store_true", help="fewer points")
    options = parser.parse_args()
    figures.run(options.figures, options.out, options.fast)
