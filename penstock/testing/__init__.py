"""Conformance tests for custom file systems, codecs, schedulers, working copies and tables.

Each class holds the tests of one interface. Inherit from it in a test file, and define the fixture that it
names::

    class TestMyFiles(FilesTests):
        @pytest.fixture
        def files(self, tmp_path):
            return MyFiles(tmp_path)

Penstock tests its own implementations in this way. The classes need pytest.
"""

from penstock.testing.codecs import CodecTests
from penstock.testing.files import FilesTests
from penstock.testing.schedulers import SchedulerTests
from penstock.testing.state import StateTests
from penstock.testing.tables import TableTests

__all__ = ["CodecTests", "FilesTests", "SchedulerTests", "StateTests", "TableTests"]
