"""Which tests may run beside each other: `make test` runs four at a time, for most of them wait for something.

Those that judge times to the millisecond (marked `alone`) come after, one by one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

#: a client that is kept waiting by others would say "inconclusive", and be right
ALONE = ("tests/measure/", "tests/modules/test_smoke_test.py")
#: one Docker Engine, one pretend Spark of each name: never two of these at once
DOCKER = ("tests/bed/", "tests/registry/")
#: long, and each test with a sandbox of its own: handed out one by one, where other files go as a whole
ONE_BY_ONE = ("tests/sandbox/test_deploy.py", "tests/sandbox/test_faults.py", "tests/sandbox/test_restart.py")
#: the whole fault matrix, where a few of its cells go together
EVERY_FAULT = os.environ.get("SPARKWRIGHT_FAULTS") == "all"


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(ALONE):
        item.add_marker(pytest.mark.alone)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The whole fault matrix takes minutes: `make test-faults` asks for it."""
    if EVERY_FAULT:
        return
    left_out = [item for item in items if item.get_closest_marker("whole")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]


def group(nodeid: str) -> str:
    """What runs on one worker, in its order. (xdist's own groups, by mark, do nothing under pytest 9.)"""
    if nodeid.startswith(DOCKER):
        return "docker"
    alone = ("tests/faults/", *ONE_BY_ONE) if EVERY_FAULT else ONE_BY_ONE
    return nodeid if nodeid.startswith(alone) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Grouped(config, log)
