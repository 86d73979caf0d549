"""The engine of a recipe, its flags, probes and second models."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sparkwright.app import findings, json_output
from sparkwright.engines import engine
from sparkwright.errors import Exit, Refused
from sparkwright.project import lockfile, recipe
from sparkwright.project.documents import document
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.engine_settings import compute_memory, resolve_settings
from sparkwright.units import GIB
from tests.project.recipes import TOP, load_text, resolve_variables

BEFORE_ENGINES = TOP / "tests/data/today"
#: the eight lines of a recipe before its engine and flags
HEAD = """\
image: ghcr.io/some/image:tag
model:
  id: a/b
  dir: ~/models/b
  mount: /models/b
container:
  name: served
  ports: ["8000:8000"]
"""


def load_recipe(folder: Path, text: str) -> recipe.Recipe:
    return load_text(folder, HEAD + text)


@pytest.mark.parametrize("label", ["bare", "pinned"])
def test_recipe_without_an_engine_resolves_as_before_engines(label: str) -> None:
    """The release before `engine:` wrote names.json from the same recipe."""
    expected: dict[str, Any] = json.loads((BEFORE_ENGINES / "names.json").read_text())[label]
    config = json.loads((TOP / "tests/data/configs/qwen3.5-35b-a3b.json").read_text())
    pinned = {"image": None, "model": None} if label == "bare" else {
        "image": expected["lock"]["image"],
        "model": {"commit": "c" * 40, "config": config, "files": []},
    }  # fmt: skip
    assert label == "bare" or expected["container"]["image"].endswith("a" * 64)
    loaded_recipe = recipe.load(BEFORE_ENGINES, "qwen3.5-35b")
    actual = json.loads(
        json.dumps(recipe.scope(Host("s", "s", recipe=loaded_recipe.name), "ops", loaded_recipe, pinned))
    )
    assert actual["serve"].pop("engine_memory")["share"] == 0.85
    actual["recipe"].pop("container")
    assert actual["recipe"]["model"].pop("page_cache") is None
    assert bool(actual["container"].pop("caches", "")) == (label == "pinned")
    count = len(expected["docker_options"])
    actual["docker_options"], caches = actual["docker_options"][:count], actual["docker_options"][count:]
    assert bool(caches) == (label == "pinned")
    assert all("caches" in json.dumps(cache) or cache[0] == "-e" for cache in caches), caches
    (model,) = actual["container"]["volumes"]
    assert model.endswith(":ro"), "later releases mount the model read-only (docs/decisions/0035)"
    actual["container"]["volumes"] = [model.removesuffix(":ro")]
    actual["docker_options"] = [[word.removesuffix(":ro") for word in words] for words in actual["docker_options"]]
    assert {name: actual[name] for name in expected} == expected
    assert list(actual["recipe"]) == list(expected["recipe"]), "templates may list the keys"


def test_vllm_is_the_default_engine(tmp_path: Path) -> None:
    plain = load_recipe(tmp_path, "vllm:\n  max-num-seqs: 4\n")
    written = load_recipe(tmp_path, "engine: vllm\nvllm:\n  max-num-seqs: 4\n")
    assert plain.file.flags == written.file.flags == {"max-num-seqs": 4}
    assert plain.to_json() == written.to_json()
    assert load_recipe(tmp_path, "engine: vllm\nvllm: {}\n").file.flags == {}
    assert load_recipe(tmp_path, "").file.engine == "vllm"


LLAMA = HEAD.replace("8000:8000", "8000:8080") + "engine: llama_cpp\n"
#: with `model.file` in the fourth line
FILE = LLAMA.replace("  id: a/b\n", '  id: a/b\n  file: "*Q4_K_M*.gguf"\n')
LOCKED = {
    "commit": "c" * 40,
    "config": None,
    "files": [
        {"path": f"m-Q4_K_M-0000{n}-of-00002.gguf", "size_bytes": 10 * 2**30, "sha256": "d" * 64} for n in (1, 2)
    ],
}


def test_container_of_a_llama_cpp_recipe(tmp_path: Path) -> None:
    loaded_recipe = load_text(tmp_path, FILE + "server_key: {env: K}\nllama_cpp: {c: 32768, -np: 2, alias: mine}\n")
    names = resolve_variables(loaded_recipe, {"image": None, "model": LOCKED})
    command = names["container"]["command"]
    assert command[command.index("--model") + 1] == "/models/b/m-Q4_K_M-00001-of-00002.gguf"
    assert command[command.index("--ctx-size") + 1] == "32768"
    assert command[command.index("--port") + 1] == "8080"
    assert command[-2:] == ("--api-key-file", "/run/sparkwright/engine.key")
    assert names["container"]["labels"] == {"sparkwright.engine": "llama_cpp"}
    assert names["served_name"] == names["serve"]["served_name"] == "mine"
    assert names["memory_utilization"] == 0
    assert names["memory_bytes"] == names["serve"]["needs_bytes"] > 20 * 2**30
    assert names["engine"]["name"] == "llama_cpp"
    assert names["recipe"]["llama_cpp"]["parallel"] == 2
    assert "vllm" not in names["recipe"]


def test_command_and_memory_before_the_model_is_pinned(tmp_path: Path) -> None:
    loaded_recipe = load_text(tmp_path, FILE + "llama_cpp: {alias: mine}\n")
    names = resolve_variables(loaded_recipe)
    assert "/models/b/*Q4_K_M*.gguf" in names["container"]["command"]
    assert names["memory_bytes"] == 0
    assert "needs_bytes" not in names["serve"]


OPENAI = "engine: openai\nopenai:\n  served_name: m\n"
MISTAKES = [
    (HEAD + "engine: vlm\nvllm: {}\n", "9: `engine`: 'vlm' is not an engine. Did you mean `vllm`?"),
    (HEAD + "engine: ollama\n", "9: `engine`: 'ollama' is not an engine. Did you mean `llama_cpp`?"),
    (HEAD + "engine: tgi\n", "9: `engine`: 'tgi' is not an engine. Available: llama_cpp, openai, sglang, vllm."),
    (HEAD + "engine: 7\n", "9: `engine` must be a string, got 7"),
    (HEAD + "engine: vllm\n", "9: `engine: vllm` needs its section `vllm`. Add the flags of vLLM under `vllm:`, or `vllm: {}`."),
    (HEAD + "engine: vllm\nllama_cpp: {}\n",
     "10: `llama_cpp` sets flags of llama.cpp, but `engine` is vllm. Write them under `vllm:`, or set `engine: llama_cpp`."),
    (HEAD + "sglang: {}\n", "9: `sglang` sets flags of SGLang, but `engine` is missing. Add `engine: sglang`."),
    (HEAD + "vllm: {}\nsglang: {}\n", "10: `vllm` and `sglang` are both set, but a recipe has only one engine. Remove `sglang:`."),
    (HEAD + "engine: openai\nvllm: {}\nopenai: {}\n",
     "10: `vllm` and `openai` are both set, but a recipe has only one engine. Remove `vllm:`."),
    (HEAD + "vllm:\n  max-num-seqs: 1\n  max_num_seqs: 2\n",
     "11: `vllm.max-num-seqs` and `vllm.max_num_seqs` are the same flag, max-num-seqs."),
    (HEAD + "vllm:\n  model: /x\n", "10: `vllm.model` is set by `model.mount`. Remove it."),
    (HEAD + "vllm:\n  api-key: spk-1234\n", "10: `vllm.api-key`: a key in the flags is not secret"),
    (HEAD + "engine: openai\nopenai: {}\n", "10: `openai` needs `served_name`. Add it."),
    (HEAD + OPENAI + "  max-model-len: 4\n", "12: `openai.max-model-len` is unknown; known keys: command"),
    (HEAD + OPENAI + "  health: health\n", "12: `openai.health` must be a path, such as /health, got 'health'."),
    (HEAD + OPENAI + "  health: //other.host/x\n", "12: `openai.health` must be a path"),
    (HEAD + OPENAI + "  port: 0\n", "12: `openai.port` must be at least 1, got 0."),
    (HEAD + OPENAI + "  memory_gib: much\n", "12: `openai.memory_gib` must be a number, got 'much'."),
    (HEAD + OPENAI + "  command:\n    - a\n    - 7\n", "14: item 2 of `openai.command` must be text (quote a number), got 7."),
    (HEAD + OPENAI + "  command: serve it\n", "12: `openai.command` must be a list of words, got 'serve it'."),
    (HEAD + OPENAI + "  metrics: {path: /m, tokens: t}\n", "12: `openai.metrics.tokens` is unknown; known keys:"),
    (HEAD + OPENAI + "  metrics: {running: t}\n", "12: `openai.metrics` needs `path`."),
    (HEAD + OPENAI + "  key: {}\n", "12: `openai.key` must have exactly one of env and file_flag."),
    (HEAD + "engine: openai\nserver_key: {env: K}\nopenai:\n  served_name: m\n",
     "10: `server_key` cannot be used with OpenAI-compatible server: there is no way to pass the key secretly. Describe one in `openai.key`, or use `publish: loopback`."),
    (HEAD + "engine: openai\nserver_key: {env: K}\nopenai:\n  served_name: m\n  key: {env: K}\n",
     "13: `openai.key.env` needs `container.entrypoint`"),
    (HEAD + "server_key: {env: K}\nvllm:\n  config: x.yaml\n",
     "11: `vllm.config` cannot be used with `server_key`: vLLM reads one configuration file, which holds the key."),
    (LLAMA + "llama_cpp: {}\n",
     "2: `model.file` is missing: llama.cpp serves one GGUF file, or its shards. "
     "Name it, or a pattern that matches all its parts. `file: '*.gguf'` lists the files of the repository."),
    (FILE.replace(".gguf", "") + "llama_cpp: {}\n", "4: `model.file` must end in .gguf, got '*Q4_K_M*'."),
    (FILE.replace("8080", "8000").replace("engine: llama_cpp\n", "vllm: {}\n"),
     "4: `model.file` cannot be used with vLLM, which serves the whole folder."),
    (FILE + "llama_cpp:\n  max-model-len: 8192\n", "12: max-model-len is vLLM's; llama.cpp has ctx-size for the longest context."),
    (FILE + "llama_cpp:\n  gpu-memory-utilization: 0.8\n",
     "12: gpu-memory-utilization is vLLM's; llama.cpp has no flag for the share of memory. Remove it."),
    (FILE + "llama_cpp:\n  m: x.gguf\n", "12: `llama_cpp.model` is set by `model.file`. Remove it."),
    (FILE + "llama_cpp:\n  c: 1\n  ctx-size: 2\n", "13: `llama_cpp.c` and `llama_cpp.ctx-size` are the same flag, ctx-size."),
    (FILE + "llama_cpp:\n  api-key: spk-1234\n", "12: `llama_cpp.api-key`: a key in the flags is not secret"),
    (HEAD + "vllm:\n  ctx-size: 8192\n", "10: ctx-size is llama.cpp's; vLLM has max-model-len for the longest context."),
    (FILE + "platform: ascend\nllama_cpp: {}\n", "11: `platform: ascend` requires `engine: vllm`."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistake_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused) as excinfo:
        load_text(tmp_path, text)
    assert str(excinfo.value).startswith(f"recipes/one.yml:{message}")
    assert excinfo.value.exit == Exit.REFUSED


def test_engine_without_a_part_of_its_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "REQUIRED_FILES", (*engine.REQUIRED_FILES, "missing"))
    with pytest.raises(Refused, match=r"one.yml:9: this release does not support SGLang yet. Supported engines"):
        load_recipe(tmp_path, "engine: sglang\nsglang: {a-flag: 1}\n")


def test_unsupported_expectation_is_an_error_at_its_line(tmp_path: Path) -> None:
    text = FILE + "llama_cpp: {c: 8192, ngl: all}\nexpect:\n  chunked_prefill: disabled\n"
    loaded_recipe = load_text(tmp_path, text)
    (finding,) = resolve_settings(loaded_recipe, {"image": None, "model": LOCKED}).errors
    assert finding.sentence.startswith("llama.cpp has no switch for chunked_prefill: it always processes prompts")
    assert findings.finding_location(loaded_recipe, finding).endswith("one.yml:13")
    reported = load_text(tmp_path, text + "  when_impossible: report\n")
    served = resolve_settings(reported, {"image": None, "model": LOCKED})
    assert not served.errors
    assert served.expected == "any"
    assert "prompts in chunks" in served.note


def test_only_containers_of_vllm_have_no_engine_label() -> None:
    assert engine.get_engine("vllm").labels == {}
    assert engine.from_labels(engine.get_engine("llama_cpp").labels).name == "llama_cpp"


def test_schema_has_the_flags_of_engines_and_allows_others() -> None:
    keys = json_output.schema("recipe")["properties"]
    assert set(engine.TITLES) <= set(keys["engine"]["enum"])
    assert keys["vllm"]["properties"]["enable-prefix-caching"] == {"type": "boolean"}
    assert "fp8" in keys["vllm"]["properties"]["kv-cache-dtype"]["enum"]
    assert keys["vllm"]["additionalProperties"] is True
    assert "model" not in keys["vllm"]["properties"]


def test_location_of_a_flag_in_any_spelling(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, "engine: vllm\nvllm:\n  max_num_seqs: 4\n")
    assert loaded_recipe.where("max-num-seqs").endswith("one.yml:11")
    assert document.load(tmp_path / "recipes/one.yml").where("vllm").endswith("one.yml:10")


def test_lock_has_an_entry_for_each_file_of_a_repository(tmp_path: Path) -> None:
    entry = {"commit": "c" * 40, "files": [{"path": "a-Q4.gguf", "size_bytes": 1, "sha256": "d" * 64}]}
    pattern = "*Q4*.gguf+mmproj*"
    lock = lockfile.Lock().with_model("a/b", "main", entry, pattern).with_model("a/b", "main", {**entry, "files": []})
    assert lock.model("a/b", "main", pattern) != lock.model("a/b", "main")
    assert list(lock.models) == [f"a/b@main:{pattern}", "a/b@main"]
    lock.save(tmp_path)
    assert lockfile.load(tmp_path).model("a/b", "main", pattern) is not None


@pytest.mark.parametrize("name", [item.name for item in engine.list_supported() if item.name != engine.DEFAULT_ENGINE])
def test_documented_example_passes_schema_and_lint(tmp_path: Path, name: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (TOP / "docs/files/recipe.md").read_text(), re.S)
    (example,) = [block for block in blocks if f"engine: {name}\n" in block]
    jsonschema.validate(yaml.safe_load(example), json_output.schema("recipe"))
    settings = resolve_settings(load_text(tmp_path, example), {"image": None, "model": None})
    assert [item.sentence for item in settings.findings if item.severity != "info"] == []


def test_empty_section_has_no_flags(tmp_path: Path) -> None:
    assert load_recipe(tmp_path, "engine: sglang\nsglang:\n").file.flags == {}


TOOLS = "vllm: {enable-auto-tool-choice: true, tool-call-parser: hermes}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expect:\n  probes: [tools]\n", "10: item 1 of `expect.probes`: must be one of tool_call, reasoning"),
        ("expect:\n  probes:\n    - language: xx\n", "`language` must be one of en, de"),
        ("expect:\n  probes:\n    - language: [de]\n", "`language` must be one of en, de"),
        ("expect:\n  probes:\n    - reasoning\n    - tool_call\n", "12: `expect.probes`: tool_call cannot pass without `vllm.enable-auto-tool-choice`."),
        ("task: embed\nexpect:\n  probes: [reasoning]\n", "11: `expect.probes`: reasoning does not apply to `task: embed`."),
        ("engine: openai\nopenai: {served_name: m}\nexpect:\n  probes: [messages]\n", "is not known to serve /v1/messages. Add the path to `openai.paths`, or remove the probe."),
        ("expect:\n  probes: [{embedding_dimension: 5}]\n", "10: `expect.probes`: embedding_dimension does not apply to `task: generate`."),
    ],
)  # fmt: skip
def test_impossible_probe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=r"one\.yml:") as excinfo:
        load_recipe(tmp_path, text)
    assert message in str(excinfo.value)


def test_probes_are_kept_as_written(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, TOOLS + "expect:\n  probes: [tool_call, {language: de}]\n")
    assert loaded_recipe.file.expect.probes == ["tool_call", {"language": "de"}]


VLLM = "vllm: {max-model-len: 4096, speculative-config: {method: dflash, num_speculative_tokens: 8}}\n"
DRAFT = "models: {draft: {id: a/draft, dir: ~/models/draft, mount: /models/draft}}\n"
TOKENIZER = "models: {tokenizer: {id: a/tok, dir: ~/models/tok, mount: /models/tok}}\n"
SGLANG = "engine: sglang\nsglang: {speculative-algorithm: EAGLE3}\n"
LLAMA_TWO = "engine: llama_cpp\nllama_cpp: {spec-type: draft-simple}\n"
GGUF = 'models: {draft: {id: a/draft, dir: ~/models/draft, mount: /models/draft, file: "*Q8_0.gguf"}}\n'


def file_row(path: str, size_bytes: int) -> dict[str, Any]:
    return {"path": path, "size_bytes": size_bytes, "sha256": "e" * 64, "blob_id": None}


def lock_entries(**files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return entries of spark.lock by role; "model" is the recipe's first model."""
    entries = {name: {"commit": name[0] * 40, "config": None, "files": rows} for name, rows in files.items()}
    model = entries.pop("model", {"commit": "c" * 40, "config": None, "files": []})
    return {"image": None, "model": model, "models": entries}


