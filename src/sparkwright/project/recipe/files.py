"""Files that a recipe puts into its container: rendered here and named by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright import visible
from sparkwright.engines.compile_caches import key_of, live_folder
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.playbook.blame import Blame
from sparkwright.project.recipe.recipe import Recipe
from sparkwright.protocol import expressions
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust.file_words import FOLDER
from sparkwright.trust.image_name import digest_of
from sparkwright.trust.secret_names import token_line

#: limit for one file
MOST_BYTES = 1 << 20
SECRET = "A secret belongs under `secrets:` of the host, or in `server_key`; anyone on the host can read this file."


def contents(recipe: Recipe, names: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the recipe's files, by their paths in the container. names: for templates.

    Raises Refused with file and line for one that is missing, too large, no text, cannot be rendered, or holds a secret.
    """
    return {path: _content(recipe, path, names) for path in recipe.file.files}


def digest(content: str) -> str:
    """Return the digest that names a file's content."""
    return hashlib.sha256(content.encode()).hexdigest()


def mount_options(digests: Mapping[str, str], home: str) -> Iterator[tuple[str, str]]:
    """Yield the options of `docker run` that mount the files, as a deploy leaves them below the home folder of the
    host's user."""
    for path, named in sorted(digests.items()):
        yield "--mount", f"type=bind,source={home}/.local/state/sparkwright/{FOLDER}/{named},target={path},readonly"


def _content(recipe: Recipe, path: str, names: Mapping[str, Any]) -> str:
    source, where = recipe.file.files[path], recipe.source.where("files", path)
    root = recipe.source.path.parents[recipe.name.count("/") + 1]
    found = shipped_files.path_of(root, f"templates/{source.template}") if source.template else root / source.file
    try:
        inside = any(
            found.resolve().is_relative_to(top.resolve()) for top in (root, shipped_files.source() / "templates")
        )
        there = found.is_file()
    except (OSError, ValueError):  # a name that no file can have
        inside, there = True, False
    if not inside:
        raise Refused(
            f"`files.{path}` names a file outside of the project.", where=where, fix="Copy it into the project."
        )
    if not there:
        name = visible.name(f"templates/{source.template}" if source.template else source.file)
        raise Refused(f"`files.{path}`: there is no {name}.", where=where, fix="Create it, or correct the name.")
    text = document.text_of(found, most_bytes=MOST_BYTES)
    if source.template:
        text = _rendered(found, text, names)
    if len(text.encode()) > MOST_BYTES:
        raise Refused(f"`files.{path}` renders to more than {MOST_BYTES >> 20} MiB.", where=where, fix="Shorten it.")
    for line in _secrets(text):
        at = f"{document.shown(found)}:{line}" if not source.template else document.shown(found)
        raise Refused(f"`files.{path}` holds what looks like a secret.", where=at, fix=SECRET)
    return text


def _rendered(path: Path, text: str, names: Mapping[str, Any]) -> str:
    try:
        return str(expressions.render(text, names))
    except expressions.ExpressionError as error:
        raise Refused(f"{error}.", where=Blame.text(path)(error.line)) from None


def _secrets(text: str) -> Iterator[int]:
    """Return the numbers of the lines that hold a secret, from 1."""
    return (n for n, line in enumerate(text.splitlines(), 1) if token_line(line))


def key(recipe: Recipe, spec: ContainerSpec, model: Mapping[str, Any], command: tuple[str, ...]) -> str:
    """Return the key of the folder; empty for none, and while image or model are not pinned.

    The key covers everything that compiled files may depend on: image, model, arguments, environment, files, user.

    Args:
        model: see `scope.pinned_model`.
        command: see `container_spec`.
    """
    caches, digest, commit = recipe.engine.caches, digest_of(spec.image), model.get("commit")
    if caches is None or not recipe.file.container.compile_caches or not digest or not commit:
        return ""
    if caches.kept_elsewhere(spec.env, _mounted(spec)):
        return ""
    words, further = recipe.engine.command(command), [item["commit"] for item in model.get("models", ())]
    return key_of(
        {
            "image": digest,
            "model": [recipe.file.model.id, commit, words.model, *further],
            "flags": caches.that_matter(words.flags),
            **{name: getattr(spec, name) for name in ("entrypoint", "env", "files", "user", "gpus")},
        }
    )


def options(recipe: Recipe, spec: ContainerSpec, home: str) -> list[tuple[str, str]]:
    """Return the options of `docker run` for the caches, as the host sets them. home: the home folder of the host's user."""
    caches = recipe.engine.caches
    if caches is None or not spec.caches:
        return []
    mounts = caches.sources(live_folder(home, spec.caches, spec.name)).items()
    variables = sorted((name, value) for name, value in caches.environment.items() if name not in spec.env)
    return [
        *(("--mount", f"type=bind,source={source},target={target}") for target, source in mounts),
        *(("-e", f"{name}={value}") for name, value in variables),
    ]


def _mounted(spec: ContainerSpec) -> list[str]:
    volumes = [volume.split(":")[1] for volume in spec.volumes]
    return [*volumes, *(item.partition(":")[0] for item in spec.tmpfs)]
