"""Users' files damaged at random: whatever is said of them, no secret that stands where secrets stand is repeated."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.errors import SparkwrightError
from sparkwright.project import recipe
from sparkwright.project.inventory.inventory import Inventory
from tests.fuzz.harness import damaged_values, feed

CANARY = "canary-1f3a9c77"
MODEL = {"id": "a/b", "dir": "~/b", "mount": "/b"}
PLACES: tuple[dict[str, Any], ...] = (
    {"secrets": {"HF_TOKEN": {"env": CANARY}, "B": {"file": CANARY}}, "vars": {"ollama": "leave"}},
    {"secrets": {"HF_TOKEN": {"command": [CANARY, CANARY]}}, "env": {"HF_TOKEN": "{{ x }}" + CANARY}, "user": "ops"},
    {"vars": {"hub_token": CANARY, "more": {"password": CANARY}}, "env": {"HTTPS_PROXY": f"http://u:{CANARY}@proxy"}},
)
RECIPES: tuple[dict[str, Any], ...] = (
    {"image": "a/b:c", "model": MODEL, "container": {"name": "box"}, "server_key": {"env": CANARY}},
    {"image": "a/b:c", "model": MODEL, "container": {"name": "box", "env": {"A_TOKEN": CANARY}}, "publish": "loopback"},
    {"image": "a/b:c", "model": MODEL, "container": {"name": "box"}, "vllm": {"api-key": CANARY}},
    {"image": "a/b:c", "model": MODEL, "container": {"name": "box"}, "server_key": {"command": [CANARY]}},
)


def without_canary(read: Any) -> Any:
    """The reader, held to not repeating the canary."""

    def held(case: Any) -> None:
        try:
            read(case)
        except SparkwrightError as error:
            assert CANARY not in str(error), str(error)
            raise

    return held


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("hosts", "recipes"):
        (tmp_path / name).mkdir()
    (tmp_path / "hosts/spark1.yml").write_text("{}\n")
    return tmp_path


def write_yaml(path: Path, case: Any) -> None:
    path.write_text(yaml.safe_dump(case), encoding="utf-8", errors="replace")


def test_hosts_and_groups(project: Path) -> None:
    @without_canary
    def read(case: Any) -> None:
        write_yaml(project / "hosts/groups.yml", {"all": case})
        write_yaml(project / "hosts/spark2.yml", case)
        Inventory.load(project)

    feed(read, damaged_values(PLACES))


def test_recipes(project: Path) -> None:
    @without_canary
    def read(case: Any) -> None:
        write_yaml(project / "recipes/r.yml", case)
        loaded_recipe = recipe.load(project, "r")
        if loaded_recipe.file.server_key is None or not loaded_recipe.file.server_key.command:
            loaded_recipe.secrets()
            assert isinstance(loaded_recipe.open_to_network, bool)

    feed(read, damaged_values(RECIPES))
