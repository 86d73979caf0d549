"""registries.yml, the user's repositories of recipes, and registries.lock, their pinned commits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml

from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import Strict, build_validator, schema_field, suggest_name, validate
from sparkwright.trust.names import COMMIT, check_file_name
from sparkwright.visible import one_line

REGISTRIES_FILE, LOCK_FILE = "registries.yml", "registries.lock"
LOCK_HEADER = "# Written by sparkwright: the pinned commit of each registry. Commit this file.\n"

#: URLs that are safe to pass to git: no password, no option, no transport that runs a program
_REMOTE_URL_PATTERN = re.compile(
    r"(https|ssh)://(?:[A-Za-z0-9._-]{1,64}@)?[A-Za-z0-9.-]{1,255}(?::[0-9]{1,5})?/[A-Za-z0-9._~/+-]{1,500}"
)
_LOCAL_URL_PATTERN = re.compile(r"file:///[^\x00-\x1f]{1,500}")


def url_error(url: str) -> str:
    """Return the reason why a URL must not be passed to git; empty if it is safe."""
    if _REMOTE_URL_PATTERN.fullmatch(url) or _LOCAL_URL_PATTERN.fullmatch(url):
        return ""
    return "is not https://HOST/PATH, ssh://[USER@]HOST/PATH or file:///PATH, without a password"


def folder_error(path: str) -> str:
    """Return the reason why a path is not a folder of a repository; empty if it is valid."""
    components = path.strip("/").split("/") if path else []
    is_invalid = path.startswith("/") or any(part in ("..", "") or check_file_name(part) for part in components)
    return "is not a folder of the repository, such as official-recipes" if is_invalid else ""


class RegistryFile(Strict):
    """An entry of registries.yml: a repository of recipes."""

    url: Annotated[str, build_validator(url_error)] = schema_field("https://, ssh:// or file:/// URL for git")
    recipes: Annotated[str, build_validator(folder_error)] = schema_field(
        "the folder of its recipes; empty for the whole repository", ""
    )
    ref: str = schema_field(
        "branch or tag that `--update` follows", "HEAD", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,200}$"
    )


@dataclass(frozen=True)
class Registry:
    """A repository of recipes."""

    name: str
    url: str
    #: folder of the recipes; empty for the whole repository
    recipes: str
    ref: str
    #: pinned commit; empty if the registry has never been fetched
    commit: str = ""


def load(project: Path) -> list[Registry]:
    """Read registries.yml and registries.lock. Raises Refused with file and line, or if registries.yml is missing."""
    path = project / REGISTRIES_FILE
    if not document.exists(path):
        fix = "Write one: `official: {url: https://github.com/spark-arena/recipe-registry, recipes: official-recipes}`."
        raise Refused(f"no {REGISTRIES_FILE} in {project}.", fix=fix)
    source = document.load(path)
    if not isinstance(source.data, dict):
        raise Refused("must be a mapping of registries.", where=source.where())
    pinned_commits = load_commits(project)
    registries = []
    for name, data in source.data.items():
        if not isinstance(name, str) or "/" in name or check_file_name(name):
            raise Refused(
                f"'{one_line(str(name), max_chars=60)}' is not a valid registry name.", where=source.where(name)
            )
        registry_file = validate(RegistryFile, source, data, (name,))
        commit, url = pinned_commits.get(name, ("", ""))
        pinned_commit = commit if url == registry_file.url else ""
        registries.append(Registry(name, registry_file.url, registry_file.recipes, registry_file.ref, pinned_commit))
    return registries


def get_registry(project: Path, name: str) -> Registry:
    """Return a registry by name. Raises Refused, suggesting the nearest name, if there is none."""
    registries = {registry.name: registry for registry in load(project)}
    if name not in registries:
        raise Refused(
            f"no registry '{one_line(name, max_chars=60)}' in {REGISTRIES_FILE}.", fix=suggest_name(name, registries)
        )
    return registries[name]


def load_commits(project: Path) -> dict[str, tuple[str, str]]:
    """Return commit and URL of each pinned registry, by name. Raises Refused if registries.lock is invalid."""
    path = project / LOCK_FILE
    if not document.exists(path):
        return {}
    source = document.load(path)
    rows = source.data if isinstance(source.data, dict) else {}
    commits_by_name = {}
    for name, row in rows.items():
        commit, url = (row.get("commit"), row.get("url")) if isinstance(row, dict) else (None, None)
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit) or not isinstance(url, str):
            raise Refused(
                "must have `url` and `commit`.",
                where=source.where(name),
                fix=f"Delete {LOCK_FILE}; it is written again.",
            )
        commits_by_name[str(name)] = (commit, url)
    return commits_by_name


def pin(project: Path, registry: Registry, commit: str) -> None:
    """Write a registry's commit to registries.lock."""
    rows = {name: {"url": url, "commit": pinned_commit} for name, (pinned_commit, url) in load_commits(project).items()}
    rows[registry.name] = {"url": registry.url, "commit": commit}
    write_atomically(project / LOCK_FILE, (LOCK_HEADER + yaml.safe_dump(rows)).encode(), mode=0o644)
