"""Every codec passes the tests of `penstock.testing`."""

from __future__ import annotations

import pytest

from penstock.compression.abc import Codec
from penstock.compression.codecs import CODECS
from penstock.compression.codecs.registry import find_codec
from penstock.testing import CodecTests

NAMES = sorted({name for name in CODECS if name != "constant"} | {"quantized_0.5", "decimal_2"})
LOSSY = {"quantized_0.5"}


class TestCodecs(CodecTests):
    @pytest.fixture(params=[name for name in NAMES if name not in LOSSY])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return find_codec(request.param)
