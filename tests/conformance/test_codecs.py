"""Every codec passes the tests of `penstock.testing`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from penstock.compression.abc import Codec
from penstock.compression.codecs import CODECS
from penstock.compression.codecs.registry import find_codec
from penstock.compression.kernels.bits import SUB_BLOCK, Ints
from penstock.testing import CodecTests

BOUND = 0.5


class TestCodecs(CodecTests):
    @pytest.fixture(params=sorted({*CODECS, "decimal_2"}))
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return find_codec(request.param)


class TestLossyCodec(CodecTests):
    @pytest.fixture
    def codec(self) -> Codec:
        return find_codec(f"quantized_{BOUND}")

    def streams(self) -> Iterator[Ints]:
        """Yield the bits of floats, some of which are kept exactly, and the usual streams."""
        generator = np.random.default_rng(1)
        for width in (4, 8):
            for size in (0, 1, SUB_BLOCK + 1):
                floats = generator.normal(0, 1_000, size).astype(f"f{width}")
                yield floats.view(f"i{width}")
                floats[::97] = np.inf
                floats[3::97] = np.nan
                floats[5::97] = 1e30
                yield floats.view(f"i{width}")
        yield from super().streams()

    def check(self, decoded: Ints, values: Ints) -> None:
        """Check that each float differs by at most the bound, or has the same bits."""
        rounded = decoded != values
        made, wanted = (one[rounded].view(f"f{values.itemsize}").astype(float) for one in (decoded, values))
        assert np.isfinite(wanted).all()
        assert (np.abs(made - wanted) <= BOUND).all()
