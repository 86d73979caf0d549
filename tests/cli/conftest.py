"""A new user's project."""

from pathlib import Path

import pytest

from sparkwright.project import starter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("lab")
    starter.write_starter(project)
    return project