def resolve_recipe(folder: Path, text: str, locked: dict[str, Any]) -> dict[str, Any]:
    return resolve_variables(load_recipe(folder, text), locked)


def value_after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_draft_model_of_vllm(tmp_path: Path) -> None:
    names = resolve_recipe(tmp_path, VLLM + DRAFT, lock_entries(draft=[file_row("w.safetensors", 1)]))
    config = json.loads(value_after(names["container"]["command"], "--speculative-config"))
    assert config == {"method": "dflash", "num_speculative_tokens": 8, "model": "/models/draft"}
    assert "/home/ops/models/draft:/models/draft:ro" in names["container"]["volumes"]
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
def test_engine_flag_of_a_second_model(tmp_path: Path, text: str, flag: str, path: str) -> None:
    assert value_after(resolve_recipe(tmp_path, text, lock_entries())["container"]["command"], flag) == path


def test_draft_model_of_llama_cpp(tmp_path: Path) -> None:
    loaded_recipe = load_gguf_recipe(tmp_path, LLAMA_TWO + GGUF)
    model = [file_row("m-Q4_K_M.gguf", 4 * GIB)]
    alone = compute_memory(loaded_recipe, {**lock_entries(model=model), "models": {}})
    both = compute_memory(loaded_recipe, lock_entries(model=model, draft=[file_row("d-Q8_0.gguf", GIB)]))
    assert both.bytes - alone.bytes == both.weights_bytes - alone.weights_bytes == GIB
    assert "draft model" in [part.name for part in both.parts]
    flags = resolve_settings(loaded_recipe, lock_entries(model=model, draft=[file_row("d-Q8_0.gguf", GIB)])).flags
    assert flags["model-draft"] == "/models/draft/d-Q8_0.gguf"


