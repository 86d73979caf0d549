"""`client --write`: merge settings into a client's file. Other settings are preserved, and the previous file is backed up.

API keys are never written: the settings name an environment variable with the key, or a command that prints it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparkwright.app.queries import client_formats
from sparkwright.app.queries.client_formats import PROVIDER_NAME, Endpoint
from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically

#: size limit of a settings file
MAX_FILE_BYTES = 4 * 2**20
#: mode of a new file; private, because settings can reveal who may use a server
NEW_FILE_MODE = 0o600
#: returns a file's text with the settings for an endpoint merged into it, or raises Unmergeable
Merger = Callable[[str, Endpoint], str]
_TABLE_HEADER_PATTERN = re.compile(r"^\s{0,80}\[{1,2}\s{0,20}([^\[\]\s]{1,200})\s{0,20}\]")
#: top-level settings of Codex that this module writes
_CODEX_SETTING_PATTERN = re.compile(r"^\s{0,80}(?:model|model_provider|model_context_window)\s{0,80}=")


class Unmergeable(Exception):
    """Raised for a file that can't be merged. The message continues a sentence that begins with the file's name."""


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The settings file of a client."""

    #: default path; empty if the client has none
    path: str
    merge: Merger
    #: mergers of other files in the same folder, by file name
    other_files: Mapping[str, Merger] = field(default_factory=dict)
    #: environment variable from which the client always reads the key; empty if its file can name a variable
    key_variable: str = ""


