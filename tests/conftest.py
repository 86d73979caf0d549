"""Which tests may run beside each other: `make test` runs four at a time, for most of them wait for something.

Those that judge times to the millisecond (marked `alone`) come after, one by one.
"""

from __future__ import annotations

import pytest

#: long, and each test with a sandbox of its own: they are handed out one by one, other files as a whole
ONE_BY_ONE = ("tests/sandbox/test_deploy.py", "tests/sandbox/test_faults.py", "tests/sandbox/test_restart.py")
#: a client that is kept waiting by others would say "inconclusive", and be right
ALONE = ("tests/measure/", "tests/modules/test_smoke_test.py")
#: one Docker Engine, one pretend Spark of each name: never two at once
SHARED = ("bed", "docker")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker(pytest.mark.alone)
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    if any(item.get_closest_marker(name) for name in SHARED):
        return "docker"
    file = item.nodeid.partition("::")[0]
    return item.nodeid if file in ONE_BY_ONE else file
