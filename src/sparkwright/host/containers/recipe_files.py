"""The files that a recipe adds to its container, stored by digest so that a rollback finds the previous server's files.

~/.local/state/sparkwright/recipe_files/SHA256    0444, mounted read-only
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.module import Context
from sparkwright.host.records import verified_states
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change
from sparkwright.trust.model_files import RECIPE_FILES_FOLDER as FILES_FOLDER

#: maximum length of a file that a diff shows, in characters
MAX_DIFF_CHARS = 1 << 16
SHORT_DIGEST_CHARS = 12
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")


def mounted_digests(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the recipe files that a container has mounted, by their paths in the container."""
    mounts = (container.get("HostConfig") or {}).get("Mounts") or ()
    rows = ((str(mount.get("Target")), _parse_digest(str(mount.get("Source")))) for mount in mounts)
    return {path: digest for path, digest in rows if digest}


def differences(spec: ContainerSpec, container: Mapping[str, Any]) -> list[Change]:
    """Return a change for each file whose digest differs."""
    digests = mounted_digests(container)
    reason = "the server reads it when it starts"
    return [
        Change(f"file {path}", _shorten(digests.get(path)), _shorten(spec.files.get(path)), reason)
        for path in _all_paths(spec, container)
        if digests.get(path) != spec.files.get(path)
    ]


def read_contents(
    state: StateFolder, spec: ContainerSpec, container: Mapping[str, Any], sent_files: Mapping[str, str]
) -> dict[str, str]:
    """Return the contents of the spec's files and of the mounted ones, by digest.

    Files that are neither stored nor sent, and those longer than MAX_DIFF_CHARS, are left out.
    """
    digests = {*spec.files.values(), *mounted_digests(container).values()}
    return {digest: text for digest in digests if (text := _read_text(state, digest, sent_files)) is not None}


def with_contents(
    changes: list[Change], spec: ContainerSpec, container: Mapping[str, Any], texts: Mapping[str, str]
) -> list[Change]:
    """Return the same changes, with the contents of files instead of their digests.

    Args:
        texts: see `read_contents`.
    """
    mounted_files = mounted_digests(container)
    digests = {f"file {path}": (mounted_files.get(path), spec.files.get(path)) for path in _all_paths(spec, container)}
    detailed_changes = []
    for change in changes:
        if change.field in digests:
            before, after = (_content_or_digest(digest, texts) for digest in digests[change.field])
            change = replace(change, before=before, after=after)
        detailed_changes.append(change)
    return detailed_changes


def require_available(state: StateFolder, spec: ContainerSpec, sent_files: Mapping[str, str]) -> None:
    """Raise Failed if a file was not sent with this run and is not on this host, before any server is stopped."""
    for path, digest in spec.files.items():
        if digest not in sent_files and not _is_stored(state, digest):
            fix = '`container` needs `files: "{{ recipe_files }}"` in the playbook (docs/upgrading.md).'
            raise Failed(f"the file {path} of {spec.name} is not on this host.", fix=fix)


def prepare_mounts(state: StateFolder, spec: ContainerSpec, sent_files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Write the missing files and return the mounts of all files. Raises Failed if a file is not available."""
    return [
        {"Type": "bind", "Source": str(_ensure_file(state, path, digest, sent_files)), "Target": path, "ReadOnly": True}
        for path, digest in sorted(spec.files.items())
    ]


def remove_unneeded(context: Context) -> None:
    """Remove the files that neither a container nor a verified state needs."""
    folder = context.state.path / FILES_FOLDER
    if not folder.is_dir():
        return
    states = verified_states.iter_all_servers(context.state)
    needed_digests = {digest for verified in states for digest in verified.spec.get("files", {}).values()}
    for row in context.docker().api.containers(all=True):
        needed_digests |= {_parse_digest(str(mount.get("Source"))) for mount in row.get("Mounts") or ()}
    for path in folder.iterdir():
        if path.name not in needed_digests:
            path.unlink(missing_ok=True)


def _parse_digest(source: str) -> str:
    """Return the digest in the path of a stored recipe file; empty for another path."""
    folder, _, name = source.rpartition("/")
    return name if folder.endswith(f"/{FILES_FOLDER}") and _DIGEST_PATTERN.fullmatch(name) else ""


def _ensure_file(state: StateFolder, path: str, digest: str, sent_files: Mapping[str, str]) -> Path:
    stored_path = state.path / FILES_FOLDER / digest
    if _is_stored(state, digest):
        return stored_path
    content = sent_files.get(digest, "").encode()
    if not _DIGEST_PATTERN.fullmatch(digest) or hashlib.sha256(content).hexdigest() != digest:
        raise Failed(f"the file {path} is missing or changed on this host.", fix="`invoke deploy` places it.")
    state.folder(FILES_FOLDER)
    write_atomically(stored_path, content, mode=0o444)
    return stored_path


def _is_stored(state: StateFolder, digest: str) -> bool:
    try:
        content = (state.path / FILES_FOLDER / digest).read_bytes() if _DIGEST_PATTERN.fullmatch(digest) else None
    except OSError:
        return False
    return content is not None and hashlib.sha256(content).hexdigest() == digest


def _read_text(state: StateFolder, digest: str, sent_files: Mapping[str, str]) -> str | None:
    try:
        text = sent_files.get(digest) or (state.path / FILES_FOLDER / digest).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) <= MAX_DIFF_CHARS else None


def _all_paths(spec: ContainerSpec, container: Mapping[str, Any]) -> list[str]:
    return sorted(mounted_digests(container).keys() | spec.files.keys())


def _content_or_digest(digest: str | None, texts: Mapping[str, str]) -> str | None:
    return texts.get(digest, digest[:SHORT_DIGEST_CHARS]) if digest else None


def _shorten(digest: str | None) -> str | None:
    return digest[:SHORT_DIGEST_CHARS] if digest else None
