"""LoRA adapters of a recipe: arguments for the engine, and checks against the model."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.recipe.engine_settings import compute_memory, resolve_settings
from sparkwright.units import GIB
from tests.project.recipe.test_engine_settings import (
    file_row,
    load_gguf_recipe,
    load_recipe,
    lock_entries,
    resolve_recipe,
    value_after,
)

ADAPTERS = "adapters:\n  - {id: a/sql-lora, name: sql}\n  - {id: a/law-lora, name: law, revision: v2, dir: /data/law}\n"
VLLM = "vllm: {served-model-name: qwen, max-loras: 2}\n"
SGLANG = "engine: sglang\nsglang: {served-model-name: qwen}\n"
LLAMA = "engine: llama_cpp\nllama_cpp: {alias: sql}\n"
GGUF = 'adapters: [{id: a/sql-lora, name: sql, file: "*-f16.gguf"}]\n'
ONE = "adapters: [{id: a/sql-lora, name: sql}]\n"
#: of Qwen3-8B
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
MATRIX_SIZES = {"q_proj": [4096, 4096], "v_proj": [4096, 1024], "o_proj": [4096, 4096], "down_proj": [12288, 4096]}


def adapter_lock(config: dict[str, Any] | None = None, **details: Any) -> dict[str, Any]:
    """Return entries of spark.lock for a recipe with the adapter sql. details: of adapter_config.json and the matrices."""
    entries = lock_entries(**{"adapter sql": [file_row("adapter_model.safetensors", 1000)]})
    entries["model"]["config"] = CONFIG if config is None else config
    defaults = {"base": "a/b", "rank": 16, "extras": [], "layers": 36, "sizes": MATRIX_SIZES}
    entries["models"]["adapter sql"]["adapter"] = {**defaults, **details}
    return entries


def list_findings(folder: Path, text: str, entries: dict[str, Any]) -> list[tuple[str, str, str]]:
    settings = resolve_settings(load_recipe(folder, text), entries)
    return [(row.severity, row.rule, row.sentence) for row in settings.findings if row.rule.startswith("adapter")]


def test_arguments_and_mounts_of_vllm(tmp_path: Path) -> None:
    names = resolve_recipe(tmp_path, VLLM + ADAPTERS, lock_entries())
    words = list(names["container"]["command"])
    index = words.index("--lora-modules")
    assert words[index + 1 : index + 3] == ["sql=/adapters/sql", "law=/adapters/law"] and "--enable-lora" in words
    volumes = names["container"]["volumes"]
    assert "/home/ops/models/adapters/sql:/adapters/sql:ro" in volumes and "/data/law:/adapters/law:ro" in volumes
    assert [model["role"] for model in names["pinned_model"]["models"]] == ["adapter sql", "adapter law"]
    assert names["serve"]["adapters"] == ["sql", "law"]
    assert load_recipe(tmp_path, VLLM + ADAPTERS).served_names == ("qwen", "sql", "law")


def test_sglang_prefixes_adapters_with_the_served_name(tmp_path: Path) -> None:
    names = resolve_recipe(tmp_path, SGLANG + ADAPTERS, lock_entries())
    assert value_after(names["container"]["command"], "--lora-paths") == "sql=/adapters/sql"
    assert names["serve"]["adapters"] == ["qwen:sql", "qwen:law"]


def test_pinned_file_and_memory_of_llama_cpp(tmp_path: Path) -> None:
    loaded_recipe = load_gguf_recipe(tmp_path, LLAMA + GGUF)
    adapter = {"adapter sql": [file_row("sql-lora-f16.gguf", GIB)]}
    entries = lock_entries(model=[file_row("m-Q4_K_M.gguf", 4 * GIB)], **adapter)
    assert resolve_settings(loaded_recipe, entries).flags["lora"] == ["/adapters/sql/sql-lora-f16.gguf"]
    assert (loaded_recipe.adapter_names, loaded_recipe.served_names) == ((), ("sql",))
    alone = compute_memory(loaded_recipe, {**entries, "models": {}})
    assert compute_memory(loaded_recipe, entries).bytes - alone.bytes == GIB


def test_weights_count_within_the_share_of_memory(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, VLLM + ONE)
    adapter = {"adapter sql": [file_row("adapter_model.safetensors", GIB)]}
    entries = lock_entries(model=[file_row("a.safetensors", 4 * GIB)], **adapter)
    assert compute_memory(loaded_recipe, entries).weights_bytes == 5 * GIB


def test_new_commit_changes_the_baseline_but_not_the_command(tmp_path: Path) -> None:
    locked, other_locked = adapter_lock(), adapter_lock()
    other_locked["models"]["adapter sql"]["commit"] = "e" * 40
    first, second = (resolve_recipe(tmp_path, VLLM + ONE, entries) for entries in (locked, other_locked))
    assert first["serve"]["baseline_key"] != second["serve"]["baseline_key"]
    assert first["container"]["command"] == second["container"]["command"]


REFUSED = {
    "two of one name": (VLLM + ADAPTERS.replace("name: law", "name: sql"), "two `adapters` have the name `sql`"),
    "served name of the model": (VLLM.replace("qwen", "[qwen, sql]") + ONE, "`sql` is a served name of the model"),
    "without a name": (VLLM + ONE.replace(", name: sql", ""), "`name` is missing"),
    "invalid name": (VLLM + ONE.replace("name: sql", "name: 'sql=/etc'"), "must be 1 to 64 letters"),
    "invalid hub id": (VLLM + ONE.replace("a/sql-lora", "../x"), "is not a model's name on the hub"),
    "flag of the engine": ("vllm: {lora-modules: [x=/x]}\n" + ONE, "`vllm.lora-modules` and `adapters` both name adapters"),
    "LoRA disabled": ("vllm: {enable-lora: false}\n" + ONE, "`adapters` has no effect with `enable-lora: False`"),
    "file with vLLM": (VLLM + ONE.replace("name: sql", "name: sql, file: x.gguf"), "`adapters.sql.file` cannot be used with vLLM"),
    "folder of the model": (VLLM + ONE.replace("name: sql", "name: sql, dir: ~/models/b"), "`adapters.sql.dir` and `model.dir` overlap"),
    "colon with SGLang": (SGLANG.replace("qwen", "'qwen:8b'") + ONE, "treats what follows a colon in a request's model as the name of an adapter"),
    "described engine": ("engine: openai\nopenai: {served_name: x, command: []}\n" + ONE, "`adapters` cannot be used with"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_adapter_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, text)
    assert message in str(excinfo.value) and "one.yml:" in str(excinfo.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LLAMA.replace("alias: sql", "alias: qwen") + GGUF, "llama.cpp cannot select adapters by name and applies this one to every request"),
        (LLAMA.replace("sql}", "sql, lora-scaled: /x}") + GGUF, "`llama_cpp.lora-scaled` and `adapters` both name"),
        (LLAMA + ONE, "`adapters.sql.file` is required with llama.cpp"),
    ],
)  # fmt: skip
def test_adapter_that_llama_cpp_cannot_serve_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refused) as excinfo:
        load_gguf_recipe(tmp_path, text)
    assert message in str(excinfo.value)


#: details of an adapter, with the severity and a part of its finding
BASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "other inputs": ({"sizes": {"q_proj": [2048, 4096]}}, "error", "its q_proj has 2048 inputs, the model's has 4096"),
    "other outputs": ({"sizes": {"down_proj": [0, 5120]}}, "error", "its down_proj has 5120 outputs"),
    "other heads": ({"sizes": {"v_proj": [4096, 4096]}}, "error", "its v_proj has 4096 outputs, the model's has 1024"),
    "more layers": ({"layers": 40}, "error", "it changes layer 40, but the model has 36"),
    "other family": ({"base": "meta-llama/Llama-3.1-8B-Instruct"}, "error", "a model of another family"),
    "other size": ({"base": "Qwen/Qwen3-14B", "sizes": {}}, "error", "a model of another size"),
    "quantised copy": ({"base": "unsloth/Qwen3-8B-unsloth-bnb-4bit"}, "", ""),
    "same model": ({"base": "Qwen/Qwen3-8B"}, "", ""),
    "local folder": ({"base": "/home/ops/out/Qwen3-8B"}, "", ""),
    "no base": ({"base": ""}, "", ""),
    "other name, same sizes": ({"base": "Qwen/Qwen3-8B-Base"}, "warning", "its matrices have the right sizes"),
    "other name, unknown sizes": ({"base": "me/mine", "sizes": {}}, "warning", "the sizes of its matrices are unknown"),
}


@pytest.mark.parametrize(("details", "severity", "message"), BASES.values(), ids=BASES)
def test_adapter_is_compared_with_the_pinned_model(
    tmp_path: Path, details: dict[str, Any], severity: str, message: str
) -> None:
    loaded_recipe = load_recipe(tmp_path, VLLM + ONE)
    model = loaded_recipe.file.model.model_copy(update={"id": "Qwen/Qwen3-8B-FP8"})
    loaded_recipe = recipe.Recipe(
        loaded_recipe.name, loaded_recipe.file.model_copy(update={"model": model}), loaded_recipe.source
    )
    findings = resolve_settings(loaded_recipe, adapter_lock(**details)).findings
    actual = [(finding.severity, message in finding.sentence) for finding in findings if finding.rule == "adapter-base"]
    assert actual == ([(severity, True)] if severity else [])


def test_unknown_model_yields_no_finding(tmp_path: Path) -> None:
    assert list_findings(tmp_path, VLLM + ONE, adapter_lock({}, sizes={"q_proj": [64, 64]}, layers=200)) == []


@pytest.mark.parametrize("architectures", [7, True, {"a": 1}, [["Qwen3ForCausalLM"]]], ids=repr)
def test_invalid_architecture_yields_no_error(tmp_path: Path, architectures: Any) -> None:
    config = {**CONFIG, "architectures": architectures}
    entries = adapter_lock(config, base="Qwen/Qwen3-8B", sizes={"v_proj": [4096, 64]})
    assert "error" not in [severity for severity, _, _ in list_findings(tmp_path, VLLM + ONE, entries)]


LIMITS = {
    "rank above the default": (VLLM, {"rank": 64}, "error", "rank 64, but max-lora-rank is 16"),
    "rank above the flag": ("vllm: {max-lora-rank: 32}\n", {"rank": 33}, "error", "rank 33, but max-lora-rank is 32"),
    "rank up to the flag": ("vllm: {max-lora-rank: 64}\n", {"rank": 64}, "", ""),
    "SGLang without the flag": (SGLANG, {"rank": 64}, "", ""),
    "rank above SGLang's flag": ("engine: sglang\nsglang: {max-lora-rank: 8}\n", {}, "error", "max-lora-rank is 8"),
    "DoRA": (VLLM, {"extras": ["use_dora"]}, "error", "sets use_dora in adapter_config.json, which vLLM does not support"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "details", "severity", "message"), LIMITS.values(), ids=LIMITS)
def test_adapter_beyond_a_limit_of_the_engine_is_reported(
    tmp_path: Path, text: str, details: dict[str, Any], severity: str, message: str
) -> None:
    findings = list_findings(tmp_path, text + ONE, adapter_lock(**details))
    assert [(level, message in sentence) for level, _, sentence in findings] == ([(severity, True)] if severity else [])


def test_warning_about_more_adapters_than_max_loras(tmp_path: Path) -> None:
    ((severity, rule, sentence),) = list_findings(tmp_path, "vllm: {}\n" + ADAPTERS, lock_entries())
    assert (severity, rule) == ("warning", "adapters-at-once") and "2 adapters, but max-loras is 1" in sentence
