"""The recipes that `init` writes pass lint; the example with a frozen tag gets a warning."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from sparkwright.app.setup import proposal
from sparkwright.app.setup.proposal import HostMemory
from sparkwright.engines import recipe_rules
from sparkwright.engines.budget import StartFacts
from sparkwright.engines.vllm.rules import image_and_model
from sparkwright.errors import Refused
from sparkwright.project import catalogue, recipe, starter
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.recipe.engine_settings import resolve_settings
from sparkwright.units import GIB

TOP = Path(__file__).parent.parent.parent
CONFIGS = TOP / "tests/data/configs"
#: recipe -> the configuration of its model, if tests/data has it
MODELS = {
    **dict.fromkeys(("qwen3.5-35b", "qwen3.5-35b-200k", "qwen3.5-35b-mtp", "qwen3.5-35b-unchunked"), "qwen3.5-35b-a3b"),
    "glm-4.7-flash": "glm-4.7-flash",
    "gpt-oss-120b": "gpt-oss-120b",
    "llama-3.1-8b": "llama-3.1-8b-instruct",
    "bge-reranker-v2-m3": "bge-reranker-v2-m3",
    "gemma-4-26b": "gemma-4-26b-a4b-nvfp4",
    "nemotron-3-super": "nvidia-nemotron-3-super-120b-a12b-nvfp4",
    "qwen3-vl-30b": "qwen3-vl-30b-a3b-instruct",
    "qwen3.6-35b": "qwen3.6-35b-a3b",
    "qwen3.6-35b-nvfp4": "qwen3.6-35b-a3b-nvfp4",
    **dict.fromkeys(("qwen3.8-27b", "qwen3.8-27b-fp8"), "qwen3.8-27b"),
    "qwen3.8-flash-next": "qwen3.8-flash-next",
    "deepseek-v4-flash": "deepseek-v4-flash-0731",
}
#: the format of a release's tag, by engine
RELEASES = {
    "vllm": image_and_model.RELEASE_TAG_PATTERN,
    "llama_cpp": re.compile(r"server-cuda13-b\d+$"),
    "sglang": image_and_model.RELEASE_TAG_PATTERN,
}
FROZEN = "examples/qwen3.5-35b-frozen"
#: recipes without a dated source of their settings
UNDATED = {"bge-reranker-v2-m3", "gpt-oss-120b-gguf", "qwen3-coder-next", "qwen3-embedding-0.6b"}
GB10 = HostMemory(int(119.7 * GIB))
#: recipes whose first start may need more memory than a GB10 has, by the estimate of a compilation; their text says so
TIGHT = {"deepseek-v4-flash", "qwen3.8-flash-next"}


def load_config(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONFIGS / f"{MODELS[name]}.json").read_text()) if name in MODELS else {}
    return data


def list_serious_rules(name: str, version: Version | None, model: dict[str, Any]) -> list[str]:
    findings = resolve_settings(recipe.load(TOP, name), {}, model=model, version=version).findings
    return [item.rule for item in findings if item.severity in ("error", "warning")]


@pytest.mark.parametrize("name", recipe.names(TOP))
def test_shipped_recipe_passes_lint(name: str) -> None:
    loaded_recipe = recipe.load(TOP, name)
    tag = loaded_recipe.image.rpartition(":")[2]
    assert RELEASES[loaded_recipe.engine.name].match(tag), "the tag of a release, which does not move"
    assert list_serious_rules(name, None, {}) == []
    assert list_serious_rules(name, loaded_recipe.engine.advice.version(tag), load_config(name)) == []
    assert not loaded_recipe.open_to_network


def test_lint_warns_of_the_example_with_a_frozen_tag(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    assert recipe.load(tmp_path, FROZEN).image.endswith(":cu130-nightly")
    assert FROZEN not in recipe.names(tmp_path)
    assert list_serious_rules(FROZEN, None, {}) == ["frozen-nightly"]


def test_recipes_of_all_hosts_in_a_new_project_exist(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    for host in Inventory.load(tmp_path).hosts.values():
        assert host.recipe in recipe.names(tmp_path)


@pytest.mark.parametrize("name", recipe.names(TOP))
def test_shipped_recipe_fits_a_gb10(name: str) -> None:
    loaded_recipe = recipe.load(TOP, name)
    entry = catalogue.ENTRIES[name]
    hosts = loaded_recipe.split.hosts if loaded_recipe.split else 1
    start = StartFacts(has_warm_cache=name in TIGHT)
    fit = proposal.evaluate_fit(loaded_recipe, GB10, int(entry.weights_gb * 1e9) // hosts or None, {}, start)
    assert fit.verdict == ("fits" if entry.weights_gb and loaded_recipe.engine.flags.MEMORY else "unknown"), fit.reason
    if name in TIGHT:
        cold = proposal.evaluate_fit(loaded_recipe, GB10, int(entry.weights_gb * 1e9) // hosts, {})
        assert cold.budget is not None and -4 * GIB < cold.budget.left_bytes < 0


@pytest.mark.parametrize("name", [name for name in recipe.names(TOP) if recipe.load(TOP, name).engine.name == "vllm"])
def test_parsers_of_a_shipped_recipe_exist_in_its_release(name: str) -> None:
    loaded_recipe = recipe.load(TOP, name)
    options = json.loads((TOP / f"tests/data/vllm-{loaded_recipe.image.rpartition(':v')[2]}/parser.json").read_text())
    tools = re.findall(r"[\w-]+", options["tool-call-parser"]["metavar"].partition("}")[0])
    flags = loaded_recipe.file.flags
    assert flags.get("tool-call-parser") in (None, *tools)
    assert flags.get("reasoning-parser") in (None, *options["reasoning-parser"]["registered"])


def test_shipped_recipe_has_a_date() -> None:
    assert {name for name in recipe.names(TOP) if not recipe.load(TOP, name).file.date} == UNDATED


@pytest.mark.parametrize(
    ("written", "today", "months"),
    [("2026-03-05", "2026-11-26", 8), ("2026-05-26", "2026-11-26", 6), ("2026-05-28", "2026-11-26", None)],
)
def test_recipe_is_old_after_six_months(written: str, today: str, months: int | None) -> None:
    assert recipe_rules.age_months(written, today) == months
    (finding,) = recipe_rules.AGE_RULES.check(recipe_rules.AgeCase(written, today)) or (None,)
    assert (finding is not None) == (months is not None)
    if finding:
        assert (finding.severity, finding.flag) == ("info", "date") and f"{months} months old" in finding.sentence


def test_invalid_date_is_refused_with_its_line(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    path = tmp_path / "recipes/qwen3.6-35b.yml"
    for wrong in ("2026-02-30", "March", "20260305"):
        path.write_text((TOP / "recipes/qwen3.6-35b.yml").read_text().replace('2026-08-31"\n', f'{wrong}"\n'))
        with pytest.raises(Refused, match=r"qwen3\.6-35b\.yml:\d+: .*YYYY-MM-DD"):
            recipe.load(tmp_path, "qwen3.6-35b")


@pytest.mark.parametrize("name", [*recipe.names(TOP), FROZEN])
def test_promised_context_is_tested(name: str) -> None:
    """A deploy tests the context that the description names (`expect.load`)."""
    loaded_recipe = recipe.load(TOP, name)
    promised = re.search(r"(\d+)k context", loaded_recipe.file.description)
    if promised is not None:
        load = loaded_recipe.file.expect.load
        assert load is not None
        assert load.context >= 0.95 * int(promised[1]) * 1000
