"""Settings of clients have the format of their own files, and hold no key."""

import ast
import contextlib
import json
import os
import shlex
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from sparkwright.app.queries import client_formats, client_settings
from sparkwright.app.queries.client_formats import FORMATS, Endpoint

KEYED = Endpoint("http://spark1:8080", "org/qwen's $model", 131_072, 8192, "GATEWAY_KEY", pictures=True)
OPEN = Endpoint("http://spark1:8000", "qwen", None, None, "", pictures=False)


def format_text(name: str, endpoint: Endpoint) -> str:
    return FORMATS[name].render(endpoint)


def test_codex_reads_toml_with_the_responses_api() -> None:
    data = tomllib.loads(format_text("codex", KEYED))
    assert (data["model"], data["model_context_window"]) == (KEYED.model, 131_072)
    assert data["model_providers"][data["model_provider"]] == {
        "name": "spark",
        "base_url": "http://spark1:8080/v1",
        "wire_api": "responses",
        "env_key": "GATEWAY_KEY",
    }


def test_opencode_reads_json_with_the_limits() -> None:
    data = json.loads(format_text("opencode", KEYED))["provider"]["spark"]
    assert data["options"] == {"baseURL": "http://spark1:8080/v1", "apiKey": "{env:GATEWAY_KEY}"}
    assert data["models"][KEYED.model]["limit"] == {"context": 131_072, "output": 8192}


def test_openclaw_reads_json_with_a_provider_and_the_model_of_its_agents() -> None:
    data = json.loads(format_text("openclaw", KEYED))
    provider = data["models"]["providers"]["spark"]
    assert (provider["baseUrl"], provider["apiKey"]) == ("http://spark1:8080/v1", "${GATEWAY_KEY}")
    (model,) = provider["models"]
    assert (model["contextWindow"], model["maxTokens"], model["input"]) == (131_072, 8192, ["text", "image"])
    assert data["agents"]["defaults"]["model"]["primary"] == f"spark/{model['id']}"


@pytest.mark.parametrize(
    ("name", "key"), [("continue", "${{ secrets.GATEWAY_KEY }}"), ("litellm", "os.environ/GATEWAY_KEY")]
)
def test_yaml_is_read_back(name: str, key: str) -> None:
    assert key in json.dumps(yaml.safe_load(format_text(name, KEYED)))


@pytest.mark.parametrize("name", ["claude-code", "aider", "open-webui"])
@pytest.mark.parametrize("endpoint", [KEYED, OPEN], ids=["keyed", "open"])
def test_a_shell_sets_what_was_meant(name: str, endpoint: Endpoint, tmp_path: Path) -> None:
    started = "claude() { env; }; aider() { echo ARGUMENT=$2; env; }; GATEWAY_KEY=sesame; set -a\n"
    result = subprocess.run(
        ["sh", "-c", f"{started}{format_text(name, endpoint)}\nenv"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    if name == "aider" and endpoint.context:
        limits = json.loads((tmp_path / ".aider.spark.json").read_text())[f"openai/{endpoint.model}"]
        assert limits["max_input_tokens"] == endpoint.context
    variables = dict(line.partition("=")[::2] for line in result.stdout.splitlines())
    key = "sesame" if endpoint.key_variable else "none"
    if name == "claude-code":
        assert (variables["ANTHROPIC_BASE_URL"], variables["ANTHROPIC_AUTH_TOKEN"]) == (endpoint.url, key)
        assert variables["ANTHROPIC_MODEL"] == variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == endpoint.model
    else:
        assert f"{endpoint.url}/v1" in variables.values() and variables["OPENAI_API_KEY"] == key


def test_curl_sends_json() -> None:
    words = shlex.split(format_text("curl", KEYED))
    assert json.loads(words[-1])["model"] == KEYED.model
    assert "Authorization: Bearer $GATEWAY_KEY" in words


@pytest.mark.parametrize("endpoint", [KEYED, OPEN], ids=["keyed", "open"])
def test_python_is_a_program(endpoint: Endpoint) -> None:
    ast.parse(format_text("python", endpoint))


@pytest.mark.parametrize("name", FORMATS)
def test_each_names_its_place_and_an_agent_says_what_a_short_context_means(name: str) -> None:
    form = FORMATS[name]
    short = Endpoint("http://spark1:8000", "qwen", 4096, 2048, "", pictures=False, paths=(form.path,))
    lines = client_formats.format_lines(form, short)
    assert form.destination in lines[0] and "spark1:8000" in lines[1]
    assert (len(lines) == 3) == form.is_agent


def test_a_path_that_the_engine_lacks_is_named() -> None:
    last = client_formats.format_lines(FORMATS["claude-code"], OPEN)[-1]
    assert last == "# this client calls /v1/messages, which this server's engine may not support"


def test_an_address_of_a_name_at_which_nothing_answers_is_told_from_one_that_refuses() -> None:
    with contextlib.ExitStack() as stack:
        serving, silent, closed = (stack.enter_context(socket.socket()) for _ in range(3))
        for listener, address in ((serving, "127.0.0.1"), (silent, "127.0.0.2"), (closed, "127.0.0.3")):
            listener.bind((address, 0))
        serving.listen(8)
        silent.listen(0)
        for _ in range(4):  # a full queue takes no more connections, and the kernel answers none
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        addresses = [(socket.AF_INET, listener.getsockname()) for listener in (closed, silent, serving)]
        assert client_settings.probe_addresses(addresses, 1.0) == (["127.0.0.1"], ["127.0.0.2"])
