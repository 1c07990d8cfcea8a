"""Whether tests of sketches can run: datasketches has no wheel for each Python."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_sketches = pytest.mark.skipif(find_spec("datasketches") is None, reason="needs datasketches")
