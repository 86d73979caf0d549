"""Refusals of damaged user files never repeat a value from a place for secrets."""

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
RECIPE: dict[str, Any] = {"image": "a/b:c", "model": MODEL, "container": {"name": "box"}}
RECIPES: tuple[dict[str, Any], ...] = (
    {**RECIPE, "server_key": {"env": CANARY}},
    {**RECIPE, "container": {"name": "box", "env": {"A_TOKEN": CANARY}}, "publish": "loopback"},
    {**RECIPE, "vllm": {"api-key": CANARY}},
    {**RECIPE, "server_key": {"command": [CANARY]}},
)


def without_canary(read: Any) -> Any:
    """Return the reader with a check that its refusals do not contain the canary."""

    def check_refusal(case: Any) -> None:
        try:
            read(case)
        except SparkwrightError as error:
            assert CANARY not in str(error), str(error)
            raise

    return check_refusal


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
