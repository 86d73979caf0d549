"""A client's settings in its own file: other content is kept, the file is backed up, and no key is written."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sparkwright.app.queries import client_files
from sparkwright.app.queries.client_files import CLIENT_FILES
from sparkwright.errors import Refused
from tests.app.queries.test_client_formats import KEYED

BEFORE = {
    "claude-code": '{"permissions": {"allow": ["Bash(ls)"]}, "env": {"EDITOR": "vi", "ANTHROPIC_MODEL": "old"}}',
    "codex": (
        '# mine\nmodel = "gpt-5"\napproval_policy = "never"\n\n[model_providers.other]\nname = "other"\n'
        '\n[model_providers.spark]\nname = "spark"\nbase_url = "http://old/v1"\n\n[tools]\nweb_search = true\n'
    ),
    "opencode": '{"theme": "dark", "provider": {"other": {"name": "other"}}}',
    "continue": "name: mine\nmodels:\n  - {name: other, provider: ollama, model: x}\nrules: [short]\n",
    "aider": "dark-mode: true\nmodel: gpt-5\n",
    "openclaw": '{"channels": {"x": {}}, "models": {"mode": "merge", "providers": {"other": {"baseUrl": "http://x"}}}}',
    "litellm": "model_list:\n- {model_name: other, litellm_params: {model: ollama/x}}\nrouter_settings: {num_retries: 2}\n",
}
#: with a file of their own, and a usual place for it
WITH_FILE = [client for client, place in CLIENT_FILES.items() if place.path]


def read_settings(client: str, path: Path) -> dict[str, object]:
    text = path.read_text()
    if client == "codex":
        return tomllib.loads(text)
    settings: dict[str, object] = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    return settings


@pytest.mark.parametrize("client", CLIENT_FILES)
def test_settings_are_merged_and_the_file_before_is_kept(client: str, tmp_path: Path) -> None:
    path = tmp_path / Path(CLIENT_FILES[client].path or "config.yaml").name
    path.write_text(BEFORE[client])
    path.chmod(0o640)
    lines = client_files.write_settings(client, KEYED, str(path))
    (backup,) = tmp_path.glob("*.bak")
    assert lines[:2] == [f"wrote {path}", f"previous file: {backup}"] and backup.read_text() == BEFORE[client]
    assert path.stat().st_mode & 0o777 == 0o640
    text = json.dumps(read_settings(client, path))
    assert KEYED.model in json.loads(json.dumps(text)) and "spark1:8080" in text and "sesame" not in text
    kept = {
        "claude-code": "Bash(ls)",
        "codex": "web_search",
        "opencode": "dark",
        "continue": "ollama",
        "aider": "dark-mode",
        "openclaw": "channels",
        "litellm": "ollama/x",
    }
    assert kept[client] in text
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert client_files.write_settings(client, KEYED, str(path))[0] == f"{path} has these settings already"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("client", WITH_FILE)
def test_a_file_that_is_not_there_is_made_for_its_owner_alone(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = Path(CLIENT_FILES[client].path).expanduser()
    assert client_files.write_settings(client, KEYED)[0] == f"wrote {path}"
    assert path.stat().st_mode & 0o777 == 0o600 and read_settings(client, path)


def test_codex_keeps_its_comments_and_other_tables(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BEFORE["codex"])
    client_files.write_settings("codex", KEYED, str(path))
    client_files.write_settings("codex", replace(KEYED, context=None), str(path))
    text, settings = path.read_text(), read_settings("codex", path)
    assert "# mine" in text and text.count("[model_providers.spark]") == 1
    assert settings["approval_policy"] == "never" and "model_context_window" not in settings
    assert isinstance(settings["model_providers"], dict) and set(settings["model_providers"]) == {"other", "spark"}


def test_a_key_is_read_by_a_command_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame-sesame-sesame")
    for client in CLIENT_FILES:
        path = tmp_path / client
        client_files.write_settings(client, KEYED, str(path))
        assert "sesame" not in path.read_text()
    assert json.loads((tmp_path / "claude-code").read_text())["apiKeyHelper"] == "printenv GATEWAY_KEY"


@pytest.mark.parametrize(
    ("client", "text", "why"),
    [
        ("opencode", '{"a": 1, // mine\n}', r"is not plain JSON \(comments are not supported\)"),
        ("opencode", "[]", "is not a JSON object"),
        ("codex", "model = ", "is not TOML"),
        ("codex", 'model_providers = {spark = {name = "x"}}\n', "in a form that cannot be replaced"),
        ("continue", "models: 3\n", "that is not a list"),
        ("aider", "- 3\n", "is not a mapping"),
        ("litellm", "model_list: {a: 1}\n", "that is not a list"),
        ("openclaw", "{models: {}} // mine", r"is not plain JSON \(comments are not supported\)"),
        ("aider", "\x00", "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_merged_with_is_left_as_it_is(client: str, text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text(text)
    with pytest.raises(Refused, match=why):
        client_files.write_settings(client, KEYED, str(path))
    assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("client", "why"), [("curl", "has no file"), ("cline", "VS Code"), ("open-webui", "in its database")]
)
def test_a_client_without_a_file_is_told_which_have_one(client: str, why: str) -> None:
    with pytest.raises(Refused, match=f"{client} .*{why}.* aider"):
        client_files.write_settings(client, KEYED)


def test_litellm_has_no_usual_file_and_keeps_other_servers_of_a_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--file"):
        client_files.write_settings("litellm", KEYED)
    path = tmp_path / "config.yaml"
    other = {"model_name": KEYED.model, "litellm_params": {"model": "azure/gpt-5"}}
    path.write_text(yaml.safe_dump({"model_list": [other]}))
    client_files.write_settings("litellm", KEYED, str(path))
    client_files.write_settings("litellm", replace(KEYED, url="http://spark2:8080"), str(path))
    first, ours = yaml.safe_load(path.read_text())["model_list"]
    assert first == other and ours["litellm_params"]["api_base"] == "http://spark2:8080/v1"


def test_aider_gets_the_limits_in_a_file_beside_and_says_where_it_takes_the_key(tmp_path: Path) -> None:
    lines = client_files.write_settings("aider", KEYED, str(tmp_path / "conf.yml"))
    limits = json.loads((tmp_path / ".aider.model.metadata.json").read_text())[f"openai/{KEYED.model}"]
    assert (limits["max_input_tokens"], limits["max_output_tokens"]) == (KEYED.context, KEYED.answer_tokens)
    assert 'export OPENAI_API_KEY="$GATEWAY_KEY"' in lines[-1]
    client_files.write_settings("aider", replace(KEYED, key_variable="", context=None), str(tmp_path / "open.yml"))
    assert yaml.safe_load((tmp_path / "open.yml").read_text())["openai-api-key"] == "none"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    real.write_text("{}")
    link.symlink_to(real)
    client_files.write_settings("claude-code", KEYED, str(link))
    assert link.is_symlink() and "ANTHROPIC_MODEL" in real.read_text()
