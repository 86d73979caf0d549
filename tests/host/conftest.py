"""A hub on loopback with the module's FILES."""

from collections.abc import Iterator

import pytest

from tests.modules.loopback_hub import LoopbackHub


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Iterator[LoopbackHub]:
    value = LoopbackHub(dict(request.module.FILES))
    yield value
    value.close()
