"""A client's settings are of what runs, and are shown where they are asked for; a new server says where."""

import json

from tests.e2e.conftest import SandboxProject

SETTINGS = "# openclaw: merge"
POINTER = "client --host sandbox` prints client settings"


def test_a_new_server_tells_its_clients_and_others_only_when_asked(project: SandboxProject) -> None:
    project.edit("recipes/qwen3.5-35b.yml", "max-model-len: .*", "max-model-len: 4k")
    first = project.run("deploy", "--host", "sandbox")
    if first.code == 4:  # too busy a machine to measure: nothing is called done, and nothing shown
        first = project.run("restart", "--host", "sandbox")
    else:
        assert POINTER in first.out
    assert SETTINGS not in first.out
    for command in ("deploy", "plan", "verify"):
        result = project.run(command, "--host", "sandbox")
        assert result.code in (0, 4) and SETTINGS not in result.out and POINTER not in result.out, result.out
    project.edit("recipes/qwen3.5-35b.yml", "max-model-len: .*", "max-model-len: 8k")  # not deployed
    options = project.run("client", "--host", "sandbox")
    assert (options.code, options.err) == (0, "")
    assert SETTINGS in options.out and "contextWindow: 4000, maxTokens: 2000," in options.out
    (row,) = [json.loads(line) for line in project.run("client", "--host", "sandbox", "--json").out.splitlines()]
    assert (row["base_url"], row["model"]) == (f"http://127.0.0.1:{project.port}/v1", "qwen3.5-35b")
    assert (row["context_length"], row["max_tokens"], row["pictures"]) == (4000, 2000, True)
    assert (row["thinking"]["default"], row["thinking"]["switch"]) == ("on", "enable_thinking"), (
        "of its pinned template"
    )
    assert 'thinking   on by default; per request: "chat_template_kwargs": {"enable_thinking": false}' in options.out
    assert 'input: ["text", "image"]' in options.out, "its recipe has a probe that shows it a picture"
    opencode = project.run("client", "--host", "sandbox", "--for", "opencode")
    config = json.loads(opencode.out.partition("\n")[2].partition("\n# an agent needs")[0])
    assert config["model"] == "spark/qwen3.5-35b"
    assert config["provider"]["spark"]["models"]["qwen3.5-35b"]["limit"] == {"context": 4000, "output": 2000}
    assert "an agent needs a context of 65536 tokens or more; this server has 4000" in opencode.out
    both = project.run("client", "--host", "sandbox", "--for", "opencode", "--json")
    assert (both.code, "--for: can't be combined with --json" in both.err + both.out) == (5, True)
    wrote = project.run(
        "client", "--host", "sandbox", "--for", "opencode", "--write", "--file", "opencode.json", "--check"
    )
    assert wrote.code == 0, wrote.out + wrote.err
    assert json.loads((project.root / "opencode.json").read_text()) == config
    assert "/v1/chat/completions, streamed, in " in wrote.out and "called get_weather with 'Paris'" in wrote.out
    alone = project.run("client", "--host", "sandbox", "--write")
    assert (alone.code, "requires --for." in alone.err) == (5, True)
    unknown = project.run("client", "--host", "sandbox", "--for", "claude-cod")
    assert (unknown.code, "Did you mean `claude-code`?" in unknown.err) == (5, True), unknown.err
    project.docker().api.stop("qwen35")
    gone = project.run("client", "--host", "sandbox")
    assert (gone.code, gone.out) == (1, "")
    assert gone.err.startswith("sandbox: no server: qwen35 has exited")
