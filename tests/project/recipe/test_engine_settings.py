"""A recipe names its engine: today's mean vLLM and ask for what they did; what cannot stand is a sentence with its line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.errors import Exit, Refused
from sparkwright.project import lockfile, recipe
from sparkwright.project.documents import document
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.engine_settings import compute_memory, resolve_settings
from sparkwright.units import GIB

TOP = Path(__file__).parents[3]
TODAY = TOP / "tests/data/today"
#: what stands in a recipe before its engine and its flags: 8 lines
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
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes/one.yml").write_text(HEAD + text)
    return recipe.load(folder, "one")


@pytest.mark.parametrize("label", ["bare", "pinned"])
def test_a_recipe_of_before_there_were_engines_asks_for_the_same_container_and_state(label: str) -> None:
    """names.json was written by the release before engines, from this very recipe."""
    expected: dict[str, Any] = json.loads((TODAY / "names.json").read_text())[label]
    digest = "sha256:" + "a" * 64
    config = json.loads((TOP / "tests/data/configs/qwen3.5-35b-a3b.json").read_text())
    pinned = {"image": None, "model": None} if label == "bare" else {
        "image": expected["lock"]["image"],
        "model": {"commit": "c" * 40, "config": config, "files": []},
    }  # fmt: skip
    assert label == "bare" or expected["container"]["image"].endswith(digest)
    loaded_recipe = recipe.load(TODAY, "qwen3.5-35b")
    now = json.loads(json.dumps(recipe.scope(Host("s", "s", recipe=loaded_recipe.name), "ops", loaded_recipe, pinned)))
    assert now["serve"].pop("engine_memory")["share"] == 0.85
    now["recipe"].pop("container")
    assert now["recipe"]["model"].pop("page_cache") is None
    assert bool(now["container"].pop("caches", "")) == (label == "pinned")
    own = len(expected["docker_options"])
    now["docker_options"], caches = now["docker_options"][:own], now["docker_options"][own:]
    assert bool(caches) == (label == "pinned") and all(
        "caches" in json.dumps(cache) or cache[0] == "-e" for cache in caches
    ), caches
    (model,) = now["container"]["volumes"]
    assert model.endswith(":ro"), "the model is mounted read-only since then (docs/decisions/0035)"
    now["container"]["volumes"] = [model.removesuffix(":ro")]
    now["docker_options"] = [[word.removesuffix(":ro") for word in words] for words in now["docker_options"]]
    assert {name: now[name] for name in expected} == expected
    assert list(now["recipe"]) == list(expected["recipe"]), "templates that list its keys see the same"


def test_vllm_may_be_named_and_its_flags_may_be_none(tmp_path: Path) -> None:
    plain = load_recipe(tmp_path, "vllm:\n  max-num-seqs: 4\n")
    written = load_recipe(tmp_path, "engine: vllm\nvllm:\n  max-num-seqs: 4\n")
    assert plain.file.flags == written.file.flags == {"max-num-seqs": 4}
    assert plain.to_json() == written.to_json()
    assert load_recipe(tmp_path, "engine: vllm\nvllm: {}\n").file.flags == {}
    assert load_recipe(tmp_path, "").file.engine == "vllm"


MISTAKES = {
    "engine: vlm\nvllm: {}\n": "9: `engine`: 'vlm' is not an engine. Did you mean `vllm`? Engines: llama_cpp, openai, sglang, vllm.",
    "engine: ollama\n": "9: `engine`: 'ollama' is not an engine. Did you mean `llama_cpp`? Engines: llama_cpp, openai, sglang, vllm.",
    "engine: 7\n": "9: `engine` must be a string, got 7",
    "engine: vllm\n": "9: `engine: vllm` needs its section `vllm`. Add the flags of vLLM under `vllm:`, or `vllm: {}`.",
    "engine: vllm\nllama_cpp: {}\n": "10: `llama_cpp` sets flags of llama.cpp, but `engine` is vllm. "
    "Write them under `vllm:`, or `engine: llama_cpp`.",
    "sglang: {}\n": "9: `sglang` sets flags of SGLang, but `engine` is missing. Add `engine: sglang`.",
    "vllm: {}\nsglang: {}\n": "10: `vllm` and `sglang` are both set, but a recipe has only one engine. Remove `sglang:`.",
    "engine: openai\nvllm: {}\nopenai: {}\n": "10: `vllm` and `openai` are both set, but a recipe has only one engine. Remove `vllm:`.",
    "vllm:\n  max-num-seqs: 1\n  max_num_seqs: 2\n": "11: `vllm.max-num-seqs` and `vllm.max_num_seqs` are the same flag, max-num-seqs.",
    "vllm:\n  model: /x\n": "10: `vllm.model` is set by `model.mount`. Remove it.",
    "vllm:\n  api-key: spk-1234\n": "10: `vllm.api-key`: a key in the flags is not secret",
    "engine: openai\nopenai: {}\n": "10: `openai` needs `served_name`. Add it.",
    "engine: openai\nopenai:\n  served_name: m\n  max-model-len: 4\n": "12: `openai.max-model-len` is unknown; known keys: command",
    "engine: openai\nopenai:\n  served_name: m\n  health: health\n": "12: `openai.health` must be a path, such as /health, got 'health'.",
    "engine: openai\nopenai:\n  served_name: m\n  health: //other.host/x\n": "12: `openai.health` must be a path",
    "engine: openai\nopenai:\n  served_name: m\n  port: 0\n": "12: `openai.port` must be at least 1, got 0.",
    "engine: openai\nopenai:\n  served_name: m\n  memory_gib: much\n": "12: `openai.memory_gib` must be a number, got 'much'.",
    "engine: openai\nopenai:\n  served_name: m\n  command:\n    - a\n    - 7\n": "14: `openai.command.1` must be text (quote a number), got 7.",
    "engine: openai\nopenai:\n  served_name: m\n  command: serve it\n": "12: `openai.command` must be a list of words, got 'serve it'.",
    "engine: openai\nopenai:\n  served_name: m\n  metrics: {path: /m, tokens: t}\n": "12: `openai.metrics.tokens` is unknown; known keys:",
    "engine: openai\nopenai:\n  served_name: m\n  metrics: {running: t}\n": "12: `openai.metrics` needs `path`.",
    "engine: openai\nopenai:\n  served_name: m\n  key: {}\n": "12: `openai.key` must have exactly one of env and file_flag.",
    "engine: openai\nserver_key: {env: K}\nopenai:\n  served_name: m\n": "10: `server_key` cannot be used with OpenAI-compatible server: "
    "there is no way to pass the key secretly. Describe one in `openai.key`, or use `publish: loopback`.",
    "engine: openai\nserver_key: {env: K}\nopenai:\n  served_name: m\n  key: {env: K}\n": "13: `openai.key.env` needs `container.entrypoint`",
    "server_key: {env: K}\nvllm:\n  config: x.yaml\n": "11: `vllm.config` cannot be used with `server_key`: "
    "vLLM reads one configuration file, which holds the key.",
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_about_the_engine_is_one_sentence_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, text)
    assert str(excinfo.value).startswith(f"recipes/one.yml:{message}")
    assert excinfo.value.exit == Exit.REFUSED


@pytest.mark.parametrize("own", [engine.get_engine(name) for name in engine.TITLES], ids=lambda value: value.name)
def test_an_engine_of_which_a_part_is_missing_is_refused_before_anything_is_asked_of_it(
    tmp_path: Path, own: Engine
) -> None:
    if own.served:
        return
    with pytest.raises(Refused, match=rf"one.yml:9: this release does not support {own.title} yet. Supported engines"):
        load_recipe(tmp_path, f"engine: {own.name}\n{own.name}: {{a-flag: 1}}\n")


LLAMA = HEAD.replace("8000:8000", "8000:8080") + "engine: llama_cpp\n"
#: `model.file` in the fourth line
FILE = LLAMA.replace("  id: a/b\n", '  id: a/b\n  file: "*Q4_K_M*.gguf"\n')
LOCKED = {
    "commit": "c" * 40,
    "config": None,
    "files": [
        {"path": f"m-Q4_K_M-0000{n}-of-00002.gguf", "size_bytes": 10 * 2**30, "sha256": "d" * 64} for n in (1, 2)
    ],
}


def load_recipe_text(folder: Path, text: str) -> recipe.Recipe:
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes/one.yml").write_text(text)
    return recipe.load(folder, "one")


def test_a_recipe_of_llama_cpp_becomes_its_container(tmp_path: Path) -> None:
    loaded_recipe = load_recipe_text(
        tmp_path, FILE + "server_key: {env: K}\nllama_cpp: {c: 32768, -np: 2, alias: mine}\n"
    )
    names = recipe.scope(Host("s", "s"), "ops", loaded_recipe, {"image": None, "model": LOCKED})
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


def test_before_it_is_pinned_its_command_names_the_pattern_and_its_memory_is_unknown(tmp_path: Path) -> None:
    loaded_recipe = load_recipe_text(tmp_path, FILE + "llama_cpp: {alias: mine}\n")
    names = recipe.scope(Host("s", "s"), "ops", loaded_recipe, {"image": None, "model": None})
    assert "/models/b/*Q4_K_M*.gguf" in names["container"]["command"]
    assert names["memory_bytes"] == 0
    assert "needs_bytes" not in names["serve"]


LLAMA_MISTAKES = {
    LLAMA + "llama_cpp: {}\n": "2: `model.file` is missing: llama.cpp serves one GGUF file, or its shards. "
    "Name it, or a pattern that matches all its parts. `file: '*.gguf'` lists the files of the repository.",
    FILE.replace(".gguf", "") + "llama_cpp: {}\n": "4: `model.file` must end in .gguf, got '*Q4_K_M*'.",
    FILE
    + "llama_cpp:\n  max-model-len: 8192\n": "12: max-model-len is vLLM's; llama.cpp has ctx-size for the longest context.",
    FILE + "llama_cpp:\n  gpu-memory-utilization: 0.8\n": "12: gpu-memory-utilization is vLLM's; "
    "llama.cpp has no flag for the share of memory. Remove it.",
    FILE + "llama_cpp:\n  m: x.gguf\n": "12: `llama_cpp.model` is set by `model.file`. Remove it.",
    FILE
    + "llama_cpp:\n  c: 1\n  ctx-size: 2\n": "13: `llama_cpp.c` and `llama_cpp.ctx-size` are the same flag, ctx-size.",
    FILE + "llama_cpp:\n  api-key: spk-1234\n": "12: `llama_cpp.api-key`: a key in the flags is not secret",
    HEAD + "vllm:\n  ctx-size: 8192\n": "10: ctx-size is llama.cpp's; vLLM has max-model-len for the longest context.",
    FILE + "platform: ascend\nllama_cpp: {}\n": "11: `platform: ascend` requires `engine: vllm`.",
}


@pytest.mark.parametrize(("text", "message"), LLAMA_MISTAKES.items(), ids=range(len(LLAMA_MISTAKES)))
def test_a_mistake_in_a_recipe_of_llama_cpp_is_one_sentence_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused) as excinfo:
        load_recipe_text(tmp_path, text)
    assert str(excinfo.value).startswith(f"recipes/one.yml:{message}")


def test_what_an_engine_cannot_be_asked_is_an_error_at_the_expectation(tmp_path: Path) -> None:
    from sparkwright.app import findings
    from sparkwright.project.recipe.engine_settings import resolve_settings

    text = FILE + "llama_cpp: {c: 8192, ngl: all}\nexpect:\n  chunked_prefill: disabled\n"
    loaded_recipe = load_recipe_text(tmp_path, text)
    (finding,) = resolve_settings(loaded_recipe, {"image": None, "model": LOCKED}).errors
    assert finding.sentence.startswith("llama.cpp has no switch for chunked_prefill: it always processes prompts")
    assert findings.finding_location(loaded_recipe, finding).endswith("one.yml:13")
    reported = load_recipe_text(tmp_path, text + "  when_impossible: report\n")
    served = resolve_settings(reported, {"image": None, "model": LOCKED})
    assert not served.errors
    assert served.expected == "any"
    assert "prompts in chunks" in served.note


def test_a_container_of_vllm_carries_no_label_of_its_engine_and_that_of_another_one_does() -> None:
    assert engine.get_engine("vllm").labels == {}
    assert engine.from_labels(engine.get_engine("llama_cpp").labels).name == "llama_cpp"


def test_the_schema_knows_the_flags_of_an_engine_and_takes_others() -> None:
    from sparkwright.app import json_output

    keys = json_output.schema("recipe")["properties"]
    assert set(engine.TITLES) <= set(keys["engine"]["enum"])
    assert keys["vllm"]["properties"]["enable-prefix-caching"] == {"type": "boolean"}
    assert "fp8" in keys["vllm"]["properties"]["kv-cache-dtype"]["enum"]
    assert keys["vllm"]["additionalProperties"] is True
    assert "model" not in keys["vllm"]["properties"]


def test_the_place_of_a_flag_is_its_line_however_it_is_spelled(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, "engine: vllm\nvllm:\n  max_num_seqs: 4\n")
    assert loaded_recipe.where("max-num-seqs").endswith("one.yml:11")
    assert document.load(tmp_path / "recipes/one.yml").where("vllm").endswith("one.yml:10")


def test_a_single_file_is_for_an_engine_that_serves_one(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    text = HEAD.replace("  id: a/b\n", '  id: a/b\n  file: "*Q4_K_M*.gguf"\n')
    (tmp_path / "recipes/one.yml").write_text(f"{text}vllm: {{}}\n")
    with pytest.raises(
        Refused, match="one.yml:4: `model.file` cannot be used with vLLM, which serves the whole folder."
    ):
        recipe.load(tmp_path, "one")


def test_two_files_of_one_repository_are_two_entries_of_the_lock() -> None:
    entry = {"commit": "c" * 40, "files": [{"path": "a-Q4.gguf", "size_bytes": 1, "sha256": "d" * 64}]}
    lock = (
        lockfile.Lock().with_model("a/b", "main", entry, "*Q4*.gguf").with_model("a/b", "main", {**entry, "files": []})
    )
    assert lock.model("a/b", "main", "*Q4*.gguf") != lock.model("a/b", "main")
    assert list(lock.models) == ["a/b@main:*Q4*.gguf", "a/b@main"]


def test_a_lock_with_a_file_in_its_key_is_read_again(tmp_path: Path) -> None:
    entry = {"commit": "c" * 40, "files": [{"path": "a-Q4.gguf", "size_bytes": 1, "sha256": "d" * 64}]}
    lockfile.Lock().with_model("a/b", "main", entry, "*Q4*.gguf+mmproj*").save(tmp_path)
    assert lockfile.load(tmp_path).model("a/b", "main", "*Q4*.gguf+mmproj*") is not None


@pytest.mark.parametrize("name", [item.name for item in engine.list_served() if item.name != engine.DEFAULT_ENGINE])
def test_the_annotated_example_of_an_engine_loads_and_passes_lint(tmp_path: Path, name: str) -> None:
    import jsonschema
    import yaml

    from sparkwright.app import json_output
    from sparkwright.project.recipe.engine_settings import resolve_settings

    blocks = re.findall(r"```yaml\n(.*?)```", (TOP / "docs/files/recipe.md").read_text(), re.S)
    (example,) = [block for block in blocks if f"engine: {name}\n" in block]
    jsonschema.validate(yaml.safe_load(example), json_output.schema("recipe"))
    findings = resolve_settings(load_recipe_text(tmp_path, example), {"image": None, "model": None}).findings
    assert [item.sentence for item in findings if item.severity != "info"] == []


def test_a_section_without_content_has_no_flags(tmp_path: Path) -> None:
    assert load_recipe(tmp_path, "engine: sglang\nsglang:\n").file.flags == {}


# Probes in a recipe: what no server for the task can answer, or not without a flag that is missing, is refused with its line.


TOOLS = "vllm: {enable-auto-tool-choice: true, tool-call-parser: hermes}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expect:\n  probes: [tools]\n", "10: `expect.probes.0`: must be one of tool_call, reasoning"),
        ("expect:\n  probes:\n    - language: xx\n", "`language` must be one of en, de"),
        ("expect:\n  probes:\n    - language: [de]\n", "`language` must be one of en, de"),
        ("expect:\n  probes:\n    - reasoning\n    - tool_call\n", "12: `expect.probes`: tool_call cannot pass without `vllm.enable-auto-tool-choice`."),
        ("task: embed\nexpect:\n  probes: [reasoning]\n", "11: `expect.probes`: reasoning does not apply to `task: embed`."),
        ("engine: openai\nopenai: {served_name: m}\nexpect:\n  probes: [messages]\n", "is not known to serve /v1/messages. Add the path to `openai.paths`, or remove the probe."),
        ("expect:\n  probes: [{embedding_dimension: 5}]\n", "10: `expect.probes`: embedding_dimension does not apply to `task: generate`."),
    ],
)  # fmt: skip
def test_a_probe_that_cannot_pass_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=r"one\.yml:") as excinfo:
        load_recipe(tmp_path, text)
    assert message in str(excinfo.value)


def test_probes_are_kept_as_the_recipe_writes_them(tmp_path: Path) -> None:
    found = load_recipe(tmp_path, TOOLS + "expect:\n  probes: [tool_call, {language: de}]\n")
    assert found.file.expect.probes == ["tool_call", {"language": "de"}]


# Second models of a recipe: given to the engine by path, mounted read-only, counted, and refused where they can't stand.


VLLM = "vllm: {max-model-len: 4096, speculative-config: {method: dflash, num_speculative_tokens: 8}}\n"
DRAFT = "models: {draft: {id: a/draft, dir: ~/models/draft, mount: /models/draft}}\n"
TOKENIZER = "models: {tokenizer: {id: a/tok, dir: ~/models/tok, mount: /models/tok}}\n"
SGLANG = "engine: sglang\nsglang: {speculative-algorithm: EAGLE3}\n"
LLAMA_TWO = "engine: llama_cpp\nllama_cpp: {spec-type: draft-simple}\n"
GGUF = 'models: {draft: {id: a/draft, dir: ~/models/draft, mount: /models/draft, file: "*Q8_0.gguf"}}\n'


def file_row(path: str, size_bytes: int) -> dict[str, Any]:
    return {"path": path, "size_bytes": size_bytes, "sha256": "e" * 64, "blob_id": None}


def lock_entries(**files: list[dict[str, Any]]) -> dict[str, Any]:
    """The lock's entries, by role; "model" is the recipe's own."""
    entries = {name: {"commit": name[0] * 40, "config": None, "files": rows} for name, rows in files.items()}
    model = entries.pop("model", {"commit": "c" * 40, "config": None, "files": []})
    return {"image": None, "model": model, "models": entries}


def resolve_names(folder: Path, text: str, locked: dict[str, Any]) -> dict[str, Any]:
    return recipe.scope(Host("spark1", "spark1", home="/home/me"), "me", load_recipe(folder, text), locked)


def value_after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_vllm_gets_the_path_of_its_drafter_inside_the_flag_and_the_folder_is_mounted_read_only(tmp_path: Path) -> None:
    names = resolve_names(tmp_path, VLLM + DRAFT, lock_entries(draft=[file_row("w.safetensors", 1)]))
    config = json.loads(value_after(names["container"]["command"], "--speculative-config"))
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
    assert value_after(resolve_names(tmp_path, text, lock_entries())["container"]["command"], flag) == path


def test_llama_cpp_gets_the_pinned_file_and_its_weights_count(tmp_path: Path) -> None:
    text = LLAMA_TWO + GGUF
    value = load_gguf_recipe(tmp_path, text)
    model = [file_row("m-Q4_K_M.gguf", 4 * GIB)]
    alone = compute_memory(value, {**lock_entries(model=model), "models": {}})
    both = compute_memory(value, lock_entries(model=model, draft=[file_row("d-Q8_0.gguf", GIB)]))
    assert both.bytes - alone.bytes == both.weights_bytes - alone.weights_bytes == GIB
    assert "draft model" in [part.name for part in both.parts]
    flags = resolve_settings(value, lock_entries(model=model, draft=[file_row("d-Q8_0.gguf", GIB)])).flags
    assert flags["model-draft"] == "/models/draft/d-Q8_0.gguf"


def load_gguf_recipe(folder: Path, text: str) -> recipe.Recipe:
    (folder / "recipes").mkdir()
    head = (
        'image: ghcr.io/some/image:tag\nmodel: {id: a/b, dir: ~/models/b, mount: /models/b, file: "*Q4_K_M.gguf"}\n'
        'container: {name: served, ports: ["8000:8080"]}\n'
    )
    (folder / "recipes/one.yml").write_text(head + text)
    return recipe.load(folder, "one")


def test_inside_a_share_the_weights_of_a_drafter_only_leave_less_for_the_cache(tmp_path: Path) -> None:
    value = load_recipe(tmp_path, VLLM + DRAFT)
    memory = compute_memory(
        value, lock_entries(model=[file_row("a.safetensors", 4 * GIB)], draft=[file_row("b.safetensors", GIB)])
    )
    assert (memory.weights_bytes, memory.bytes) == (5 * GIB, 0)


def test_of_a_tokenizer_no_weights_are_downloaded_and_its_template_is_the_server_s(tmp_path: Path) -> None:
    value = load_recipe(tmp_path, VLLM + TOKENIZER)
    assert "*.safetensors" in value.file.models["tokenizer"].patterns("tokenizer")["ignore"]
    assert value.file.models["tokenizer"].lock_suffix("tokenizer") == "tokenizer"
    template = {"fields": ["enable_thinking"], "tools": True, "switch": "enable_thinking", "thinking": "off"}
    template |= {"system_prompt": "", "dated": False, "keeps_thinking": None}
    locked = lock_entries(tokenizer=[])
    locked["models"]["tokenizer"]["chat"] = {"template": template, "sampling": None}
    flags = {**value.file.flags, "default-chat-template-kwargs": {"reasoning_effort": "low"}}
    (need,) = (
        finding
        for finding in resolve_settings(with_flags(value, flags), locked).findings
        if finding.rule == "template-field-unread"
    )
    assert "it reads enable_thinking" in need.sentence


def with_flags(original: recipe.Recipe, flags: dict[str, Any]) -> recipe.Recipe:
    return recipe.Recipe(original.name, original.file.with_flags(flags), original.source)


@pytest.mark.parametrize(
    ("text", "why"),
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
def test_what_cannot_stand_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as excinfo:
        load_recipe(tmp_path, text)
    assert "one.yml:" in str(excinfo.value)


def test_llama_cpp_takes_no_tokenizer_and_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"`models.draft.file` is required with llama.cpp"):
        load_gguf_recipe(tmp_path, LLAMA_TWO + DRAFT)


def test_another_commit_of_a_drafter_compiles_anew_and_is_another_baseline(tmp_path: Path) -> None:
    value, other = lock_entries(draft=[]), lock_entries(draft=[])
    other["models"]["draft"]["commit"] = "e" * 40
    first, second = (resolve_names(tmp_path, VLLM + DRAFT, locked) for locked in (value, other))
    assert first["serve"]["baseline_key"] != second["serve"]["baseline_key"]
    assert first["engine_memory"]["start"] != second["engine_memory"]["start"]
    assert first["container"]["command"] == second["container"]["command"]


def test_a_recipe_without_second_models_says_nothing_of_them(tmp_path: Path) -> None:
    names = resolve_names(tmp_path, "vllm: {}\n", {"image": None, "model": None})
    assert "models" not in names["recipe"] and "models" not in names["pinned_model"] and "models" not in names["lock"]
    assert "models" not in names["serve"]["baseline_key"]


@pytest.mark.parametrize(
    ("path", "volumes", "why"),
    [
        ("/models/b/parser.py", [], ""),
        ("/models/b/other.py", [], "is not in the pinned commit"),
        ("/plugins/parser.py", ["~/plugins:/plugins:ro"], "is code that runs in the server, and spark.lock does not pin"),
        ("/models/b/../../plugins/parser.py", ["~/plugins:/plugins:ro"], "spark.lock does not pin it"),
        ("/vllm-workspace/parser.py", ["~/plugins:/plugins:ro"], ""),
    ],
)  # fmt: skip
def test_a_parser_s_file_is_pinned_or_refused(tmp_path: Path, path: str, volumes: list[str], why: str) -> None:
    value = load_recipe(tmp_path, f"vllm: {{tool-parser-plugin: {path}}}\n")
    box = value.file.container.model_copy(update={"volumes": volumes})
    value = recipe.Recipe(value.name, value.file.model_copy(update={"container": box}), value.source)
    served = resolve_settings(value, lock_entries(model=[file_row("parser.py", 100)]))
    sentences = [finding.sentence for finding in served.errors if finding.rule == "plugin-unpinned"]
    assert [why in sentence for sentence in sentences] == ([True] if why else [])


def test_a_model_that_would_be_downloaded_gets_the_key_to_write(tmp_path: Path) -> None:
    text = "vllm: {speculative-config: {method: dflash, model: a/Draft, num_speculative_tokens: 8}, tokenizer: a/tok}\n"
    served = resolve_settings(load_recipe(tmp_path, text), lock_entries())
    ways = [finding.ways_out[0].text for finding in served.errors if finding.rule == "downloads"]
    assert ["tokenizer: {id: a/tok," in ways[0], "draft: {id: a/Draft, dir: ~/models/draft" in ways[1]] == [True, True]