def load_gguf_recipe(folder: Path, text: str) -> recipe.Recipe:
    model = 'model: {id: a/b, dir: ~/models/b, mount: /models/b, file: "*Q4_K_M.gguf"}\n'
    head = f'image: ghcr.io/some/image:tag\n{model}container: {{name: served, ports: ["8000:8080"]}}\n'
    return load_text(folder, head + text)


def test_draft_weights_do_not_raise_the_share_of_memory(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, VLLM + DRAFT)
    files = {"model": [file_row("a.safetensors", 4 * GIB)], "draft": [file_row("b.safetensors", GIB)]}
    memory = compute_memory(loaded_recipe, lock_entries(**files))
    assert (memory.weights_bytes, memory.bytes) == (5 * GIB, 0)


def test_tokenizer_without_weights_provides_the_chat_template(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, VLLM + TOKENIZER)
    assert "*.safetensors" in loaded_recipe.file.models["tokenizer"].patterns("tokenizer")["ignore"]
    assert loaded_recipe.file.models["tokenizer"].lock_suffix("tokenizer") == "tokenizer"
    template = {"fields": ["enable_thinking"], "tools": True, "switch": "enable_thinking", "thinking": "off"}
    template |= {"system_prompt": "", "dated": False, "keeps_thinking": None}
    locked = lock_entries(tokenizer=[])
    locked["models"]["tokenizer"]["chat"] = {"template": template, "sampling": None}
    flags = {**loaded_recipe.file.flags, "default-chat-template-kwargs": {"reasoning_effort": "low"}}
    all_findings = resolve_settings(with_flags(loaded_recipe, flags), locked).findings
    (finding,) = (finding for finding in all_findings if finding.rule == "template-field-unread")
    assert "it reads enable_thinking" in finding.sentence


