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
#: text of each file that must be preserved
PRESERVED = {
    "claude-code": "Bash(ls)", "codex": "web_search", "opencode": "dark", "continue": "ollama",
    "aider": "dark-mode", "openclaw": "channels", "litellm": "ollama/x",
}  # fmt: skip
#: clients whose settings file has a default path
WITH_DEFAULT_PATH = [client for client, file in CLIENT_FILES.items() if file.path]


def read_settings(client: str, path: Path) -> dict[str, object]:
    text = path.read_text()
    if client == "codex":
        return tomllib.loads(text)
    settings: dict[str, object] = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    return settings


@pytest.mark.parametrize("client", CLIENT_FILES)
def test_settings_are_merged_and_the_previous_file_is_backed_up(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame-sesame-sesame")
    path = tmp_path / Path(CLIENT_FILES[client].path or "config.yaml").name
    path.write_text(BEFORE[client])
    path.chmod(0o640)
    lines = client_files.write_settings(client, KEYED, str(path))
    (backup,) = tmp_path.glob("*.bak")
    assert lines[:2] == [f"wrote {path}", f"previous file: {backup}"] and backup.read_text() == BEFORE[client]
    assert path.stat().st_mode & 0o777 == 0o640
    text = json.dumps(read_settings(client, path))
    assert KEYED.model in text and "spark1:8080" in text and "sesame" not in path.read_text()
    assert PRESERVED[client] in text
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert client_files.write_settings(client, KEYED, str(path))[0] == f"{path} already has these settings"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("client", WITH_DEFAULT_PATH)
def test_new_file_is_private(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = Path(CLIENT_FILES[client].path).expanduser()
    assert client_files.write_settings(client, KEYED)[0] == f"wrote {path}"
    assert path.stat().st_mode & 0o777 == 0o600 and read_settings(client, path)


def test_codex_comments_and_other_tables_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BEFORE["codex"])
    client_files.write_settings("codex", KEYED, str(path))
    client_files.write_settings("codex", replace(KEYED, context_length=None), str(path))
    text, settings = path.read_text(), read_settings("codex", path)
    assert "# mine" in text and text.count("[model_providers.spark]") == 1
    assert settings["approval_policy"] == "never" and "model_context_window" not in settings
    assert isinstance(settings["model_providers"], dict) and set(settings["model_providers"]) == {"other", "spark"}


def test_claude_code_reads_its_key_with_a_command(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    client_files.write_settings("claude-code", KEYED, str(path))
    assert json.loads(path.read_text())["apiKeyHelper"] == "printenv GATEWAY_KEY"


@pytest.mark.parametrize(
    ("client", "text", "problem"),
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
def test_file_in_an_unsupported_format_is_left_unchanged(client: str, text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text(text)
    with pytest.raises(Refused, match=problem):
        client_files.write_settings(client, KEYED, str(path))
    assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("client", "reason"), [("curl", "has no file"), ("cline", "VS Code"), ("open-webui", "in its database")]
)
def test_client_without_a_file_is_refused_with_a_list_of_those_that_have_one(client: str, reason: str) -> None:
    with pytest.raises(Refused, match=f"{client} .*{reason}.* aider"):
        client_files.write_settings(client, KEYED)


def test_litellm_needs_a_path_and_keeps_other_servers_of_the_same_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--file"):
        client_files.write_settings("litellm", KEYED)
    path = tmp_path / "config.yaml"
    other = {"model_name": KEYED.model, "litellm_params": {"model": "azure/gpt-5"}}
    path.write_text(yaml.safe_dump({"model_list": [other]}))
    client_files.write_settings("litellm", KEYED, str(path))
    client_files.write_settings("litellm", replace(KEYED, url="http://spark2:8080"), str(path))
    first, added = yaml.safe_load(path.read_text())["model_list"]
    assert first == other and added["litellm_params"]["api_base"] == "http://spark2:8080/v1"


def test_aider_limits_are_in_a_second_file_and_its_key_in_a_variable(tmp_path: Path) -> None:
    lines = client_files.write_settings("aider", KEYED, str(tmp_path / "conf.yml"))
    limits = json.loads((tmp_path / ".aider.model.metadata.json").read_text())[f"openai/{KEYED.model}"]
    assert (limits["max_input_tokens"], limits["max_output_tokens"]) == (KEYED.context_length, KEYED.max_answer_tokens)
    assert 'export OPENAI_API_KEY="$GATEWAY_KEY"' in lines[-1]
    client_files.write_settings(
        "aider", replace(KEYED, key_variable="", context_length=None), str(tmp_path / "open.yml")
    )
    assert yaml.safe_load((tmp_path / "open.yml").read_text())["openai-api-key"] == "none"


def test_symlink_is_preserved(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    target.write_text("{}")
    link.symlink_to(target)
    client_files.write_settings("claude-code", KEYED, str(link))
    assert link.is_symlink() and "ANTHROPIC_MODEL" in target.read_text()
