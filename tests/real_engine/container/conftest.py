"""The desk shared by all these tests; each test takes over the server of the previous one."""

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
    """A project from which nothing was deployed, with its images only in the registry. Skips if a prerequisite is missing."""
    if why := image.why_not():
        pytest.skip(why)
    try:
        engine = installed()
    except EngineMissing as error:
        pytest.skip(str(error))
    usual = image.version_of(engine.venv)
    venvs = {**dict(others()), usual: engine.venv}
    with image.registry() as registry, own_hub.serve_models(hub_files(engine)) as hub:
        shelf = Shelf({version: image.push(registry, venv, version) for version, venv in venvs.items()}, usual)
        value = Desk(tmp_path_factory.mktemp("desk"), shelf, hub)
        try:
            yield value
        finally:
            value.close()
            shelf.remove()


def others() -> Iterator[tuple[str, Path]]:
    """Return the newest other installed version: that of SPARKWRIGHT_ENGINE_OTHER=/path/to/a/venv, or one in `.engine/`."""
    given = os.environ.get("SPARKWRIGHT_ENGINE_OTHER")
    folders = [Path(given)] if given else sorted(image.ENGINES.glob("*/venv"), reverse=True)
    whole = (venv for venv in folders if any(venv.glob("lib/python3.*/site-packages/vllm-*.dist-info")))
    return ((image.version_of(venv), venv) for venv in itertools.islice(whole, 1))