def with_flags(original: recipe.Recipe, flags: dict[str, Any]) -> recipe.Recipe:
    return recipe.Recipe(original.name, original.file.with_flags(flags), original.source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm: {}\n" + DRAFT, r"`models.draft` has no effect without `vllm.speculative-config`"),
        (SGLANG.replace("speculative-algorithm: EAGLE3", "") + DRAFT, r"without `sglang.speculative-algorithm`"),
        (VLLM.replace("8}", "8, model: /x}") + DRAFT, r"`vllm.speculative-config.model` and `models.draft` both name"),
        ("vllm: {tokenizer: /x}\n" + TOKENIZER, r"`vllm.tokenizer` and `models.tokenizer` both name a model"),
        (VLLM + GGUF, r"`models.draft.file` cannot be used with vLLM"),
        (VLLM + DRAFT.replace("~/models/draft", "~/models/b"), r"`models.draft.dir` and `model.dir` overlap"),
        (VLLM + DRAFT.replace("~/models/draft", "~/models/b/d"), r"`models.draft.dir` and `model.dir` overlap"),
        (VLLM + DRAFT.replace("mount: /models/draft", "mount: /models/b/d"), r"`models.draft.mount` and `model.mount`"),
        (VLLM + DRAFT.replace("draft: {id", "drafter: {id"), r"models.drafter"),
        ("engine: openai\nopenai: {served_name: x, command: []}\n" + DRAFT, r"`models.draft` cannot be used with"),
    ],
)
def test_invalid_second_model_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as excinfo:
        load_recipe(tmp_path, text)
    assert "one.yml:" in str(excinfo.value)


