"""The docker run command of a recipe: exactly these words, in this order."""

import json
import re
import shlex
from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.protocol import expressions

TOP = Path(__file__).parents[3]
DIGEST = "sha256:" + "ab" * 32

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


def render_script(name: str, host: Host | None = None) -> str:
    loaded_recipe = recipe.load(TOP, name)
    names = recipe.scope(
        host or Host("spark1", "spark1"), "ops", loaded_recipe, {"image": {"digest": DIGEST}, "model": None}
    )
    return str(expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), names))


def split_command(text: str) -> list[str]:
    return shlex.split(text[text.index("docker run") :].replace("\\\n", " "))


@pytest.mark.parametrize(("name", "expected"), [("qwen3.5-35b", QWEN), ("qwen3.5-35b-200k", QWEN_200K)])
def test_a_shipped_recipe_renders_to_this_docker_run(name: str, expected: str) -> None:
    assert split_command(render_script(name)) == expected.split()


@pytest.mark.parametrize("name", [name for name in recipe.names(TOP) if recipe.load(TOP, name).split is None])
def test_every_shipped_recipe_renders_and_names_what_it_takes_of_memory(name: str) -> None:
    """Its share; without such a flag the context and the layers, which are shrunk to fit otherwise."""
    expected = {
        "vllm": {"--gpu-memory-utilization"},
        "sglang": {"--mem-fraction-static"},
        "llama_cpp": {"--ctx-size", "--n-gpu-layers"},
    }
    assert expected[recipe.load(TOP, name).engine.name] <= set(split_command(render_script(name)))


def test_a_host_may_publish_elsewhere_and_live_elsewhere() -> None:
    arguments = split_command(render_script("qwen3.5-35b", Host("spark1", "spark1", serve_port=8001, home="/srv/ops")))
    assert arguments[arguments.index("-p") + 1] == "127.0.0.1:8001:8000"
    assert arguments[arguments.index("-v") + 1].startswith("/srv/ops/models/")


def load_changed_recipe(tmp_path: Path, text: str) -> recipe.Recipe:
    """The shipped recipe with a line in place of its `publish`."""
    (tmp_path / "recipes").mkdir()
    shipped = (TOP / "recipes/qwen3.5-35b.yml").read_text().replace("publish: loopback\n", "")
    (tmp_path / "recipes/r.yml").write_text(shipped.replace("vllm:  ", f"{text}\nvllm:  "))
    return recipe.load(tmp_path, "r")


def test_a_key_is_a_file_for_the_engine_and_no_part_of_what_measurements_compare(tmp_path: Path) -> None:
    value = load_changed_recipe(tmp_path, "server_key: {env: SPARK_KEY}")
    plain = recipe.load(TOP, "qwen3.5-35b")
    names, before = (
        recipe.scope(Host("s", "s"), "ops", each, {"image": {"digest": DIGEST}, "model": None})
        for each in (value, plain)
    )
    arguments = split_command(str(expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), names)))
    mounted = "/home/ops/.local/state/sparkwright/server_keys/qwen35.yaml:/run/sparkwright/engine.yaml:ro"
    assert mounted in arguments
    assert arguments[-2:] == ["--config", "/run/sparkwright/engine.yaml"]
    assert names["serve"]["baseline_key"] == before["serve"]["baseline_key"]


@pytest.mark.parametrize(
    ("text", "port", "open_to_network"),
    [
        ("", "8000:8000", True),
        ("publish: lan", "8000:8000", True),
        ("publish: loopback", "127.0.0.1:8000:8000", False),
        ("server_key: {env: K}", "8000:8000", False),
    ],
)
def test_publish_says_who_reaches_the_server(tmp_path: Path, text: str, port: str, open_to_network: bool) -> None:
    value = load_changed_recipe(tmp_path, text)
    names = recipe.scope(Host("s", "s"), "ops", value, {})
    assert names["container"]["ports"][0] == port
    assert value.open_to_network is open_to_network
    elsewhere = recipe.scope(Host("s", "s", serve_port=81), "ops", value, {})
    assert elsewhere["container"]["ports"][0] == port.replace("8000:8000", "81:8000")


