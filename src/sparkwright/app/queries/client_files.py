"""Merging of settings into a client's own file. Other content is preserved, and a backup of the file is kept.

A key is never written: a file names the environment variable that holds it, or a command that prints it.
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
from sparkwright.app.queries.client_formats import PROVIDER, Endpoint
from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically

#: size limit of a settings file
MAX_FILE_BYTES = 4 * 2**20
#: mode of a new file, because its content may reveal who can use a server
NEW_FILE_MODE = 0o600
Merger = Callable[[str, Endpoint], str]
_HEADER = re.compile(r"^\s{0,80}\[{1,2}\s{0,20}([^\[\]\s]{1,200})\s{0,20}\]")
_CODEX_OWN = re.compile(r"^\s{0,80}(?:model|model_provider|model_context_window)\s{0,80}=")


class Unmergeable(Exception):
    """Raised for a file that can't be merged; the message is a clause that follows the file's name."""


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A client's file."""

    #: usual path; empty if the client has none
    path: str
    #: returns the file's text with the settings merged, or raises Unmergeable
    merged: Merger
    #: further files in the same folder, by name
    beside: Mapping[str, Merger] = field(default_factory=dict)
    #: variable that the client reads the key from, if its file can't name another one
    key_variable: str = ""


def _merge_mappings(before: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings; our value wins if both have a key."""
    merged = dict(before)
    for name, value in ours.items():
        previous = merged.get(name)
        both = isinstance(previous, dict) and isinstance(value, dict)
        merged[name] = _merge_mappings(previous, value) if both and isinstance(previous, dict) else value
    return merged


def _parse_json(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text or "{}")
    except ValueError:
        raise Unmergeable("is not JSON without comments") from None
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


def _merge_json(text: str, ours: Mapping[str, Any]) -> str:
    before = _parse_json(text)
    after = _merge_mappings(before, ours)
    return text if after == before else json.dumps(after, indent=2, ensure_ascii=False) + "\n"


def _format_yaml(text: str, after: Mapping[str, Any]) -> str:
    return text if after == _parse_yaml(text) else yaml.safe_dump(dict(after), sort_keys=False, allow_unicode=True)


def _merge_opencode(text: str, endpoint: Endpoint) -> str:
    return _merge_json(text, json.loads(client_formats.FORMATS["opencode"].text(endpoint)))


def _merge_claude_code(text: str, endpoint: Endpoint) -> str:
    ours: dict[str, Any] = {"env": client_formats.claude_variables(endpoint)}
    if endpoint.key_variable:
        ours["apiKeyHelper"] = f"printenv {endpoint.key_variable}"
    return _merge_json(text, ours)


def _merge_yaml_list(text: str, ours: Mapping[str, Any], key: str, is_same: Callable[[Any], bool]) -> str:
    """Return a YAML file in which our row replaces the same row of one of its lists."""
    before, (row,) = _parse_yaml(text), ours[key]
    rows = before.get(key) or []
    if not isinstance(rows, list):
        raise Unmergeable(f"has a `{key}` that is not a list")
    others = [other for other in rows if not (isinstance(other, dict) and is_same(other))]
    position = next((n for n, other in enumerate(rows) if other not in others), len(others))
    return _format_yaml(text, {**ours, **before, key: [*others[:position], row, *others[position:]]})


def _merge_continue(text: str, endpoint: Endpoint) -> str:
    ours = yaml.safe_load(client_formats.FORMATS["continue"].text(endpoint))
    name = ours["models"][0]["name"]
    return _merge_yaml_list(text, ours, "models", lambda row: row.get("name") == name)


def _merge_litellm(text: str, endpoint: Endpoint) -> str:
    """Merge by name and model, because rows of the same name are servers that share its requests."""
    ours = yaml.safe_load(client_formats.FORMATS["litellm"].text(endpoint))

    def is_same(row: dict[str, Any]) -> bool:
        params = row.get("litellm_params")
        model = params.get("model") if isinstance(params, dict) else None
        return (row.get("model_name"), model) == (endpoint.model, f"openai/{endpoint.model}")

    return _merge_yaml_list(text, ours, "model_list", is_same)


def _merge_openclaw(text: str, endpoint: Endpoint) -> str:
    return _merge_json(text, json.loads(client_formats.FORMATS["openclaw"].text(endpoint)))


def _merge_aider(text: str, endpoint: Endpoint) -> str:
    ours = {"model": f"openai/{endpoint.model}", "openai-api-base": f"{endpoint.url}/v1"}
    if not endpoint.key_variable:
        ours["openai-api-key"] = client_formats.NO_KEY
    return _format_yaml(text, {**_parse_yaml(text), **ours})


def _merge_aider_metadata(text: str, endpoint: Endpoint) -> str:
    return _merge_json(text, client_formats.aider_metadata(endpoint))


def _merge_codex(text: str, endpoint: Endpoint) -> str:
    """Merge TOML as text to keep its comments, and parse the result to verify it."""
    new_text = client_formats.FORMATS["codex"].text(endpoint)
    try:
        before, ours = tomllib.loads(text), tomllib.loads(new_text)
    except tomllib.TOMLDecodeError:
        raise Unmergeable("is not TOML") from None
    providers = {**(before.get("model_providers") or {}), **ours["model_providers"]}
    other_settings = {name: value for name, value in before.items() if name != "model_context_window"}
    after = {**other_settings, **ours, "model_providers": providers}
    if after == before:
        return text
    top, _, table = new_text.partition("\n\n")
    merged = "\n".join([top, *_other_lines(text), "", table]) + "\n"
    try:
        parsed = tomllib.loads(merged)
    except tomllib.TOMLDecodeError:
        parsed = {}
    if parsed != after:
        raise Unmergeable(f"holds `model_providers.{PROVIDER}` in a form that cannot be replaced")
    return merged


def _other_lines(text: str) -> list[str]:
    """Return the lines of a codex file, except those of the settings that are written here."""
    table, lines = "", []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            table = header[1]
        if table != f"model_providers.{PROVIDER}" and (table or not _CODEX_OWN.match(line)):
            lines.append(line)
    return lines


CLIENT_FILES: Mapping[str, ClientFile] = {
    "claude-code": ClientFile("~/.claude/settings.json", _merge_claude_code),
    "codex": ClientFile("~/.codex/config.toml", _merge_codex),
    "opencode": ClientFile("~/.config/opencode/opencode.json", _merge_opencode),
    "continue": ClientFile("~/.continue/config.yaml", _merge_continue),
    "openclaw": ClientFile("~/.openclaw/openclaw.json", _merge_openclaw),
    "aider": ClientFile(
        "~/.aider.conf.yml",
        _merge_aider,
        {".aider.model.metadata.json": _merge_aider_metadata},
        key_variable="OPENAI_API_KEY",
    ),
    "litellm": ClientFile("", _merge_litellm),
}
#: reasons why the settings of other clients are only printed
UNWRITABLE_REASONS = {
    "cline": "keeps its settings in VS Code's own storage, and the key among its secrets",
    "open-webui": "reads its environment at its first start only, and keeps its settings in its database",
}


def write_settings(client: str, endpoint: Endpoint, file: str = "") -> list[str]:
    """Merge the settings into a client's files, and return lines that describe what was done.

    Args:
        client: a name of `client_formats.FORMATS`.
        endpoint: the address and the model.
        file: path to use instead of the client's usual file.

    Raises:
        Refused: the client has no file, or the file can't be merged; nothing is written then.
    """
    client_file = CLIENT_FILES.get(client)
    if client_file is None:
        fix = f"Leave out --write: the settings are printed. Files are written for {', '.join(CLIENT_FILES)}."
        reason = UNWRITABLE_REASONS.get(client, "has no file of settings")
        raise Refused(f"{client} {reason}: there is nothing to merge into.", where="--write", fix=fix)
    if not (file or client_file.path):
        raise Refused(f"{client} has no usual file.", where="--write", fix="Name it: --file FILE.")
    first = Path(os.path.realpath(Path(file or client_file.path).expanduser()))
    mergers = {
        first: client_file.merged,
        **{first.with_name(name): merged for name, merged in client_file.beside.items()},
    }
    texts = {path: _merge_file(path, merged, endpoint) for path, merged in mergers.items()}
    lines = [line for path, (before, after) in texts.items() for line in _write_file(path, before, after)]
    if client_file.key_variable and endpoint.key_variable not in ("", client_file.key_variable):
        lines.append(
            f"{client} takes the key from {client_file.key_variable}: export "
            f'{client_file.key_variable}="${endpoint.key_variable}"'
        )
    return lines


def _merge_file(path: Path, merge: Merger, endpoint: Endpoint) -> tuple[str, str]:
    """Return a file's text before and after merging the settings. Raises Refused if it can't be merged."""
    try:
        before = _read_file(path)
        return before, merge(before, endpoint)
    except Unmergeable as why:
        raise Refused(f"{path} {why}.", where="--write", fix="Merge by hand: leave out --write.") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}.", where="--write") from None


def _write_file(path: Path, before: str, after: str) -> list[str]:
    """Write a file after backing up the previous one, and describe what was done. Raises Refused."""
    if before == after:
        return [f"{path} has these settings already"] if before else []
    try:
        backup = _back_up(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, after.encode(), mode=path.stat().st_mode & 0o777 if backup else NEW_FILE_MODE)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}.", where="--write") from None
    return [f"wrote {path}", *([f"the previous file: {backup}"] if backup else [])]


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
    """Back up the file and return the backup's path; None if there was no file."""
    if not path.exists():
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (path.with_name(f"{path.name}.{stamp}{f'-{n}' if n else ''}.bak") for n in range(1000))
    backup = next(name for name in names if not name.exists())
    shutil.copy2(path, backup)
    return backup