def _merge_mappings(old_settings: Mapping[str, Any], new_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings. If both have a key, the new value is used."""
    merged = dict(old_settings)
    for name, value in new_settings.items():
        old_value = merged.get(name)
        is_nested = isinstance(old_value, dict) and isinstance(value, dict)
        merged[name] = _merge_mappings(old_value or {}, value) if is_nested else value
    return merged


def _parse_json(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text or "{}")
    except ValueError:
        raise Unmergeable("is not plain JSON (comments are not supported)") from None
    if not isinstance(settings, dict):
        raise Unmergeable("is not a JSON object")
    return settings


def _parse_yaml(text: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(text) or {}
    except yaml.YAMLError:
        raise Unmergeable("is not YAML") from None
    if not isinstance(settings, dict):
        raise Unmergeable("is not a mapping")
    return settings


def _merge_json(text: str, new_settings: Mapping[str, Any]) -> str:
    old_settings = _parse_json(text)
    merged = _merge_mappings(old_settings, new_settings)
    return text if merged == old_settings else json.dumps(merged, indent=2, ensure_ascii=False) + "\n"


def _format_yaml(text: str, settings: Mapping[str, Any]) -> str:
    """Return a YAML file with the given settings, or its old text if they are the same, to keep its comments."""
    return (
        text if settings == _parse_yaml(text) else yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    )


def _json_merger(client: str) -> Merger:
    """Return the merger for a client whose printed settings are the JSON to merge."""
    return lambda text, endpoint: _merge_json(text, json.loads(client_formats.FORMATS[client].render(endpoint)))


def _merge_claude_code(text: str, endpoint: Endpoint) -> str:
    new_settings: dict[str, Any] = {"env": client_formats.claude_variables(endpoint)}
    if endpoint.key_variable:
        new_settings["apiKeyHelper"] = f"printenv {endpoint.key_variable}"
    return _merge_json(text, new_settings)


def _merge_yaml_list(text: str, new_settings: Mapping[str, Any], key: str, is_same: Callable[[Any], bool]) -> str:
    """Merge a list with a single element into a YAML file.

    Args:
        key: the list's name.
        is_same: returns True for the file's element that the new one replaces.
    """
    old_settings, (new_element,) = _parse_yaml(text), new_settings[key]
    elements = old_settings.get(key) or []
    if not isinstance(elements, list):
        raise Unmergeable(f"has a `{key}` that is not a list")
    other_elements = [element for element in elements if not (isinstance(element, dict) and is_same(element))]
    position = next((n for n, element in enumerate(elements) if element not in other_elements), len(other_elements))
    return _format_yaml(
        text,
        {**new_settings, **old_settings, key: [*other_elements[:position], new_element, *other_elements[position:]]},
    )


def _merge_continue(text: str, endpoint: Endpoint) -> str:
    new_settings = yaml.safe_load(client_formats.FORMATS["continue"].render(endpoint))
    name = new_settings["models"][0]["name"]
    return _merge_yaml_list(text, new_settings, "models", lambda model: model.get("name") == name)


def _merge_litellm(text: str, endpoint: Endpoint) -> str:
    """Merge by name and model, because LiteLLM balances requests between all entries with the same name."""
    new_settings = yaml.safe_load(client_formats.FORMATS["litellm"].render(endpoint))

    def is_same(entry: dict[str, Any]) -> bool:
        params = entry.get("litellm_params")
        model = params.get("model") if isinstance(params, dict) else None
        return (entry.get("model_name"), model) == (endpoint.model, f"openai/{endpoint.model}")

    return _merge_yaml_list(text, new_settings, "model_list", is_same)


def _merge_aider(text: str, endpoint: Endpoint) -> str:
    new_settings = {"model": f"openai/{endpoint.model}", "openai-api-base": f"{endpoint.url}/v1"}
    if not endpoint.key_variable:
        new_settings["openai-api-key"] = client_formats.PLACEHOLDER_KEY
    return _format_yaml(text, {**_parse_yaml(text), **new_settings})


def _merge_aider_metadata(text: str, endpoint: Endpoint) -> str:
    return _merge_json(text, client_formats.aider_metadata(endpoint))


def _merge_codex(text: str, endpoint: Endpoint) -> str:
    """Merge TOML as text, which preserves comments, and check the result by parsing it."""
    new_text = client_formats.FORMATS["codex"].render(endpoint)
    try:
        old_settings, new_settings = tomllib.loads(text), tomllib.loads(new_text)
    except tomllib.TOMLDecodeError:
        raise Unmergeable("is not TOML") from None
    providers = {**(old_settings.get("model_providers") or {}), **new_settings["model_providers"]}
    other_settings = {name: value for name, value in old_settings.items() if name != "model_context_window"}
    expected_settings = {**other_settings, **new_settings, "model_providers": providers}
    if expected_settings == old_settings:
        return text
    settings, _, provider_table = new_text.partition("\n\n")
    merged_text = "\n".join([settings, *_other_lines(text), "", provider_table]) + "\n"
    try:
        merged_settings = tomllib.loads(merged_text)
    except tomllib.TOMLDecodeError:
        merged_settings = {}
    if merged_settings != expected_settings:
        raise Unmergeable(f"has `model_providers.{PROVIDER_NAME}` in a form that cannot be replaced")
    return merged_text


def _other_lines(text: str) -> list[str]:
    """Return the lines of a Codex file without the settings that this module writes."""
    table, lines = "", []
    for line in text.splitlines():
        if header := _TABLE_HEADER_PATTERN.match(line):
            table = header[1]
        if table != f"model_providers.{PROVIDER_NAME}" and (table or not _CODEX_SETTING_PATTERN.match(line)):
            lines.append(line)
    return lines


CLIENT_FILES: Mapping[str, ClientFile] = {
    "claude-code": ClientFile("~/.claude/settings.json", _merge_claude_code),
    "codex": ClientFile("~/.codex/config.toml", _merge_codex),
    "opencode": ClientFile("~/.config/opencode/opencode.json", _json_merger("opencode")),
    "continue": ClientFile("~/.continue/config.yaml", _merge_continue),
    "openclaw": ClientFile("~/.openclaw/openclaw.json", _json_merger("openclaw")),
    "aider": ClientFile(
        "~/.aider.conf.yml",
        _merge_aider,
        {".aider.model.metadata.json": _merge_aider_metadata},
        key_variable="OPENAI_API_KEY",
    ),
    "litellm": ClientFile("", _merge_litellm),
}
#: reasons why the settings of some clients can't be written, as clauses that follow the client's name
UNWRITABLE_REASONS = {
    "cline": "keeps its settings in VS Code's own storage, and the key among its secrets",
    "open-webui": "reads its environment at its first start only, and keeps its settings in its database",
}


def write_settings(client: str, endpoint: Endpoint, file: str = "") -> list[str]:
    """Merge the settings into a client's files, and return lines that describe the changes.

    Args:
        client: a name in `client_formats.FORMATS`.
        file: path of the file; if empty, the client's default path.

    Raises:
        Refused: the client has no file, or one of its files can't be merged. No file was written.
    """
    client_file = CLIENT_FILES.get(client)
    if client_file is None:
        fix = f"Leave out --write to print the settings. Files are written for {', '.join(CLIENT_FILES)}."
        reason = UNWRITABLE_REASONS.get(client, "has no file for settings")
        raise Refused(f"{client} {reason}, so --write is not possible.", where="--write", fix=fix)
    if not (file or client_file.path):
        raise Refused(f"{client} has no default settings file.", where="--write", fix="Name it: --file FILE.")
    path = Path(os.path.realpath(Path(file or client_file.path).expanduser()))
    mergers = {path: client_file.merge} | {
        path.with_name(name): merge for name, merge in client_file.other_files.items()
    }
    texts = {path: _merge_file(path, merge, endpoint) for path, merge in mergers.items()}
    lines = [line for path, (old_text, new_text) in texts.items() for line in _write_file(path, old_text, new_text)]
    variable = client_file.key_variable
    if variable and endpoint.key_variable not in ("", variable):
        lines.append(f'{client} reads the key from {variable}: export {variable}="${endpoint.key_variable}"')
    return lines


def _merge_file(path: Path, merge: Merger, endpoint: Endpoint) -> tuple[str, str]:
    """Return a file's text before and after the merge. Raises Refused if it can't be merged."""
    try:
        old_text = _read_file(path)
        return old_text, merge(old_text, endpoint)
    except Unmergeable as reason:
        raise Refused(
            f"{path} {reason}.", where="--write", fix="Leave out --write, and add the printed settings manually."
        ) from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}.", where="--write") from None


def _write_file(path: Path, old_text: str, new_text: str) -> list[str]:
    """Write a file after backing up the previous one, and return lines that describe the changes. Raises Refused."""
    if old_text == new_text:
        return [f"{path} already has these settings"] if old_text else []
    try:
        backup_path = _back_up(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, new_text.encode(), mode=path.stat().st_mode & 0o777 if backup_path else NEW_FILE_MODE)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}.", where="--write") from None
    return [f"wrote {path}", *([f"previous file: {backup_path}"] if backup_path else [])]


def _read_file(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise Unmergeable("is too large for a settings file")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Unmergeable("is not text") from None


def _back_up(path: Path) -> Path | None:
    """Copy a file to a backup next to it, and return the backup's path; None if the file does not exist."""
    if not path.exists():
        return None
    timestamp = time.strftime("%Y%m%d-%H%M%S")
    candidate_paths = (path.with_name(f"{path.name}.{timestamp}{f'-{n}' if n else ''}.bak") for n in range(1000))
    backup_path = next(path_candidate for path_candidate in candidate_paths if not path_candidate.exists())
    shutil.copy2(path, backup_path)
    return backup_path
