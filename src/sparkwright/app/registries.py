"""Recipes from registries: fetch at a pinned commit, search by word, and show before importing."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sparkwright.app.prompts import agreed
from sparkwright.app.recipe_exchange import Source, of_source
from sparkwright.console.out import say, say_json, say_prose
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.project import registries
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project
from sparkwright.project.importing.recipe_of import Taken
from sparkwright.project.importing.sparkrun import SCRIPT
from sparkwright.project.registries import Registry
from sparkwright.remote.git import File, Repository
from sparkwright.units import MIB
from sparkwright.visible import count, one_line

ENDINGS = (".yaml", ".yml")
#: limits on a recipe's mod scripts: their number and their total size
MOST_SCRIPTS, MOST_SCRIPT_BYTES = 400, 4 * MIB
#: limit on the folder depth of a written file
MOST_STEPS = 32
#: size limits for recipes that a search parses for their models: of one, and of all together; the largest known is 20 kB
MOST_PARSED_BYTES, MOST_PARSED_BYTES_OF_ALL = 64 * 1024, 4 * MIB
SHORT = 12


@dataclass(frozen=True)
class Found:
    """A recipe in a registry."""

    registry: Registry
    commit: str
    #: path in the repository
    path: str
    #: the model; empty if the file does not name one
    model: str

    @property
    def name(self) -> str:
        """The name to pass to `recipe.import`."""
        below = self.path.removeprefix(f"{self.registry.recipes}/") if self.registry.recipes else self.path
        return f"@{self.registry.name}/{PurePosixPath(below).with_suffix('')}"


def search(word: str, *, update: bool, as_json: bool) -> Exit:
    """Print the recipes whose path or text contains a word, ignoring case.

    Args:
        word: the word to search for.
        update: follow each registry's branch first.
        as_json: print one JSON object.

    Returns:
        The exit code. A registry that can't be read is reported on standard error, and the others are still searched.
    """
    project = Project.here().root
    found: list[Found] = []
    failed: list[SparkwrightError] = []
    added = registries.load(project)
    for registry in added:
        try:
            found += _matching(project, registry, word.lower(), update=update)
        except SparkwrightError as error:
            failed.append(error)
            say_prose(str(error), file=sys.stderr)
    ended = failed[0].exit if failed else Exit.OK
    if as_json:
        rows = [
            {"name": row.name, "model": row.model, "path": row.path, "commit": row.commit, "url": row.registry.url}
            for row in found
        ]
        say_json({"recipes": rows})
        return ended
    width = max((len(row.name) for row in found), default=0)
    for row in found:
        say(f"{row.name:<{width}}  {one_line(row.model, at_most=80)}")
    if found:
        say_prose(f"{count(len(found), 'recipe')}. Take one: `invoke recipe.import {found[0].name}`.")
    elif len(failed) < len(added):
        names = ", ".join(registry.name for registry in added)
        say_prose(f"No recipe of {names} contains '{one_line(word, at_most=80)}'.")
    return ended


def _matching(project: Path, registry: Registry, word: str, *, update: bool) -> list[Found]:
    """Return the recipes of a registry whose path or text contains a word in lower case. Raises SparkwrightError."""
    repository, commit = _ready(project, registry, update=update)
    found = []
    parsed_bytes = 0
    for file, text in repository.texts(_recipes(repository, registry, commit)):
        if word not in file.path.lower() and word not in text.lower():
            continue
        model = ""
        if file.size_bytes <= MOST_PARSED_BYTES and parsed_bytes < MOST_PARSED_BYTES_OF_ALL:
            parsed_bytes += file.size_bytes
            model = _model(text, file.path)
        found.append(Found(registry, commit, file.path, model))
    return found


def take(given: str, name: str, answers: Mapping[str, str], *, yes: bool, as_json: bool) -> Taken:
    """Show the recipe @REGISTRY/NAME, ask for confirmation, and return it.

    Raises Refused if it is not confirmed, does not exist, or the name is ambiguous.
    """
    project = Project.here().root
    registry, _, wanted = given.removeprefix("@").partition("/")
    source = registries.of(project, registry)
    repository, commit = _ready(project, source, update=False)
    file = _file(repository, source, commit, wanted)
    text = repository.text(file)
    origin = f"{source.url} at {commit[:SHORT]}, {file.path}"
    if not as_json:
        say(f"{origin}\n\n{text.rstrip()}\n", file=sys.stderr)
    if not agreed("Take this recipe?", yes=yes):
        raise Refused("the recipe was not taken.", fix="Read it, then pass --yes.")
    with _laid_out(repository, commit, file.path, text) as there:
        try:
            return of_source(Source(text, there, origin), name, answers)
        except Refused as error:
            error.where = error.where.replace(document.shown(there), given)
            raise


def _ready(project: Path, registry: Registry, *, update: bool) -> tuple[Repository, str]:
    """Return the local repository and its pinned commit. A registry is pinned if it is not yet, or updated on request."""
    repository = Repository(registry.url, registry.name)
    if registry.commit and not update:
        if not repository.has(registry.commit):
            repository.fetch(registry.commit)
        return repository, registry.commit
    commit = repository.fetch(registry.ref)
    if commit != registry.commit:
        before = f"{registry.commit[:SHORT]} -> " if registry.commit else ""
        say(f"{registries.LOCK}: {registry.name} {before}{commit[:SHORT]}.", file=sys.stderr)
        registries.pin(project, registry, commit)
    return repository, commit


def _recipes(repository: Repository, registry: Registry, commit: str) -> list[File]:
    files = (file for file in repository.files(commit, registry.recipes) if file.path.endswith(ENDINGS))
    return [file for file in files if not any(step[:1] == "." for step in file.path.split("/"))]


def _file(repository: Repository, registry: Registry, commit: str, wanted: str) -> File:
    """Return the file with this path, or whose path ends with it. Raises Refused if there is not exactly one."""
    files = {str(PurePosixPath(file.path).with_suffix("")): file for file in _recipes(repository, registry, commit)}
    full = f"{registry.recipes}/{wanted}" if registry.recipes else wanted
    if full in files:
        return files[full]
    found = [file for name, file in files.items() if name.lower().endswith(f"/{wanted.lower()}")]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(one_line(file.path, at_most=100) for file in found[:5])
        raise Refused(f"@{registry.name}/{wanted} means {len(found)} recipes: {listed}.", fix="Name more of its path.")
    fix = nearest(wanted, {name.rpartition("/")[2] for name in files})
    raise Refused(
        f"the registry {registry.name} has no recipe '{one_line(wanted, at_most=80)}' at {commit[:SHORT]}.",
        fix=one_line(fix, at_most=300),
    )


@contextmanager
def _laid_out(repository: Repository, commit: str, path: str, text: str) -> Iterator[Path]:
    """Write the recipe and its mods' scripts to a temporary folder. The scripts are read but never run.

    A script whose path is invalid on this machine is left out; its mod is then named without its content.
    """
    with tempfile.TemporaryDirectory(prefix="sparkwright-") as folder:
        there = Path(folder, path) if _write(Path(folder), path, text) else Path(folder, "recipe.yaml")
        there.write_text(text, encoding="utf-8")
        for file, script in repository.texts(_scripts(repository, commit)):
            _write(Path(folder), file.path, script)
        yield there


def _scripts(repository: Repository, commit: str) -> list[File]:
    found: list[File] = []
    size = 0
    for file in repository.files(commit, ""):
        if file.path.endswith(f"/{SCRIPT}") and len(found) < MOST_SCRIPTS:
            size += file.size_bytes
            if size > MOST_SCRIPT_BYTES:
                break
            found.append(file)
    return found


def _write(folder: Path, inside: str, text: str) -> bool:
    """Write a file below a folder. Return False if its path leads out of the folder or is invalid on this machine."""
    steps = PurePosixPath(inside).parts
    if ".." in steps or inside.startswith("/") or len(steps) > MOST_STEPS:
        return False
    target = folder / inside
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except (OSError, ValueError):  # the name is too long, is a folder, or is invalid on this file system
        return False
    return True


def _model(text: str, path: str) -> str:
    try:
        data: Any = document.parse(text, Path(path)).data
    except Refused:
        return "(not readable)"
    model = data.get("model") if isinstance(data, dict) else None
    found = model.get("model_id") or model.get("id") if isinstance(model, dict) else model
    return found if isinstance(found, str) else ""
