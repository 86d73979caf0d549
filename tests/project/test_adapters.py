"""LoRA adapters of a recipe: given to the engine by name and path, checked against the model, and refused where they can't be served."""

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
    resolve_names,
    value_after,
)

ADAPTERS = "adapters:\n  - {id: a/sql-lora, name: sql}\n  - {id: a/law-lora, name: law, revision: v2, dir: /data/law}\n"
VLLM = "vllm: {served-model-name: qwen, max-loras: 2}\n"
SGLANG = "engine: sglang\nsglang: {served-model-name: qwen}\n"
LLAMA = "engine: llama_cpp\nllama_cpp: {alias: sql}\n"
GGUF = 'adapters: [{id: a/sql-lora, name: sql, file: "*-f16.gguf"}]\n'
#: of Qwen3-8B
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
FITS = {"q_proj": [4096, 4096], "v_proj": [4096, 1024], "o_proj": [4096, 4096], "down_proj": [12288, 4096]}


def adapter_lock(config: dict[str, Any] | None = None, **details: Any) -> dict[str, Any]:
    """The lock's entries of a recipe with the adapter sql."""
    entries = lock_entries(**{"adapter sql": [file_row("adapter_model.safetensors", 1000)]})
    entries["model"]["config"] = CONFIG if config is None else config
    defaults = {"base": "a/b", "rank": 16, "extras": [], "layers": 36, "sizes": FITS}
    entries["models"]["adapter sql"]["adapter"] = {**defaults, **details}
    return entries


def find_adapter_findings(folder: Path, text: str, entries: dict[str, Any]) -> list[tuple[str, str, str]]:
    settings = resolve_settings(load_recipe(folder, text), entries)
    return [(row.severity, row.rule, row.sentence) for row in settings.findings if row.rule.startswith("adapter")]


ONE = "adapters: [{id: a/sql-lora, name: sql}]\n"


def test_vllm_gets_each_by_name_and_path_and_their_folders_are_mounted_read_only(tmp_path: Path) -> None:
    names = resolve_names(tmp_path, VLLM + ADAPTERS, lock_entries())
    words = list(names["container"]["command"])
    at = words.index("--lora-modules")
    assert words[at + 1 : at + 3] == ["sql=/adapters/sql", "law=/adapters/law"] and "--enable-lora" in words
    binds = names["container"]["volumes"]
    assert "/home/me/models/adapters/sql:/adapters/sql:ro" in binds and "/data/law:/adapters/law:ro" in binds
    assert [model["role"] for model in names["pinned_model"]["models"]] == ["adapter sql", "adapter law"]
    assert names["serve"]["adapters"] == ["sql", "law"]
    assert load_recipe(tmp_path, VLLM + ADAPTERS).served_names == ("qwen", "sql", "law")


def test_sglang_serves_them_behind_the_served_name(tmp_path: Path) -> None:
    names = resolve_names(tmp_path, SGLANG + ADAPTERS, lock_entries())
    assert value_after(names["container"]["command"], "--lora-paths") == "sql=/adapters/sql"
    assert names["serve"]["adapters"] == ["qwen:sql", "qwen:law"]


def test_llama_cpp_gets_the_pinned_file_of_the_one_that_every_request_gets(tmp_path: Path) -> None:
    value = load_gguf_recipe(tmp_path, LLAMA + GGUF)
    entries = lock_entries(
        model=[file_row("m-Q4_K_M.gguf", 4 * GIB)], **{"adapter sql": [file_row("sql-lora-f16.gguf", GIB)]}
    )
    assert resolve_settings(value, entries).flags["lora"] == ["/adapters/sql/sql-lora-f16.gguf"]
    assert (value.adapter_names, value.served_names) == ((), ("sql",))
    alone = compute_memory(value, {**entries, "models": {}})
    assert compute_memory(value, entries).bytes - alone.bytes == GIB


def test_inside_a_share_their_weights_only_leave_less_for_the_cache(tmp_path: Path) -> None:
    value = load_recipe(tmp_path, VLLM + ONE)
    entries = lock_entries(
        model=[file_row("a.safetensors", 4 * GIB)], **{"adapter sql": [file_row("adapter_model.safetensors", GIB)]}
    )
    assert compute_memory(value, entries).weights_bytes == 5 * GIB


def test_another_commit_of_one_is_another_baseline_of_the_same_command(tmp_path: Path) -> None:
    value, other = adapter_lock(), adapter_lock()
    other["models"]["adapter sql"]["commit"] = "e" * 40
    first, second = (resolve_names(tmp_path, VLLM + ONE, entries) for entries in (value, other))
    assert first["serve"]["baseline_key"] != second["serve"]["baseline_key"]
    assert first["container"]["command"] == second["container"]["command"]


