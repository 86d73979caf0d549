"""Second models of a recipe: given to the engine by path, mounted read-only, counted, and refused where they can't stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.engine_settings import served_memory, serving
from sparkwright.units import GIB
from tests.project.test_engine_of_recipe import loaded

VLLM = "vllm: {max-model-len: 4096, speculative-config: {method: dflash, num_speculative_tokens: 8}}\n"
DRAFT = "models: {draft: {id: a/draft, dir: ~/models/draft, mount: /models/draft}}\n"
TOKENIZER = "models: {tokenizer: {id: a/tok, dir: ~/models/tok, mount: /models/tok}}\n"
SGLANG = "engine: sglang\nsglang: {speculative-algorithm: EAGLE3}\n"
LLAMA = "engine: llama_cpp\nllama_cpp: {spec-type: draft-simple}\n"
GGUF = 'models: {draft: {id: a/draft, dir: ~/models/draft, mount: /models/draft, file: "*Q8_0.gguf"}}\n'


def row(path: str, size_bytes: int) -> dict[str, Any]:
    return {"path": path, "size_bytes": size_bytes, "sha256": "e" * 64, "blob_id": None}


def pinned(**files: list[dict[str, Any]]) -> dict[str, Any]:
    """The lock's entries, by role; "model" is the recipe's own."""
    found = {name: {"commit": name[0] * 40, "config": None, "files": rows} for name, rows in files.items()}
    model = found.pop("model", {"commit": "c" * 40, "config": None, "files": []})
    return {"image": None, "model": model, "models": found}


def names_of(folder: Path, text: str, locked: dict[str, Any]) -> dict[str, Any]:
    return recipe.scope(Host("spark1", "spark1", home="/home/me"), "me", loaded(folder, text), locked)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_vllm_gets_the_path_of_its_drafter_inside_the_flag_and_the_folder_is_mounted_read_only(tmp_path: Path) -> None:
    names = names_of(tmp_path, VLLM + DRAFT, pinned(draft=[row("w.safetensors", 1)]))
    config = json.loads(after(names["container"]["command"], "--speculative-config"))
    assert config == {"method": "dflash", "num_speculative_tokens": 8, "model": "/models/draft"}
    assert "/home/me/models/draft:/models/draft:ro" in names["container"]["volumes"]
    assert [(model["role"], model["commit"]) for model in names["pinned_model"]["models"]] == [("draft", "d" * 40)]
    assert ["draft", "d" * 40] in names["serve"]["baseline_key"]["models"]


@pytest.mark.parametrize(
    ("text", "flag", "path"),
    [
        (VLLM + TOKENIZER, "--tokenizer", "/models/tok"),
        (SGLANG + DRAFT, "--speculative-draft-model-path", "/models/draft"),
        (SGLANG + TOKENIZER, "--tokenizer-path", "/models/tok"),
        ('vllm: {speculative-config: \'{"method": "eagle3"}\'}\n' + TOKENIZER, "--tokenizer", "/models/tok"),
    ],
)
def test_each_engine_has_its_own_flag(tmp_path: Path, text: str, flag: str, path: str) -> None:
    assert after(names_of(tmp_path, text, pinned())["container"]["command"], flag) == path


def test_llama_cpp_gets_the_pinned_file_and_its_weights_count(tmp_path: Path) -> None:
    text = LLAMA + GGUF
    value = loaded_gguf(tmp_path, text)
    model = [row("m-Q4_K_M.gguf", 4 * GIB)]
    alone = served_memory(value, {**pinned(model=model), "models": {}})
    both = served_memory(value, pinned(model=model, draft=[row("d-Q8_0.gguf", GIB)]))
    assert both.bytes - alone.bytes == both.weights_bytes - alone.weights_bytes == GIB
    assert "draft model" in [part.name for part in both.parts]
    flags = serving(value, pinned(model=model, draft=[row("d-Q8_0.gguf", GIB)])).flags
    assert flags["model-draft"] == "/models/draft/d-Q8_0.gguf"


def loaded_gguf(folder: Path, text: str) -> recipe.Recipe:
    (folder / "recipes").mkdir()
    head = (
        'image: ghcr.io/some/image:tag\nmodel: {id: a/b, dir: ~/models/b, mount: /models/b, file: "*Q4_K_M.gguf"}\n'
        'container: {name: served, ports: ["8000:8080"]}\n'
    )
    (folder / "recipes/one.yml").write_text(head + text)
    return recipe.load(folder, "one")


def test_inside_a_share_the_weights_of_a_drafter_only_leave_less_for_the_cache(tmp_path: Path) -> None:
    value = loaded(tmp_path, VLLM + DRAFT)
    found = served_memory(value, pinned(model=[row("a.safetensors", 4 * GIB)], draft=[row("b.safetensors", GIB)]))
    assert (found.weights_bytes, found.bytes) == (5 * GIB, 0)


def test_of_a_tokenizer_no_weights_are_downloaded_and_its_template_is_the_server_s(tmp_path: Path) -> None:
    value = loaded(tmp_path, VLLM + TOKENIZER)
    assert "*.safetensors" in value.file.models["tokenizer"].patterns("tokenizer")["ignore"]
    assert value.file.models["tokenizer"].chosen("tokenizer") == "tokenizer"
    template = {"fields": ["enable_thinking"], "tools": True, "switch": "enable_thinking", "thinking": "off"}
    template |= {"system_prompt": "", "dated": False, "keeps_thinking": None}
    locked = pinned(tokenizer=[])
    locked["models"]["tokenizer"]["chat"] = {"template": template, "sampling": None}
    flags = {**value.file.flags, "default-chat-template-kwargs": {"reasoning_effort": "low"}}
    (found,) = (
        finding
        for finding in serving(with_flags(value, flags), locked).findings
        if finding.rule == "template-field-unread"
    )
    assert "it reads enable_thinking" in found.sentence


def with_flags(one: recipe.Recipe, flags: dict[str, Any]) -> recipe.Recipe:
    return recipe.Recipe(one.name, one.file.with_flags(flags), one.source)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm: {}\n" + DRAFT, r"`models.draft` has no effect without `vllm.speculative-config`"),
        (SGLANG.replace("speculative-algorithm: EAGLE3", "") + DRAFT, r"without `sglang.speculative-algorithm`"),
        (VLLM.replace("8}", "8, model: /x}") + DRAFT, r"`vllm.speculative-config.model` and `models.draft` both name"),
        ("vllm: {tokenizer: /x}\n" + TOKENIZER, r"`vllm.tokenizer` and `models.tokenizer` both name a model"),
        (VLLM + GGUF, r"`models.draft.file` cannot be used with vLLM"),
        (VLLM + DRAFT.replace("~/models/draft", "~/models/b"), r"`models.draft.dir` and `model.dir` are one folder"),
        (VLLM + DRAFT.replace("~/models/draft", "~/models/b/d"), r"one lies in the other"),
        (VLLM + DRAFT.replace("mount: /models/draft", "mount: /models/b/d"), r"`models.draft.mount` and `model.mount`"),
        (VLLM + DRAFT.replace("draft: {id", "drafter: {id"), r"models.drafter"),
        ("engine: openai\nopenai: {served_name: x, command: []}\n" + DRAFT, r"`models.draft` cannot be used with"),
    ],
)
def test_what_cannot_stand_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        loaded(tmp_path, text)
    assert "one.yml:" in str(caught.value)


def test_llama_cpp_takes_no_tokenizer_and_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"`models.draft.file` is missing with llama.cpp"):
        loaded_gguf(tmp_path, LLAMA + DRAFT)


def test_another_commit_of_a_drafter_compiles_anew_and_is_another_baseline(tmp_path: Path) -> None:
    value, other = pinned(draft=[]), pinned(draft=[])
    other["models"]["draft"]["commit"] = "e" * 40
    first, second = (names_of(tmp_path, VLLM + DRAFT, locked) for locked in (value, other))
    assert first["serve"]["baseline_key"] != second["serve"]["baseline_key"]
    assert first["engine_memory"]["start"] != second["engine_memory"]["start"]
    assert first["container"]["command"] == second["container"]["command"]


def test_a_recipe_without_second_models_says_nothing_of_them(tmp_path: Path) -> None:
    names = names_of(tmp_path, "vllm: {}\n", {"image": None, "model": None})
    assert "models" not in names["recipe"] and "models" not in names["pinned_model"] and "models" not in names["lock"]
    assert "models" not in names["serve"]["baseline_key"]


@pytest.mark.parametrize(
    ("path", "volumes", "why"),
    [
        ("/models/b/parser.py", [], ""),
        ("/models/b/other.py", [], "is not a file of the pinned commit"),
        (
            "/plugins/parser.py",
            ["~/plugins:/plugins:ro"],
            "is code that runs in the server, and spark.lock does not pin",
        ),
        ("/models/b/../../plugins/parser.py", ["~/plugins:/plugins:ro"], "spark.lock does not pin it"),
        ("/vllm-workspace/parser.py", ["~/plugins:/plugins:ro"], ""),
    ],
)
def test_a_parser_s_file_is_pinned_or_refused(tmp_path: Path, path: str, volumes: list[str], why: str) -> None:
    value = loaded(tmp_path, f"vllm: {{tool-parser-plugin: {path}}}\n")
    box = value.file.container.model_copy(update={"volumes": volumes})
    value = recipe.Recipe(value.name, value.file.model_copy(update={"container": box}), value.source)
    served = serving(value, pinned(model=[row("parser.py", 100)]))
    found = [finding.sentence for finding in served.errors if finding.rule == "plugin-unpinned"]
    assert [why in sentence for sentence in found] == ([True] if why else [])


def test_a_model_that_would_be_downloaded_gets_the_key_to_write(tmp_path: Path) -> None:
    text = "vllm: {speculative-config: {method: dflash, model: a/Draft, num_speculative_tokens: 8}, tokenizer: a/tok}\n"
    served = serving(loaded(tmp_path, text), pinned())
    ways = [finding.ways_out[0].text for finding in served.errors if finding.rule == "downloads"]
    assert ["tokenizer: {id: a/tok," in ways[0], "draft: {id: a/Draft, dir: ~/models/draft" in ways[1]] == [True, True]