def test_llama_cpp_needs_the_file_of_a_draft_model(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"`models.draft.file` is required with llama.cpp"):
        load_gguf_recipe(tmp_path, LLAMA_TWO + DRAFT)


def test_new_commit_of_a_draft_model_changes_baseline_and_cache(tmp_path: Path) -> None:
    locked, other_locked = lock_entries(draft=[]), lock_entries(draft=[])
    other_locked["models"]["draft"]["commit"] = "e" * 40
    first, second = (resolve_recipe(tmp_path, VLLM + DRAFT, entries) for entries in (locked, other_locked))
    assert first["serve"]["baseline_key"] != second["serve"]["baseline_key"]
    assert first["engine_memory"]["start"] != second["engine_memory"]["start"]
    assert first["container"]["command"] == second["container"]["command"]


def test_recipe_without_second_models_has_no_keys_for_them(tmp_path: Path) -> None:
    names = resolve_recipe(tmp_path, "vllm: {}\n", {"image": None, "model": None})
    assert "models" not in names["recipe"] and "models" not in names["pinned_model"] and "models" not in names["lock"]
    assert "models" not in names["serve"]["baseline_key"]


@pytest.mark.parametrize(
    ("path", "volumes", "message"),
    [
        ("/models/b/parser.py", [], ""),
        ("/models/b/other.py", [], "is not in the pinned commit"),
        ("/plugins/parser.py", ["~/plugins:/plugins:ro"], "is code that runs in the server, and spark.lock does not pin"),
        ("/models/b/../../plugins/parser.py", ["~/plugins:/plugins:ro"], "spark.lock does not pin it"),
        ("/vllm-workspace/parser.py", ["~/plugins:/plugins:ro"], ""),
    ],
)  # fmt: skip
def test_parser_plugin_must_be_pinned(tmp_path: Path, path: str, volumes: list[str], message: str) -> None:
    loaded_recipe = load_recipe(tmp_path, f"vllm: {{tool-parser-plugin: {path}}}\n")
    container = loaded_recipe.file.container.model_copy(update={"volumes": volumes})
    loaded_recipe = recipe.Recipe(
        loaded_recipe.name, loaded_recipe.file.model_copy(update={"container": container}), loaded_recipe.source
    )
    settings = resolve_settings(loaded_recipe, lock_entries(model=[file_row("parser.py", 100)]))
    sentences = [finding.sentence for finding in settings.errors if finding.rule == "plugin-unpinned"]
    assert [message in sentence for sentence in sentences] == ([True] if message else [])


def test_finding_of_a_download_names_the_key_to_add(tmp_path: Path) -> None:
    text = "vllm: {speculative-config: {method: dflash, model: a/Draft, num_speculative_tokens: 8}, tokenizer: a/tok}\n"
    settings = resolve_settings(load_recipe(tmp_path, text), lock_entries())
    tokenizer, draft = (finding.ways_out[0].text for finding in settings.errors if finding.rule == "downloads")
    assert "tokenizer: {id: a/tok," in tokenizer and "draft: {id: a/Draft, dir: ~/models/draft" in draft
