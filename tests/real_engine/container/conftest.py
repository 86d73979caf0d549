"""The project shared by all these tests; each test takes over the server of the previous one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import own_hub
from tests.real_engine.container import image
from tests.real_engine.container.desk import Project, Shelf, hub_files
from tests.real_engine.engine import ensure_installed
from tests.real_engine.releases.install import EngineMissing


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Yield a project without a deployment, whose images are only in the registry. Skips if a prerequisite is missing."""
    if why := image.missing_prerequisite():
        pytest.skip(why)
    try:
        engine = ensure_installed()
    except EngineMissing as error:
        pytest.skip(str(error))
    default = image.vllm_version(engine.venv)
    venvs = {**find_other_version(), default: engine.venv}
    with image.registry() as registry, own_hub.serve_models(hub_files(engine)) as hub:
        shelf = Shelf({version: image.push(registry, venv, version) for version, venv in venvs.items()}, default)
        project = Project(tmp_path_factory.mktemp("desk"), shelf, hub)
        try:
            yield project
        finally:
            project.close()
            shelf.remove()


def find_other_version() -> dict[str, Path]:
    """Return the newest other installed version, from SPARKWRIGHT_ENGINE_OTHER=/path/to/a/venv or in `.engine/`, if any."""
    configured = os.environ.get("SPARKWRIGHT_ENGINE_OTHER")
    folders = [Path(configured)] if configured else sorted(image.ENGINES.glob("*/venv"), reverse=True)
    for venv in folders:
        if any(venv.glob("lib/python3.*/site-packages/vllm-*.dist-info")):
            return {image.vllm_version(venv): venv}
    return {}
