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


def client_needs(client: str) -> list[tuple[str, str]]:
    checked, _ = findings.check_recipes(RECIPE_NAME, "", "")
    lint_count = len(checked[0].settings.findings)
    return [
        (finding.severity, finding.sentence)
        for finding in findings.add_client_findings(checked, client)[0].settings.findings[lint_count:]
    ]


def shorten_context(recipe: Path) -> None:
    """Give a recipe a context that is too short for an agent, and remove its expected load."""
    edit_recipe(recipe, r"max-model-len: \d+", "max-model-len: 32768")
    recipe.write_text(re.sub(r"\n  load: .*", "", recipe.read_text()))


def edit_recipe(recipe: Path, pattern: str, new: str) -> None:
    text, hits = re.subn(pattern, new, recipe.read_text())
    assert hits
    recipe.write_text(text)


def test_a_recipe_for_agents_lacks_only_the_proof(recipe: Path) -> None:
    (unproved,) = client_needs("claude-code")
    assert unproved == ("info", "no probe checks that this server answers as claude-code expects.")
    edit_recipe(recipe, r"json_schema, image", "json_schema, messages, image")
    assert client_needs("claude-code") == [] and client_needs("opencode") == []


@pytest.mark.parametrize(
    ("pattern", "new", "severity", "word"),
    [
        (r"  enable-auto-tool-choice: true\n  tool-call-parser: \S+\n((.|\n)*)probes: \[tool_call, ", r"\1probes: [", "error", "`enable-auto-tool-choice` and `tool-call-parser`"),
        (r"enable-prefix-caching: true", "enable-prefix-caching: false", "warning", "prefix caching is off"),
        (r"max-num-seqs: 8", "max-num-seqs: 2", "warning", "handles 2 at a time"),
    ],
)  # fmt: skip
def test_what_an_agent_cannot_do_without_is_named(
    recipe: Path, pattern: str, new: str, severity: str, word: str
) -> None:
    edit_recipe(recipe, pattern, new)
    (finding,) = [row for row in client_needs("claude-code") if row[0] != "info"]
    assert finding[0] == severity and word in finding[1], finding


def test_a_context_that_is_too_short_for_an_agent_is_named(recipe: Path) -> None:
    shorten_context(recipe)
    (finding,) = [row for row in client_needs("claude-code") if row[0] != "info"]
    assert finding == ("error", "claude-code needs a context of at least 65536 tokens, but this recipe has 32768.")


def test_a_front_end_needs_none_of_it_and_an_unknown_client_is_refused(recipe: Path) -> None:
    shorten_context(recipe)
    assert client_needs("open-webui") == []
    with pytest.raises(Refused, match="no client named 'claude-cod'.*claude-code"):
        client_needs("claude-cod")
