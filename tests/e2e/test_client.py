"""`client`: settings for the running server, shown on request; a first deploy names the command."""

import json
import re

from tests.e2e.conftest import SandboxProject

SETTINGS = "any OpenAI-compatible client"
POINTER = "client --host sandbox` prints client settings"


def test_client_settings_describe_the_running_server(project: SandboxProject) -> None:
    project.edit("recipes/qwen3.5-35b.yml", "max-model-len: .*", "max-model-len: 4k")
    first = project.run("deploy", "--host", "sandbox")
    if first.code == 4:  # this machine was too busy to measure: nothing is verified, and the command is not named
        first = project.run("restart", "--host", "sandbox")
    else:
        assert POINTER in first.out
    assert SETTINGS not in first.out
    for command in ("deploy", "plan", "verify"):
        result = project.run(command, "--host", "sandbox")
        assert result.code in (0, 4) and SETTINGS not in result.out and POINTER not in result.out, result.out
    project.edit("recipes/qwen3.5-35b.yml", "max-model-len: .*", "max-model-len: 8k")  # not deployed
    settings = project.run("client", "--host", "sandbox")
    assert (settings.code, settings.err) == (0, "")
    assert SETTINGS in settings.out and "context    4000 tokens, `max_tokens` up to 2000" in settings.out
    assert "client --host sandbox --for NAME`: claude-code, codex," in settings.out
    (row,) = [json.loads(line) for line in project.run("client", "--host", "sandbox", "--json").out.splitlines()]
    assert (row["base_url"], row["model"]) == (f"http://127.0.0.1:{project.port}/v1", "qwen3.5-35b")
    assert (row["context_length"], row["max_tokens"], row["pictures"]) == (4000, 2000, True)
    assert {"default": "on", "switch": "enable_thinking"}.items() <= row["thinking"].items(), "from the pinned template"
    assert 'thinking   on by default; per request: "chat_template_kwargs": {"enable_thinking": false}' in settings.out
    openclaw = project.run("client", "--host", "sandbox", "--for", "openclaw")
    assert '"image"' in openclaw.out, "the recipe has an image probe"
    opencode = project.run("client", "--host", "sandbox", "--for", "opencode")
    config = json.loads(opencode.out.partition("\n")[2].partition("\n# an agent needs")[0])
    assert config["model"] == "spark/qwen3.5-35b"
    assert config["provider"]["spark"]["models"]["qwen3.5-35b"]["limit"] == {"context": 4000, "output": 2000}
    assert "an agent needs a context of 65536 tokens or more; this server has 4000" in opencode.out
    assert "# this client calls" not in project.run("client", "--host", "sandbox", "--for", "claude-code").out
    lock = project.sandbox / "spark.lock"
    lock.write_text(re.sub(r"engine_version: \S+", "engine_version: 0.11.1", lock.read_text()))
    old = project.run("client", "--host", "sandbox", "--for", "claude-code")
    assert "# this client calls /v1/messages, which vLLM serves from 0.11.2 on; this is 0.11.1" in old.out, old.out
    both = project.run("client", "--host", "sandbox", "--for", "opencode", "--json")
    assert (both.code, "so it can't be combined with --json." in both.err + both.out) == (5, True)
    options = ("--for", "opencode", "--write", "--file", "opencode.json", "--check")
    wrote = project.run("client", "--host", "sandbox", *options)
    assert wrote.code == 0, wrote.out + wrote.err
    assert json.loads((project.root / "opencode.json").read_text()) == config
    assert "/v1/chat/completions, streamed, in " in wrote.out and "called get_weather with 'Paris'" in wrote.out
    project.docker().api.stop("qwen35")
    stopped = project.run("client", "--host", "sandbox")
    assert (stopped.code, stopped.out) == (1, "")
    assert stopped.err.startswith("sandbox: no server: qwen35 has exited")
