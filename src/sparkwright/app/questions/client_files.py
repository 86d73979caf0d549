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

from sparkwright.app.questions import client_formats
from sparkwright.app.questions.client_formats import PROVIDER, Endpoint
from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically

#: size limit of a settings file
LARGEST_BYTES = 4 * 2**20
#: mode of a new file, because its content may reveal who can use a server
MODE = 0o600
Merged = Callable[[str, Endpoint], str]
_HEADER = re.compile(r"^\s{0,80}\[{1,2}\s{0,20}([^\[\]\s]{1,200})\s{0,20}\]")
_CODEX_OWN = re.compile(r"^\s{0,80}(?:model|model_provider|model_context_window)\s{0,80}=")


class Unmergeable(Exception):
    """Raised for a file that can't be merged; the message is a clause that follows the file's name."""


@dataclass(frozen=True, slots=True)
class Place:
    """A client's file."""

    #: usual path; empty if the client has none
    path: str
    #: returns the file's text with the settings merged, or raises Unmergeable
    merged: Merged
    #: further files in the same folder, by name
    beside: Mapping[str, Merged] = field(default_factory=dict)
    #: variable that the client reads the key from, if its file can't name another one
    key_variable: str = ""


def _joined(before: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings; our value wins if both have a key."""
    found = dict(before)
    for name, value in ours.items():
        held = found.get(name)
        both = isinstance(held, dict) and isinstance(value, dict)
        found[name] = _joined(held, value) if both and isinstance(held, dict) else value
    return found


def _json_of(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        raise Unmergeable("is not JSON without comments") from None
    if not isinstance(found, dict):
        raise Unmergeable("is not a JSON object")
    return found


def _yaml_of(text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text) or {}
    except yaml.YAMLError:
        raise Unmergeable("is not YAML") from None
    if not isinstance(found, dict):
        raise Unmergeable("is not a mapping")
    return found


def _in_json(text: str, ours: Mapping[str, Any]) -> str:
    before = _json_of(text)
    after = _joined(before, ours)
    return text if after == before else json.dumps(after, indent=2, ensure_ascii=False) + "\n"


def _in_yaml(text: str, after: Mapping[str, Any]) -> str:
    return text if after == _yaml_of(text) else yaml.safe_dump(dict(after), sort_keys=False, allow_unicode=True)


def _opencode(text: str, endpoint: Endpoint) -> str:
    return _in_json(text, json.loads(client_formats.FORMATS["opencode"].text(endpoint)))


def _claude_code(text: str, endpoint: Endpoint) -> str:
    ours: dict[str, Any] = {"env": client_formats.claude_variables(endpoint)}
    if endpoint.key_variable:
        ours["apiKeyHelper"] = f"printenv {endpoint.key_variable}"
    return _in_json(text, ours)


def _in_list(text: str, ours: Mapping[str, Any], key: str, same: Callable[[Any], bool]) -> str:
    """Return a YAML file in which our row replaces the same row of one of its lists."""
    before, (row,) = _yaml_of(text), ours[key]
    held = before.get(key) or []
    if not isinstance(held, list):
        raise Unmergeable(f"has a `{key}` that is not a list")
    others = [other for other in held if not (isinstance(other, dict) and same(other))]
    place = next((n for n, other in enumerate(held) if other not in others), len(others))
    return _in_yaml(text, {**ours, **before, key: [*others[:place], row, *others[place:]]})


def _continue(text: str, endpoint: Endpoint) -> str:
    ours = yaml.safe_load(client_formats.FORMATS["continue"].text(endpoint))
    name = ours["models"][0]["name"]
    return _in_list(text, ours, "models", lambda row: row.get("name") == name)


def _litellm(text: str, endpoint: Endpoint) -> str:
    """Merge by name and model, because rows of the same name are servers that share its requests."""
    ours = yaml.safe_load(client_formats.FORMATS["litellm"].text(endpoint))

    def same(row: dict[str, Any]) -> bool:
        params = row.get("litellm_params")
        model = params.get("model") if isinstance(params, dict) else None
        return (row.get("model_name"), model) == (endpoint.model, f"openai/{endpoint.model}")

    return _in_list(text, ours, "model_list", same)


def _openclaw(text: str, endpoint: Endpoint) -> str:
    return _in_json(text, json.loads(client_formats.FORMATS["openclaw"].text(endpoint)))


def _aider(text: str, endpoint: Endpoint) -> str:
    ours = {"model": f"openai/{endpoint.model}", "openai-api-base": f"{endpoint.url}/v1"}
    if not endpoint.key_variable:
        ours["openai-api-key"] = client_formats.NO_KEY
    return _in_yaml(text, {**_yaml_of(text), **ours})


def _aider_metadata(text: str, endpoint: Endpoint) -> str:
    return _in_json(text, client_formats.aider_metadata(endpoint))


def _codex(text: str, endpoint: Endpoint) -> str:
    """Merge TOML as text to keep its comments, and parse the result to verify it."""
    own = client_formats.FORMATS["codex"].text(endpoint)
    try:
        before, ours = tomllib.loads(text), tomllib.loads(own)
    except tomllib.TOMLDecodeError:
        raise Unmergeable("is not TOML") from None
    providers = {**(before.get("model_providers") or {}), **ours["model_providers"]}
    kept = {name: value for name, value in before.items() if name != "model_context_window"}
    after = {**kept, **ours, "model_providers": providers}
    if after == before:
        return text
    top, _, table = own.partition("\n\n")
    made = "\n".join([top, *_others(text), "", table]) + "\n"
    try:
        read = tomllib.loads(made)
    except tomllib.TOMLDecodeError:
        read = {}
    if read != after:
        raise Unmergeable(f"holds `model_providers.{PROVIDER}` in a form that cannot be replaced")
    return made


def _others(text: str) -> list[str]:
    """Return the lines of a codex file, except those of the settings that are written here."""
    table, lines = "", []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            table = header[1]
        if table != f"model_providers.{PROVIDER}" and (table or not _CODEX_OWN.match(line)):
            lines.append(line)
    return lines


PLACES: Mapping[str, Place] = {
    "claude-code": Place("~/.claude/settings.json", _claude_code),
    "codex": Place("~/.codex/config.toml", _codex),
    "opencode": Place("~/.config/opencode/opencode.json", _opencode),
    "continue": Place("~/.continue/config.yaml", _continue),
    "openclaw": Place("~/.openclaw/openclaw.json", _openclaw),
    "aider": Place(
        "~/.aider.conf.yml", _aider, {".aider.model.metadata.json": _aider_metadata}, key_variable="OPENAI_API_KEY"
    ),
    "litellm": Place("", _litellm),
}
#: reasons why the settings of other clients are only printed
PRINTED = {
    "cline": "keeps its settings in VS Code's own storage, and the key among its secrets",
    "open-webui": "reads its environment at its first start only, and keeps its settings in its database",
}


def write(client: str, endpoint: Endpoint, file: str = "") -> list[str]:
    """Merge the settings into a client's files, and return lines that describe what was done.

    Args:
        client: a name of `client_formats.FORMATS`.
        endpoint: the address and the model.
        file: path to use instead of the client's usual file.

    Raises:
        Refused: the client has no file, or the file can't be merged; nothing is written then.
    """
    place = PLACES.get(client)
    if place is None:
        fix = f"Leave out --write: the settings are printed. Files are written for {', '.join(PLACES)}."
        why = PRINTED.get(client, "has no file of settings")
        raise Refused(f"{client} {why}: there is nothing to merge into.", where="--write", fix=fix)
    if not (file or place.path):
        raise Refused(f"{client} has no usual file.", where="--write", fix="Name it: --file FILE.")
    first = Path(os.path.realpath(Path(file or place.path).expanduser()))
    found = {first: place.merged, **{first.with_name(name): merged for name, merged in place.beside.items()}}
    texts = {path: _merged(path, merged, endpoint) for path, merged in found.items()}
    lines = [line for path, (before, after) in texts.items() for line in _written(path, before, after)]
    if place.key_variable and endpoint.key_variable not in ("", place.key_variable):
        lines.append(
            f'{client} takes the key from {place.key_variable}: export {place.key_variable}="${endpoint.key_variable}"'
        )
    return lines


def _merged(path: Path, merged: Merged, endpoint: Endpoint) -> tuple[str, str]:
    """Return a file's text before and after merging the settings. Raises Refused if it can't be merged."""
    try:
        before = _read(path)
        return before, merged(before, endpoint)
    except Unmergeable as why:
        raise Refused(f"{path} {why}.", where="--write", fix="Merge by hand: leave out --write.") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}.", where="--write") from None


def _written(path: Path, before: str, after: str) -> list[str]:
    """Write a file after backing up the previous one, and describe what was done. Raises Refused."""
    if before == after:
        return [f"{path} has these settings already"] if before else []
    try:
        backup = _kept(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, after.encode(), mode=path.stat().st_mode & 0o777 if backup else MODE)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}.", where="--write") from None
    return [f"wrote {path}", *([f"the previous file: {backup}"] if backup else [])]


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise Unmergeable("is too large for a settings file")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Unmergeable("is not text") from None


def _kept(path: Path) -> Path | None:
    """Back up the file and return the backup's path; None if there was no file."""
    if not path.exists():
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (path.with_name(f"{path.name}.{stamp}{f'-{n}' if n else ''}.bak") for n in range(1000))
    backup = next(name for name in names if not name.exists())
    shutil.copy2(path, backup)
    return backup
