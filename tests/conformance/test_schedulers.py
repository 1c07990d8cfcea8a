"""Every scheduler passes the tests of `penstock.testing`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.operators.scheduling.abc import Scheduler
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.testing import SchedulerTests


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("policy", Policy)
class TestSchedulers(SchedulerTests):
    @pytest.fixture
    def new(self, policy: Policy, weighted: bool) -> Callable[[], Scheduler]:
        return lambda: new_scheduler(policy, weighted=weighted)
