"""Clients' settings in the format of their own files, without a key."""

import ast
import contextlib
import dataclasses
import json
import shlex
import socket
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from sparkwright.app.queries import client_formats, client_settings
from sparkwright.app.queries.client_formats import FORMATS, Endpoint
from sparkwright.engines import engine as engines
from tests import commands

KEYED = Endpoint("http://spark1:8080", "org/qwen's $model", 131_072, 8192, "GATEWAY_KEY", pictures=True)
OPEN = Endpoint("http://spark1:8000", "qwen", None, None, "", pictures=False)


def format_text(name: str, endpoint: Endpoint) -> str:
    return FORMATS[name].render(endpoint)


def test_codex_settings_are_toml_for_the_responses_api() -> None:
    data = tomllib.loads(format_text("codex", KEYED))
    assert (data["model"], data["model_context_window"]) == (KEYED.model, 131_072)
    server = {"name": "spark", "base_url": "http://spark1:8080/v1"}
    api = {"wire_api": "responses", "env_key": "GATEWAY_KEY"}
    assert data["model_providers"][data["model_provider"]] == {**server, **api}


def test_opencode_settings_are_json_with_limits() -> None:
    data = json.loads(format_text("opencode", KEYED))["provider"]["spark"]
    assert data["options"] == {"baseURL": "http://spark1:8080/v1", "apiKey": "{env:GATEWAY_KEY}"}
    assert data["models"][KEYED.model]["limit"] == {"context": 131_072, "output": 8192}


def test_openclaw_settings_are_json_with_a_provider_and_a_default_model() -> None:
    data = json.loads(format_text("openclaw", KEYED))
    provider = data["models"]["providers"]["spark"]
    assert (provider["baseUrl"], provider["apiKey"]) == ("http://spark1:8080/v1", "${GATEWAY_KEY}")
    (model,) = provider["models"]
    assert (model["contextWindow"], model["maxTokens"], model["input"]) == (131_072, 8192, ["text", "image"])
    assert data["agents"]["defaults"]["model"]["primary"] == f"spark/{model['id']}"


@pytest.mark.parametrize(
    ("name", "key"), [("continue", "${{ secrets.GATEWAY_KEY }}"), ("litellm", "os.environ/GATEWAY_KEY")]
)
def test_yaml_settings_name_the_key_variable(name: str, key: str) -> None:
    assert key in json.dumps(yaml.safe_load(format_text(name, KEYED)))


@pytest.mark.parametrize("name", ["claude-code", "aider", "open-webui"])
@pytest.mark.parametrize("endpoint", [KEYED, OPEN], ids=["keyed", "open"])
def test_shell_settings_set_the_variables(name: str, endpoint: Endpoint, tmp_path: Path) -> None:
    setup = "claude() { env; }; aider() { echo ARGUMENT=$2; env; }; GATEWAY_KEY=sesame; set -a\n"
    script = f"{setup}{format_text(name, endpoint)}\nenv"
    result = commands.run_process("sh", "-c", script, cwd=tmp_path, HOME=str(tmp_path))
    assert result.returncode == 0, result.stderr
    if name == "aider" and endpoint.context_length:
        limits = json.loads((tmp_path / ".aider.spark.json").read_text())[f"openai/{endpoint.model}"]
        assert limits["max_input_tokens"] == endpoint.context_length
    variables = dict(line.partition("=")[::2] for line in result.stdout.splitlines())
    key = "sesame" if endpoint.key_variable else "none"
    if name == "claude-code":
        assert (variables["ANTHROPIC_BASE_URL"], variables["ANTHROPIC_AUTH_TOKEN"]) == (endpoint.url, key)
        assert variables["ANTHROPIC_MODEL"] == variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == endpoint.model
    else:
        assert f"{endpoint.url}/v1" in variables.values() and variables["OPENAI_API_KEY"] == key


def test_open_webui_settings_are_values_without_quotes() -> None:
    """Quotes would be part of the value in an env file of `docker run`, and in the fields of the settings page."""
    assert format_text("open-webui", OPEN).splitlines()[1:2] == ["OPENAI_API_KEY=none"]
    assert format_text("open-webui", KEYED).splitlines()[1:2] == ["OPENAI_API_KEY=$GATEWAY_KEY"]


def test_curl_command_sends_json_with_the_key() -> None:
    words = shlex.split(format_text("curl", KEYED))
    assert json.loads(words[-1])["model"] == KEYED.model
    assert "Authorization: Bearer $GATEWAY_KEY" in words


@pytest.mark.parametrize("endpoint", [KEYED, OPEN], ids=["keyed", "open"])
def test_python_settings_are_a_valid_program(endpoint: Endpoint) -> None:
    ast.parse(format_text("python", endpoint))


@pytest.mark.parametrize("name", FORMATS)
def test_first_lines_name_destination_and_server_and_agents_warn_of_a_short_context(name: str) -> None:
    client = FORMATS[name]
    endpoint = Endpoint("http://spark1:8000", "qwen", 4096, 2048, "", pictures=False)
    lines = client_formats.format_lines(client, endpoint)
    assert client.destination in lines[0] and "spark1:8000" in lines[1]
    assert (len(lines) == 3) == client.is_agent


@pytest.mark.parametrize(
    ("engine", "version", "missing"),
    [
        ("vllm", "0.33.0", []),
        ("vllm", "", []),
        ("vllm", "0.12.0", ["count_tokens, which vLLM serves from 0.17.1 on; this is 0.12.0"]),
        ("vllm", "0.10.2", ["messages, which vLLM serves from 0.11.2 on; this is 0.10.2",
                            "count_tokens, which vLLM serves from 0.17.1 on; this is 0.10.2"]),
        ("openai", "", ["messages, which OpenAI-compatible server is not known to serve",
                        "count_tokens, which OpenAI-compatible server is not known to serve"]),
    ],
)  # fmt: skip
def test_api_paths_that_the_release_does_not_serve_are_named(engine: str, version: str, missing: list[str]) -> None:
    release = Version(version) if version else None
    endpoint = dataclasses.replace(OPEN, engine=engines.get_engine(engine), engine_version=release)
    lines = client_formats.format_lines(FORMATS["claude-code"], endpoint)
    assert [line.rpartition("/")[2] for line in lines if line.startswith("# this client calls")] == missing


def test_silent_address_is_distinguished_from_one_that_refuses() -> None:
    with contextlib.ExitStack() as stack:
        serving, silent, closed = (stack.enter_context(socket.socket()) for _ in range(3))
        for listener, address in ((serving, "127.0.0.1"), (silent, "127.0.0.2"), (closed, "127.0.0.3")):
            listener.bind((address, 0))
        serving.listen(8)
        silent.listen(0)
        for _ in range(4):  # the kernel does not answer connections beyond a full queue
            queued = stack.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(silent.getsockname())
        addresses = [(socket.AF_INET, listener.getsockname()) for listener in (closed, silent, serving)]
        assert client_settings.probe_addresses(addresses, 1.0) == (["127.0.0.1"], ["127.0.0.2"])


def test_help_names_every_client() -> None:
    page = (Path(__file__).parents[3] / "docs/commands.md").read_text()
    (row,) = [line for line in page.splitlines() if "print the settings in this client's format" in line]
    assert [name for name in FORMATS if name not in row] == []
