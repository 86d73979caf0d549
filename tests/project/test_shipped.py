"""The recipes that `init` lays down pass our own lint, pinned or not, and stand beside one frozen tag, kept as an example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from sparkwright.engines.vllm.rules import images
from sparkwright.project import recipe, starter
from sparkwright.project.recipe.serving import serving

TOP = Path(__file__).parent.parent.parent
CONFIGS = TOP / "tests/data/configs"
#: recipe -> the configuration of its model, where one is at hand
MODELS = {
    "qwen3.5-35b": "qwen3.5-35b-a3b",
    "qwen3.5-35b-200k": "qwen3.5-35b-a3b",
    "qwen3.5-35b-mtp": "qwen3.5-35b-a3b",
    "qwen3.5-35b-unchunked": "qwen3.5-35b-a3b",
    "glm-4.7-flash": "glm-4.7-flash",
    "gpt-oss-120b": "gpt-oss-20b",
    "llama-3.1-8b": "llama-3.1-8b-instruct",
}
#: how the tag of a release looks, an engine each
RELEASES = {"vllm": images.RELEASE_TAG, "llama_cpp": re.compile(r"server-cuda13-b\d+$")}
FROZEN = "examples/qwen3.5-35b-frozen"


def config(name: str) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((CONFIGS / f"{MODELS[name]}.json").read_text()) if name in MODELS else {}
    return held


def serious(name: str, version: Version | None, model: dict[str, Any]) -> list[str]:
    found = serving(recipe.load(TOP, name), {}, model=model, version=version).findings
    return [one.rule for one in found if one.severity in ("error", "warning")]


@pytest.mark.parametrize("name", recipe.names(TOP))
def test_a_shipped_recipe_passes_lint_before_it_is_pinned_and_after(name: str) -> None:
    wanted = recipe.load(TOP, name)
    tag = wanted.image.rpartition(":")[2]
    assert RELEASES[wanted.engine.name].match(tag), "a release, which stays what it is"
    assert serious(name, None, {}) == []
    assert serious(name, wanted.engine.advice.version(tag), config(name)) == []
    assert not wanted.open_to_network


def test_the_frozen_tag_is_an_example_of_its_own_which_lint_warns_of(tmp_path: Path) -> None:
    starter.lay(tmp_path)
    assert recipe.load(tmp_path, FROZEN).image.endswith(":cu130-nightly")
    assert FROZEN not in recipe.names(tmp_path)
    assert serious(FROZEN, None, {}) == ["frozen-nightly"]


def test_every_hosts_recipe_of_a_new_folder_is_there(tmp_path: Path) -> None:
    from sparkwright.project.inventory.inventory import Inventory

    starter.lay(tmp_path)
    for host in Inventory.load(tmp_path).hosts.values():
        assert host.recipe in recipe.names(tmp_path)


@pytest.mark.parametrize("name", [*recipe.names(TOP), FROZEN])
def test_a_context_that_a_description_promises_is_proved(name: str) -> None:
    """`expect.load`: what a client reads is what a deploy has seen served."""
    wanted = recipe.load(TOP, name)
    promised = re.search(r"(\d+)k context", wanted.file.description)
    load = wanted.file.expect.load
    if promised is None:
        return
    assert load is not None
    assert load.context >= 0.95 * int(promised[1]) * 1000