def test_words_that_a_shell_would_break_arrive_whole(tmp_path: Path) -> None:
    text = (TOP / "recipes/qwen3.5-35b.yml").read_text()
    text += "\n".join(["", ""]).join(["", ""])
    text = text.replace(
        "vllm:  ", 'vllm:\n  default-chat-template-kwargs: {enable_thinking: false, note: "it\'s $HOME"}\n  #'
    )
    text = text.replace('  ports: ["8000:8000"]', '  ports: ["8000:8000"]\n  env: {WHO: "a b; $(id)"}')
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/odd.yml").write_text(text)
    loaded_recipe = recipe.load(tmp_path, "odd")
    names = recipe.scope(Host("s", "s"), "ops", loaded_recipe, {"image": {"digest": DIGEST}, "model": None})
    arguments = split_command(str(expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), names)))
    assert "WHO=a b; $(id)" in arguments
    assert '{"enable_thinking":false,"note":"it\'s $HOME"}' in arguments


def test_switches_lists_and_nothing_become_what_the_engine_reads() -> None:
    from sparkwright.engines.vllm import flags

    flag_values = {"enable-prefix-caching": False, "enforce_eager": True, "served-model-name": ["a", "b"], "seed": None}
    assert flags.argv(flag_values) == ("--no-enable-prefix-caching", "--enforce-eager", "--served-model-name", "a", "b")


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        ("  shm_size: 1gb", "  shmsize: 1gb", "unknown key `shmsize`. Did you mean `shm_size`?"),
        ("image: vllm/vllm-openai:v0.32.0", "imagee: x", "unknown key `imagee`"),
        ("  name: qwen35\n", "  name: qwen 35\n", "`container.name`"),
        ("vllm:  ", "vllm:\n  model: /elsewhere\n  #", "`vllm.model` is set by `model.mount`"),
        (
            "expect:",
            'expect:\n  forbid_log: ["NET/Socket", "NET/(IB"]',
            "`expect.forbid_log.1`: 'NET/(IB' is not a regular expression",
        ),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, result: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (TOP / "recipes/qwen3.5-35b.yml").read_text()
    assert before in text
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/bad.yml").write_text(text.replace(before, after))
    with pytest.raises(Refused, match=r"recipes/bad.yml:\d+: ") as excinfo:
        recipe.load(tmp_path, "bad")
    assert result in str(excinfo.value)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(Refused, match="no recipe 'qwen3.5-36b'. Did you mean `qwen3.5-35b`"):
        recipe.load(TOP, "qwen3.5-36b")


def test_a_description_of_several_lines_adds_none_to_the_script(tmp_path: Path) -> None:
    shipped = (TOP / "recipes/qwen3.5-35b.yml").read_text()
    odd = 'description: "fast\\ntouch /tmp/owned\\r\\u2028#"'
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/r.yml").write_text(re.sub("^description: .*", lambda found: odd, shipped, flags=re.M))
    loaded_recipe = recipe.load(tmp_path, "r")
    names = recipe.scope(Host("s", "s"), "ops", loaded_recipe, {"image": {"digest": DIGEST}, "model": None})
    text = str(expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), names))
    before = text[: text.index("docker run")].splitlines()
    assert loaded_recipe.file.description.startswith("fast\n")
    assert all(not line or line.startswith("#") for line in before)


def test_a_served_name_ends_no_text_of_the_client_settings() -> None:
    odd = 'm", apiKey: "stolen\n'
    names = {
        "host": "spark1",
        "url": "http://spark1:8000",
        "model": odd,
        "adapters": [],
        "max_model_len": None,
        "key": "",
        "reach": "",
        "task": "generate",
        "thinking": {"default": None, "switch": "", "sentence": ""},
    }
    text = str(expressions.render((TOP / "templates/client.j2").read_text(), names))
    assert json.dumps(odd) in text and json.dumps(f"spark1/{odd}") in text
    assert '", apiKey: "stolen' not in text[text.index("# openclaw") :]
