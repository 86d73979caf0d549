"""Coding agents with the settings of `client --write`, through a real HAProxy to the real llama-server.

Missing agents are skipped. `npm install` of @anthropic-ai/claude-code, @openai/codex, opencode-ai and openclaw, and
`pip install` of aider-chat and litellm, each in its own folder, need no account; their `bin` folders go into PATH.
The model's weights are random: its answers are not sentences, and it calls no tools.
"""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.queries import client_files
from sparkwright.app.queries.client_formats import FORMATS, Endpoint
from sparkwright.engines import api_paths, openai_api
from sparkwright.engines.llama_cpp.http import HTTP, PATHS
from sparkwright.gateway.model import Client, Model, Upstream
from tests.gateway.loopback import RunningGateway, build_gateway, client_key, run_gateway
from tests.real_llama import server as servers
from tests.real_llama.test_gateway import wait_for_count
from tests.remote.sshd import free_port

pytestmark = [pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy"), pytest.mark.slow]
CONTEXT, SLOTS, ANSWER = 131_072, 2, 2048
#: limit of an agent's run; two busy cores process 26,000 tokens of instructions in 100 s
ANSWER_S = 400
VARIABLE = "SPARK_KEY"
AGENTS = {
    "claude-code": ("claude", "-p", "Say ok.", "--output-format", "json"),
    "codex": ("codex", "exec", "--skip-git-repo-check", "Say ok."),
    "opencode": ("opencode", "run", "Say ok."),
    "openclaw": ("openclaw", "agent", "exec", "Say ok.", "--json"),
    "aider": (
        *("aider", "--message", "Say ok.", "--no-git", "--yes-always", "--no-check-update"),
        *("--analytics-disable", "--no-show-release-notes"),
    ),
}


@pytest.fixture(scope="module")
def gateway_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway in front of a server whose context holds an agent's instructions."""
    from tests.real_llama import tiny_gguf

    folder = tmp_path_factory.mktemp("agents")
    tiny = tiny_gguf.write_model(folder / tiny_gguf.FILE_NAME, context=CONTEXT * SLOTS)
    words = ("-c", str(CONTEXT * SLOTS), "-np", str(SLOTS), "-a", "tiny", "--metrics", "--jinja")
    with servers.serving(folder, tiny, *words) as server:
        check = json.dumps(openai_api.build_request(HTTP, "tiny", "1", 1))
        model = Model("tiny", (Upstream("one", "127.0.0.1", server.port, SLOTS),), CONTEXT, check)
        named = tuple(Client(name) for name in (*AGENTS, "litellm"))
        configuration = replace(
            build_gateway(model), paths=api_paths.merge_paths([PATHS]), named_clients=named, usages=HTTP.usage_keys
        )
        with run_gateway(folder, configuration) as running_gateway:
            running_gateway.up("tiny")
            yield running_gateway


def endpoint_of(running: RunningGateway) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{running.gateway.port}", "tiny", CONTEXT, ANSWER, VARIABLE, pictures=False)


def environment(home: Path, client: str) -> dict[str, str]:
    """Return an environment with another home, the client's key and no other keys."""
    variables = {VARIABLE: client_key(client), "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if variable := getattr(client_files.CLIENT_FILES[client], "key_variable", ""):
        variables[variable] = client_key(client)
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables}


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_an_answer_with_its_settings(agent: str, gateway_server: RunningGateway, tmp_path: Path) -> None:
    program = AGENTS[agent][0]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    file = tmp_path / client_files.CLIENT_FILES[agent].path.removeprefix("~/")
    client_files.write_settings(agent, endpoint_of(gateway_server), str(file))
    folder = tmp_path / "work"
    folder.mkdir()
    result = subprocess.run(
        AGENTS[agent],
        cwd=folder,
        env=environment(tmp_path, agent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ANSWER_S,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-3000:]
    log = (gateway_server.folder / "log").read_text(errors="replace")
    requests = [line for line in log.splitlines() if f"{{{agent}}}" in line]
    assert requests and all(f'"POST {FORMATS[agent].path}' in line and " 200 " in line for line in requests), requests
    counts = wait_for_count(gateway_server, agent, len(requests))
    assert counts["prompt_tokens"] > 500 and counts["generated_tokens"] > 0 and counts["errors"] == 0
    assert "Unknown context window" not in output
    if agent == "claude-code":
        assert json.loads(result.stdout)["modelUsage"]["tiny"]["contextWindow"] == CONTEXT


def test_litellm_forwards_a_request_with_the_written_settings(gateway_server: RunningGateway, tmp_path: Path) -> None:
    if not shutil.which("litellm"):
        pytest.skip("litellm is not installed")
    usage = usage_of_litellm(endpoint_of(gateway_server), tmp_path)
    counts = wait_for_count(gateway_server, "litellm", 1)
    assert counts["prompt_tokens"] == usage["prompt_tokens"]
    assert counts["generated_tokens"] == usage["completion_tokens"]


def usage_of_litellm(endpoint: Endpoint, tmp_path: Path) -> dict[str, int]:
    """Return the usage of an answer through a LiteLLM with the written settings."""
    client_files.write_settings("litellm", endpoint, str(tmp_path / "config.yaml"))
    own = {"LITELLM_MASTER_KEY": "sk-of-the-proxy-0123456789"}
    port = free_port()
    words = ["litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    env = {**environment(tmp_path, "litellm"), **own}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(words, cwd=tmp_path, env=env, stdout=log, stderr=log) as proxy,
    ):
        try:
            headers = {"Authorization": f"Bearer {own['LITELLM_MASTER_KEY']}", "Content-Type": "application/json"}
            messages = [{"role": "user", "content": "hi"}]
            body = json.dumps({"model": endpoint.model, "messages": messages, "max_tokens": 8}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
            usage: dict[str, int] = _query_proxy(request, proxy, tmp_path / "log")["usage"]
            return usage
        finally:
            proxy.kill()


def _query_proxy(request: urllib.request.Request, proxy: subprocess.Popen[bytes], log: Path) -> Any:
    until_s = time.monotonic() + ANSWER_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read()) from None
        except OSError:
            assert proxy.poll() is None and time.monotonic() < until_s, log.read_text()[-3000:]
            time.sleep(0.5)
