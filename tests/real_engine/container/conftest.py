"""The desk of all these tests, with what is served on it passed on from one to the next."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import own_hub
from tests.real_engine.container import image
from tests.real_engine.container.desk import Desk, Shelf, hub_files
from tests.real_engine.engine import EngineMissing, installed


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A project that nothing was deployed from, its images in the registry only. Skips, and says what is missing."""
    if why := image.why_not():
        pytest.skip(why)
    try:
        engine = installed()
    except EngineMissing as error:
        pytest.skip(str(error))
    usual = image.version_of(engine.venv)
    venvs = {**dict(others()), usual: engine.venv}
    with image.registry() as registry, own_hub.serving(hub_files(engine)) as hub:
        shelf = Shelf({version: image.push(registry, venv, version) for version, venv in venvs.items()}, usual)
        value = Desk(tmp_path_factory.mktemp("desk"), shelf, hub)
        try:
            yield value
        finally:
            value.close()
            shelf.remove()


def others() -> Iterator[tuple[str, Path]]:
    """Another version that is installed, the newest: SPARKWRIGHT_ENGINE_OTHER=/path/to/a/venv, else one of `.engine/`."""
    given = os.environ.get("SPARKWRIGHT_ENGINE_OTHER")
    folders = [Path(given)] if given else sorted(image.ENGINES.glob("*/venv"), reverse=True)
    whole = (venv for venv in folders if any(venv.glob("lib/python3.*/site-packages/vllm-*.dist-info")))
    return ((image.version_of(venv), venv) for venv in itertools.islice(whole, 1))
