"""A cluster of two real engines, with the image of tests/real_engine/container."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import engine_beside, own_hub
from tests.real_engine.cluster.pair import RealPair
from tests.real_engine.container import image
from tests.real_engine.container.desk import Shelf, hub_files
from tests.real_engine.engine import Engine


@pytest.fixture
def pair(tmp_path: Path, engine: Engine) -> Iterator[RealPair]:
    """Yield two members without a deployment. Skips if a prerequisite is missing."""
    if why := image.missing_prerequisite():
        pytest.skip(why)
    version = image.vllm_version(engine.venv)
    with (
        image.registry() as registry,
        own_hub.serve_models(hub_files(engine)) as hub,
        engine_beside.second_engine(["--bridge=docker0"]) as (extra, _),
    ):
        shelf = Shelf({version: image.push(registry, engine.venv, version)}, version)
        pair = RealPair(tmp_path, shelf, hub, ("", extra))
        try:
            yield pair
        finally:
            pair.close()
            shelf.remove()
