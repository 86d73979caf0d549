from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.cluster.members import Group, running_group


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Group]:
    with running_group(tmp_path) as value:
        yield value


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Group]:
    with running_group(tmp_path, world=3) as value:
        yield value
