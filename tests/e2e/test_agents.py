"""Coding agents, run headless with the settings that `client --write` makes, through the sandbox's HAProxy to its vLLM.

Agents that are not installed are skipped; tests/real_llama/test_agents.py runs them with a real engine, and tells how to install them.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.queries import client_files
from sparkwright.app.queries.client_formats import FORMATS, Endpoint
from tests.e2e.conftest import sandbox_project
from tests.e2e.test_gateway import KEY, GatewayProject
from tests.gateway.loopback import client_key
from tests.real_llama.test_agents import AGENTS, VARIABLE, environment, usage_of_litellm
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
MODEL, CONTEXT, ANSWER = "qwen3.5-35b", 131_072, 8192
#: for the run of an agent: the simulated model ends its answers
RUN_S = 120
#: a sentence of the simulated model
SENTENCE = "turned above the dark water"


@pytest.fixture(scope="module")
def gate() -> Iterator[GatewayProject]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("GATEWAY_KEY", KEY)
        for agent in (*AGENTS, "litellm"):
            patch.setenv(key_variable(agent), client_key(agent))
        project.deployed()
        value = GatewayProject(project)
        value.write(clients={agent: {"key": {"env": key_variable(agent)}} for agent in (*AGENTS, "litellm")})
        assert (result := value.deploy()).code == 0, result.out + result.err
        yield value


def key_variable(agent: str) -> str:
    return f"KEY_OF_{agent.upper().replace('-', '_')}"


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_an_answer_from_the_sandbox(agent: str, gate: GatewayProject, tmp_path: Path) -> None:
    if not shutil.which(AGENTS[agent][0]):
        pytest.skip(f"{AGENTS[agent][0]} is not installed")
    client_files.write_settings(
        agent, gateway_endpoint(gate), str(tmp_path / client_files.CLIENT_FILES[agent].path.removeprefix("~/"))
    )
    work = tmp_path / "work"
    work.mkdir()
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    completed = subprocess.run(
        AGENTS[agent], cwd=work, env=environment(tmp_path, agent), timeout=RUN_S, check=False, **options
    )
    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, output[-3000:]
    assert SENTENCE in " ".join(output.split()), output[-3000:]
    log = gate.project.docker().api.logs("gateway").decode()
    log_lines = [line for line in log.splitlines() if f"{{{agent}}}" in line]
    assert log_lines and all(f'"POST {FORMATS[agent].path}' in line and " 200 " in line for line in log_lines), (
        log_lines
    )
    counts = wait_for_usage(gate, agent, len(log_lines))
    assert counts["errors"] == 0 and counts["prompt_tokens"] > 500 and counts["generated_tokens"] > 0


def test_litellm_forwards_a_request(gate: GatewayProject, tmp_path: Path) -> None:
    if not shutil.which("litellm"):
        pytest.skip("litellm is not installed")
    usage = usage_of_litellm(gateway_endpoint(gate), tmp_path)
    assert wait_for_usage(gate, "litellm", 1)["generated_tokens"] == usage["completion_tokens"] > 0


def gateway_endpoint(gate: GatewayProject) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{gate.port}", MODEL, CONTEXT, ANSWER, VARIABLE, pictures=False)


def wait_for_usage(gate: GatewayProject, agent: str, requests: int) -> dict[str, Any]:
    """Wait until all requests of a client are counted, and return its counts."""

    def read_counts() -> dict[str, Any] | None:
        clients = json.loads(gate.project.run("gateway.status", "--host", "box", "--json").out)["clients"]
        counts: dict[str, Any] = next(row for row in clients if row["client"] == agent)
        return counts if counts["requests"] >= requests else None

    counted: dict[str, Any] = wait_until(read_counts, "the counts")
    return counted
