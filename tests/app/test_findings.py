"""`lint --for`: requirements of a client on a recipe."""

import re
from pathlib import Path

import pytest

from sparkwright.app import findings
from sparkwright.errors import Refused
from sparkwright.project import starter

RECIPE_NAME = "qwen3.5-35b"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    starter.write_starter(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / f"recipes/{RECIPE_NAME}.yml"


def client_findings(client: str, version: str = "", name: str = RECIPE_NAME) -> list[tuple[str, str]]:
    checked, _ = findings.check_recipes(name, version, "")
    lint_count = len(checked[0].settings.findings)
    added = findings.add_client_findings(checked, client)[0].settings.findings[lint_count:]
    return [(finding.severity, finding.sentence) for finding in added]


def shorten_context(recipe: Path) -> None:
    """Give a recipe a context that is too short for an agent, and remove its expected load."""
    edit_recipe(recipe, r"max-model-len: \d+", "max-model-len: 32768")
    edit_recipe(recipe, r"\n  load: .*", "")


def edit_recipe(recipe: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, recipe.read_text())
    assert count
    recipe.write_text(text)


def test_shipped_recipe_lacks_only_the_probe_of_an_agent(recipe: Path) -> None:
    sentence = "no probe checks that this server answers as claude-code expects."
    assert client_findings("claude-code") == [("info", sentence)]
    edit_recipe(recipe, r"json_schema, image", "json_schema, messages, image")
    assert client_findings("claude-code") == [] and client_findings("opencode") == []


@pytest.mark.parametrize(
    ("pattern", "new", "severity", "words"),
    [
        (r"  enable-auto-tool-choice: true\n  tool-call-parser: \S+\n((.|\n)*)probes: \[tool_call, ", r"\1probes: [", "error", "`enable-auto-tool-choice` and `tool-call-parser`"),
        (r"enable-prefix-caching: true", "enable-prefix-caching: false", "warning", "prefix caching is off"),
        (r"max-num-seqs: 8", "max-num-seqs: 2", "warning", "handles 2 at a time"),
    ],
    ids=["tool calls", "prefix caching", "concurrency"],
)  # fmt: skip
def test_missing_requirement_of_an_agent_is_reported(
    recipe: Path, pattern: str, new: str, severity: str, words: str
) -> None:
    edit_recipe(recipe, pattern, new)
    (finding,) = [row for row in client_findings("claude-code") if row[0] != "info"]
    assert finding[0] == severity and words in finding[1]


def test_short_context_is_an_error_for_an_agent_only(recipe: Path) -> None:
    shorten_context(recipe)
    (finding,) = [row for row in client_findings("claude-code") if row[0] != "info"]
    assert finding == ("error", "claude-code needs a context of at least 65536 tokens, but this recipe has 32768.")
    assert client_findings("open-webui") == []


def test_a_flag_that_turns_tools_off_is_reported(recipe: Path) -> None:
    name = "qwen3.6-35b-gguf"
    path = recipe.with_name(f"{name}.yml")
    assert not [sentence for _, sentence in client_findings("opencode", name=name) if "calls tools" in sentence]
    edit_recipe(path, r"\nllama_cpp:\n", "\nllama_cpp:\n  jinja: false\n")
    with pytest.raises(Refused, match="tool_call cannot pass without `llama_cpp.jinja`"):
        client_findings("opencode", name=name)
    edit_recipe(path, r"probes: .*", "probes: []")
    sentence = "opencode calls tools, but this server is started without `jinja`."
    assert ("error", sentence) in client_findings("opencode", name=name)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.11.1", {"/v1/messages": "error", "/v1/messages/count_tokens": "warning"}),
        ("0.16.0", {"/v1/messages/count_tokens": "warning"}),
        ("0.17.1", {}),
        ("", {}),
    ],
)
def test_path_that_a_release_lacks_is_reported(recipe: Path, version: str, expected: dict[str, str]) -> None:
    found = {
        sentence.split()[2].rstrip(","): severity
        for severity, sentence in client_findings("claude-code", version)
        if "calls /" in sentence
    }
    assert found == expected
    assert not [sentence for _, sentence in client_findings("codex", version) if "calls /" in sentence]


def test_unknown_client_is_refused(recipe: Path) -> None:
    with pytest.raises(Refused, match="no client named 'claude-cod'.*claude-code"):
        client_findings("claude-cod")
