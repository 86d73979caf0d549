"""A client's settings in its own file: other content is kept, the file is backed up, and no key is written."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sparkwright.app.questions import client_files
from sparkwright.app.questions.client_files import PLACES
from sparkwright.errors import Refused
from tests.app.test_client_formats import KEYED

BEFORE = {
    "claude-code": '{"permissions": {"allow": ["Bash(ls)"]}, "env": {"EDITOR": "vi", "ANTHROPIC_MODEL": "old"}}',
    "codex": (
        '# mine\nmodel = "gpt-5"\napproval_policy = "never"\n\n[model_providers.other]\nname = "other"\n'
        '\n[model_providers.spark]\nname = "spark"\nbase_url = "http://old/v1"\n\n[tools]\nweb_search = true\n'
    ),
    "opencode": '{"theme": "dark", "provider": {"other": {"name": "other"}}}',
    "continue": "name: mine\nmodels:\n  - {name: other, provider: ollama, model: x}\nrules: [short]\n",
    "aider": "dark-mode: true\nmodel: gpt-5\n",
}


def read(client: str, path: Path) -> dict[str, object]:
    text = path.read_text()
    if client == "codex":
        return tomllib.loads(text)
    found: dict[str, object] = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    return found


@pytest.mark.parametrize("client", PLACES)
def test_settings_are_merged_and_the_file_before_is_kept(client: str, tmp_path: Path) -> None:
    path = tmp_path / Path(PLACES[client].path).name
    path.write_text(BEFORE[client])
    path.chmod(0o640)
    lines = client_files.write(client, KEYED, str(path))
    (backup,) = tmp_path.glob("*.bak")
    assert lines == [f"wrote {path}", f"the file before: {backup}"] and backup.read_text() == BEFORE[client]
    assert path.stat().st_mode & 0o777 == 0o640
    text = json.dumps(read(client, path))
    assert KEYED.model in json.loads(json.dumps(text)) and "spark1:8080" in text and "sesame" not in text
    kept = {
        "claude-code": "Bash(ls)",
        "codex": "web_search",
        "opencode": "dark",
        "continue": "ollama",
        "aider": "dark-mode",
    }
    assert kept[client] in text
    assert client_files.write(client, KEYED, str(path)) == [f"{path} has these settings already"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("client", PLACES)
def test_a_file_that_is_not_there_is_made_for_its_owner_alone(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = Path(PLACES[client].path).expanduser()
    assert client_files.write(client, KEYED) == [f"wrote {path}"]
    assert path.stat().st_mode & 0o777 == 0o600 and read(client, path)


def test_codex_keeps_its_comments_and_other_tables(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BEFORE["codex"])
    client_files.write("codex", KEYED, str(path))
    client_files.write("codex", replace(KEYED, context=None), str(path))
    text, found = path.read_text(), read("codex", path)
    assert "# mine" in text and text.count("[model_providers.spark]") == 1
    assert found["approval_policy"] == "never" and "model_context_window" not in found
    assert isinstance(found["model_providers"], dict) and set(found["model_providers"]) == {"other", "spark"}


def test_a_key_is_read_by_a_command_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame-sesame-sesame")
    for client in PLACES:
        path = tmp_path / client
        client_files.write(client, KEYED, str(path))
        assert "sesame" not in path.read_text()
    assert json.loads((tmp_path / "claude-code").read_text())["apiKeyHelper"] == "printenv GATEWAY_KEY"


@pytest.mark.parametrize(
    ("client", "text", "why"),
    [
        ("opencode", '{"a": 1, // mine\n}', "is no JSON without comments"),
        ("opencode", "[]", "is no JSON object"),
        ("codex", "model = ", "is no TOML"),
        ("codex", 'model_providers = {spark = {name = "x"}}\n', "in a form that cannot be replaced"),
        ("continue", "models: 3\n", "that are no list"),
        ("aider", "- 3\n", "is no mapping"),
        ("aider", "\x00", "is no YAML"),
    ],
)
def test_a_file_that_cannot_be_merged_with_is_left_as_it_is(client: str, text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text(text)
    with pytest.raises(Refused, match=why):
        client_files.write(client, KEYED, str(path))
    assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


def test_a_client_without_a_file_is_told_which_have_one() -> None:
    with pytest.raises(Refused, match="curl has no file.* aider"):
        client_files.write("curl", KEYED)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    real.write_text("{}")
    link.symlink_to(real)
    client_files.write("claude-code", KEYED, str(link))
    assert link.is_symlink() and "ANTHROPIC_MODEL" in real.read_text()
