"""Coding agents, run headless with the settings that `client --write` made, through the sandbox's HAProxy to its vLLM.

One that is not installed is skipped; tests/real_llama/test_agents.py says how they are installed, and runs them with a real engine.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.questions import client_files
from sparkwright.app.questions.client_formats import FORMATS, Endpoint
from tests.e2e.conftest import fresh_desk
from tests.e2e.test_gateway import KEY, Gate
from tests.gateway.loopback import key_of
from tests.real_llama.test_agents import AGENTS, VARIABLE, environment, usage_of_litellm

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
MODEL, CONTEXT, ANSWER = "qwen3.5-35b", 131_072, 8192
#: the whole run of one agent: the simulated model ends its answer by itself
RUN_S = 120
#: a sentence of the simulated model
SENTENCE = "turned above the dark water"


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    with pytest.MonkeyPatch.context() as patch, fresh_desk() as desk:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        patch.setenv("GATEWAY_KEY", KEY)
        for agent in (*AGENTS, "litellm"):
            patch.setenv(variable(agent), key_of(agent))
        desk.deployed()
        found = Gate(desk)
        found.write(clients={agent: {"key": {"env": variable(agent)}} for agent in (*AGENTS, "litellm")})
        assert (result := found.deploy()).code == 0, result.out + result.err
        yield found


def variable(agent: str) -> str:
    return f"KEY_OF_{agent.upper().replace('-', '_')}"


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_its_answer_from_the_sandbox(agent: str, gate: Gate, tmp_path: Path) -> None:
    if not shutil.which(AGENTS[agent][0]):
        pytest.skip(f"{AGENTS[agent][0]} is not installed")
    client_files.write_settings(
        agent, endpoint(gate), str(tmp_path / client_files.CLIENT_FILES[agent].path.removeprefix("~/"))
    )
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        AGENTS[agent],
        cwd=work,
        env=environment(tmp_path, agent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=RUN_S,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-3000:]
    assert SENTENCE in " ".join(shown.split()), shown[-3000:]
    log = gate.desk.docker().api.logs("gateway").decode()
    own = [line for line in log.splitlines() if f"{{{agent}}}" in line]
    assert own and all(f'"POST {FORMATS[agent].path}' in line and " 200 " in line for line in own), own
    counts = counted(gate, agent, len(own))
    assert counts["errors"] == 0 and counts["prompt_tokens"] > 500 and counts["generated_tokens"] > 0


def test_litellm_passes_a_request_on(gate: Gate, tmp_path: Path) -> None:
    if not shutil.which("litellm"):
        pytest.skip("litellm is not installed")
    usage = usage_of_litellm(endpoint(gate), tmp_path)
    assert counted(gate, "litellm", 1)["generated_tokens"] == usage["completion_tokens"] > 0


def endpoint(gate: Gate) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{gate.port}", MODEL, CONTEXT, ANSWER, VARIABLE, pictures=False)


def counted(gate: Gate, agent: str, requests: int) -> dict[str, Any]:
    """What the gateway counted of a client, once all of its requests are in the file of the day."""
    deadline_s = time.monotonic() + 30
    while True:
        used = json.loads(gate.desk.run("gateway.status", "--host", "box", "--json").out)["clients"]
        counts: dict[str, Any] = next(row for row in used if row["client"] == agent)
        if counts["requests"] >= requests:
            return counts
        assert time.monotonic() < deadline_s, counts
