"""The `docker run` command of a recipe, and the client settings."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.vllm import flags
from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.protocol import expressions
from tests.project.recipes import TOP, load_text, render_script, resolve_variables

DIGEST = "sha256:" + "ab" * 32
LOCKED = {"image": {"digest": DIGEST}, "model": None}
SHIPPED = (TOP / "recipes/qwen3.5-35b.yml").read_text()

QWEN = f"""docker run -d --name qwen35 --restart unless-stopped --gpus all --ipc private --shm-size 1gb -p 127.0.0.1:8000:8000
  -v /home/ops/models/qwen35-35b-hf:/models/qwen35:ro vllm/vllm-openai:v0.32.0@{DIGEST}
  --model /models/qwen35 --served-model-name qwen3.5-35b --max-model-len 131072 --gpu-memory-utilization 0.85
  --enable-prefix-caching --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder
  --kv-cache-dtype fp8 --max-num-seqs 8 --max-num-batched-tokens 4096"""

QWEN_200K = f"""docker run -d --name qwen35 --restart unless-stopped --gpus all --ipc private --shm-size 1gb -p 127.0.0.1:8000:8000
  -v /home/ops/models/qwen35-35b-hf:/models/qwen35:ro vllm/vllm-openai:v0.32.0@{DIGEST}
  --model /models/qwen35 --served-model-name qwen3.5-35b --max-model-len 200000 --gpu-memory-utilization 0.85
  --kv-cache-dtype fp8 --max-num-batched-tokens 4096 --enable-prefix-caching
  --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder"""


def render_command(loaded_recipe: recipe.Recipe, **host: Any) -> list[str]:
    """Return the words of the `docker run` command. host: fields of the host."""
    script = render_script(resolve_variables(loaded_recipe, LOCKED, **host))
    return shlex.split(script[script.index("docker run") :].replace("\\\n", " "))


@pytest.mark.parametrize(("name", "expected"), [("qwen3.5-35b", QWEN), ("qwen3.5-35b-200k", QWEN_200K)])
def test_command_of_a_shipped_recipe(name: str, expected: str) -> None:
    assert render_command(recipe.load(TOP, name)) == expected.split()


@pytest.mark.parametrize("name", [name for name in recipe.names(TOP) if recipe.load(TOP, name).split is None])
def test_shipped_recipe_sets_its_memory(name: str) -> None:
    """The share, or without such a flag the context and the layers, which the engine would otherwise shrink to fit."""
    expected = {
        "vllm": {"--gpu-memory-utilization"},
        "sglang": {"--mem-fraction-static"},
        "llama_cpp": {"--ctx-size", "--n-gpu-layers"},
    }
    loaded_recipe = recipe.load(TOP, name)
    assert expected[loaded_recipe.engine.name] <= set(render_command(loaded_recipe))


def test_host_may_have_another_port_and_home() -> None:
    words = render_command(recipe.load(TOP, "qwen3.5-35b"), serve_port=8001, home="/srv/ops")
    assert words[words.index("-p") + 1] == "127.0.0.1:8001:8000"
    assert words[words.index("-v") + 1].startswith("/srv/ops/models/")


def load_with_line(tmp_path: Path, line: str) -> recipe.Recipe:
    """Load the shipped recipe with a line instead of its `publish`."""
    text = SHIPPED.replace("publish: loopback\n", "").replace("vllm:  ", f"{line}\nvllm:  ")
    return load_text(tmp_path, text)


def test_server_key_is_mounted_and_does_not_change_the_baseline(tmp_path: Path) -> None:
    loaded_recipe, plain = load_with_line(tmp_path, "server_key: {env: SPARK_KEY}"), recipe.load(TOP, "qwen3.5-35b")
    words = render_command(loaded_recipe)
    mount = "/home/ops/.local/state/sparkwright/server_keys/qwen35.yaml:/run/sparkwright/engine.yaml:ro"
    assert mount in words
    assert words[-2:] == ["--config", "/run/sparkwright/engine.yaml"]
    baseline_keys = [resolve_variables(item, LOCKED)["serve"]["baseline_key"] for item in (loaded_recipe, plain)]
    assert baseline_keys[0] == baseline_keys[1]


@pytest.mark.parametrize(
    ("line", "port", "open_to_network"),
    [
        ("", "8000:8000", True),
        ("publish: lan", "8000:8000", True),
        ("publish: loopback", "127.0.0.1:8000:8000", False),
        ("server_key: {env: K}", "8000:8000", False),
    ],
)
def test_published_address(tmp_path: Path, line: str, port: str, open_to_network: bool) -> None:
    loaded_recipe = load_with_line(tmp_path, line)
    assert loaded_recipe.open_to_network is open_to_network
    assert resolve_variables(loaded_recipe)["container"]["ports"][0] == port
    moved = resolve_variables(loaded_recipe, serve_port=81)["container"]["ports"][0]
    assert moved == port.replace("8000:8000", "81:8000")


def test_arguments_are_quoted_for_the_shell(tmp_path: Path) -> None:
    template_kwargs = 'default-chat-template-kwargs: {enable_thinking: false, note: "it\'s $HOME"}'
    text = SHIPPED.replace("vllm:  ", f"vllm:\n  {template_kwargs}\n  #")
    text = text.replace('  ports: ["8000:8000"]', '  ports: ["8000:8000"]\n  env: {WHO: "a b; $(id)"}')
    words = render_command(load_text(tmp_path, text))
    assert "WHO=a b; $(id)" in words
    assert '{"enable_thinking":false,"note":"it\'s $HOME"}' in words


def test_flags_of_vllm_become_arguments() -> None:
    flag_values = {"enable-prefix-caching": False, "enforce_eager": True, "served-model-name": ["a", "b"], "seed": None}
    assert flags.argv(flag_values) == ("--no-enable-prefix-caching", "--enforce-eager", "--served-model-name", "a", "b")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("  shm_size: 1gb", "  shmsize: 1gb", "unknown key `shmsize`. Did you mean `shm_size`?"),
        ("image: vllm/vllm-openai:v0.32.0", "imagee: x", "unknown key `imagee`"),
        ("  name: qwen35\n", "  name: qwen 35\n", "`container.name`"),
        ("expect:", 'expect:\n  forbid_log: ["NET/Socket", "NET/(IB"]',
         "item 2 of `expect.forbid_log`: 'NET/(IB' is not a regular expression"),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert before in SHIPPED
    with pytest.raises(Refused, match=r"recipes/one.yml:\d+: ") as excinfo:
        load_text(tmp_path, SHIPPED.replace(before, after))
    assert message in str(excinfo.value)


def test_similar_name_is_suggested_for_an_unknown_recipe() -> None:
    with pytest.raises(Refused, match="no recipe 'qwen3.5-36b'. Did you mean `qwen3.5-35b`"):
        recipe.load(TOP, "qwen3.5-36b")


def test_description_of_several_lines_adds_none_to_the_script(tmp_path: Path) -> None:
    description = 'description: "fast\\ntouch /tmp/owned\\r\\u2028#"'
    text = re.sub("^description: .*", lambda _: description, SHIPPED, flags=re.M)
    loaded_recipe = load_text(tmp_path, text)
    script = render_script(resolve_variables(loaded_recipe, LOCKED))
    assert loaded_recipe.file.description.startswith("fast\n")
    assert all(not line or line.startswith("#") for line in script[: script.index("docker run")].splitlines())


def test_served_name_is_escaped_in_client_settings() -> None:
    odd = 'm", apiKey: "stolen\n'
    thinking = {"default": None, "switch": "", "sentence": ""}
    names: dict[str, Any] = {
        "host": "spark1",
        "url": "http://spark1:8000",
        "model": odd,
        "adapters": [],
        "max_model_len": None,
    }
    names |= {"key": "", "reach": "", "task": "generate", "thinking": thinking}
    text = str(expressions.render((TOP / "templates/client.j2").read_text(), names))
    assert 'model      m", apiKey: "stolen\\n\n' in text
