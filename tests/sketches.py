"""Skip tests of sketches without datasketches, which has no wheel for some versions of Python."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_sketches = pytest.mark.skipif(find_spec("datasketches") is None, reason="needs datasketches")