REFUSED = {
    "the same name": (VLLM + ADAPTERS.replace("name: law", "name: sql"), "two `adapters` have the name `sql`"),
    "a served name": (VLLM.replace("qwen", "[qwen, sql]") + ONE, "`sql` is a served name of the model"),
    "no name": (VLLM + ONE.replace(", name: sql", ""), "`name` is missing"),
    "another spelling": (VLLM + ONE.replace("name: sql", "name: 'sql=/etc'"), "must be 1 to 64 letters"),
    "no hub id": (VLLM + ONE.replace("a/sql-lora", "../x"), "is not a model's name on the hub"),
    "the flag too": ("vllm: {lora-modules: [x=/x]}\n" + ONE, "`vllm.lora-modules` and `adapters` both name adapters"),
    "switched off": ("vllm: {enable-lora: false}\n" + ONE, "`adapters` has no effect with `enable-lora: False`"),
    "a file": (VLLM + ONE.replace("name: sql", "name: sql, file: x.gguf"), "`adapters.sql.file` cannot be used with vLLM"),
    "one folder": (VLLM + ONE.replace("name: sql", "name: sql, dir: ~/models/b"), "`adapters.sql.dir` and `model.dir` overlap"),
    "a colon": (SGLANG.replace("qwen", "'qwen:8b'") + ONE, "takes what follows a colon in a request's model for the name of an adapter"),
    "described": ("engine: openai\nopenai: {served_name: x, command: []}\n" + ONE, "`adapters` cannot be used with"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_stand_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, text)
    assert why in str(excinfo.value) and "one.yml:" in str(excinfo.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LLAMA.replace("alias: sql", "alias: qwen") + GGUF, "llama.cpp cannot select adapters by name and applies this one to every request"),
        (LLAMA.replace("sql}", "sql, lora-scaled: /x}") + GGUF, "`llama_cpp.lora-scaled` and `adapters` both name"),
        (LLAMA + ONE, "`adapters.sql.file` is required with llama.cpp"),
    ],
)  # fmt: skip
def test_llama_cpp_serves_one_adapter_as_the_whole_server(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Refused) as excinfo:
        load_gguf_recipe(tmp_path, text)
    assert why in str(excinfo.value)


#: by what an adapter says of itself, and the model's name: the severity and the words of its finding
BASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "another width": ({"sizes": {"q_proj": [2048, 4096]}}, "error", "its q_proj has 2048 inputs, the model's has 4096"),
    "another width of outputs": ({"sizes": {"down_proj": [0, 5120]}}, "error", "its down_proj has 5120 outputs"),
    "other heads": ({"sizes": {"v_proj": [4096, 4096]}}, "error", "its v_proj has 4096 outputs, the model's has 1024"),
    "more layers": ({"layers": 40}, "error", "it changes layer 40, but the model has 36"),
    "another family": ({"base": "meta-llama/Llama-3.1-8B-Instruct"}, "error", "a model of another family"),
    "another size": ({"base": "Qwen/Qwen3-14B", "sizes": {}}, "error", "a model of another size"),
    "a quantised copy": ({"base": "unsloth/Qwen3-8B-unsloth-bnb-4bit"}, "", ""),
    "its own": ({"base": "Qwen/Qwen3-8B"}, "", ""),
    "a folder": ({"base": "/home/me/out/Qwen3-8B"}, "", ""),
    "nothing": ({"base": ""}, "", ""),
    "another name": ({"base": "Qwen/Qwen3-8B-Base"}, "warning", "its matrices have the right sizes"),
    "unread": ({"base": "me/mine", "sizes": {}}, "warning", "the sizes of its matrices are unknown"),
}


@pytest.mark.parametrize(("about", "severity", "words"), BASES.values(), ids=BASES)
def test_an_adapter_is_held_against_the_pinned_model(
    tmp_path: Path, about: dict[str, Any], severity: str, words: str
) -> None:
    value = load_recipe(tmp_path, VLLM + ONE)
    model = value.file.model.model_copy(update={"id": "Qwen/Qwen3-8B-FP8"})
    value = recipe.Recipe(value.name, value.file.model_copy(update={"model": model}), value.source)
    found = [row for row in resolve_settings(value, adapter_lock(**about)).findings if row.rule == "adapter-base"]
    assert [row.severity for row in found] == ([severity] if severity else [])
    assert all(words in row.sentence for row in found)


def test_of_a_model_that_the_lock_does_not_know_nothing_is_claimed(tmp_path: Path) -> None:
    assert find_adapter_findings(tmp_path, VLLM + ONE, adapter_lock({}, sizes={"q_proj": [64, 64]}, layers=200)) == []


@pytest.mark.parametrize("architectures", [7, True, {"a": 1}, [["Qwen3ForCausalLM"]]], ids=repr)
def test_an_architecture_that_is_no_name_decides_nothing(tmp_path: Path, architectures: Any) -> None:
    entries = adapter_lock(
        {**CONFIG, "architectures": architectures}, base="Qwen/Qwen3-8B", sizes={"v_proj": [4096, 64]}
    )
    assert "error" not in [severity for severity, _, _ in find_adapter_findings(tmp_path, VLLM + ONE, entries)]


LIMITS = {
    "a rank above the default": (VLLM, {"rank": 64}, "error", "rank 64, but max-lora-rank is 16"),
    "a rank above the flag": ("vllm: {max-lora-rank: 32}\n", {"rank": 33}, "error", "rank 33, but max-lora-rank is 32"),
    "a rank that fits": ("vllm: {max-lora-rank: 64}\n", {"rank": 64}, "", ""),
    "SGLang takes it from the adapters": (SGLANG, {"rank": 64}, "", ""),
    "a rank above SGLang's flag": ("engine: sglang\nsglang: {max-lora-rank: 8}\n", {}, "error", "max-lora-rank is 8"),
    "DoRA": (VLLM, {"extras": ["use_dora"]}, "error", "sets use_dora in adapter_config.json, which vLLM does not support"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "about", "severity", "words"), LIMITS.values(), ids=LIMITS)
def test_limits_of_the_engine(tmp_path: Path, text: str, about: dict[str, Any], severity: str, words: str) -> None:
    all_findings = find_adapter_findings(tmp_path, text + ONE, adapter_lock(**about))
    assert [row[0] for row in all_findings] == ([severity] if severity else [])
    assert all(words in row[2] for row in all_findings)


def test_more_adapters_than_places_in_a_batch_wait_for_one_another(tmp_path: Path) -> None:
    ((severity, rule, sentence),) = find_adapter_findings(tmp_path, "vllm: {}\n" + ADAPTERS, lock_entries())
    assert (severity, rule) == ("warning", "adapters-at-once") and "2 adapters, but max-loras is 1" in sentence
