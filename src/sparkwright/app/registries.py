"""Recipes of registries: fetched at a pinned commit, searched by word, and shown before one is taken."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sparkwright.app.importing import Source, of_source
from sparkwright.app.prompts import agreed
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused
from sparkwright.project import registries
from sparkwright.project.documents import document
from sparkwright.project.documents.checked import nearest
from sparkwright.project.folder import Project
from sparkwright.project.importing.mods import SCRIPT
from sparkwright.project.importing.recipe_of import Taken
from sparkwright.project.registries import Registry
from sparkwright.remote.git import Repository
from sparkwright.visible import count, one_line

ENDINGS = (".yaml", ".yml")
MOST_SCRIPTS = 400
SHORT = 12


@dataclass(frozen=True)
class Found:
    """A recipe of a registry. path: in its repository. model: "" where the file does not say."""

    registry: Registry
    commit: str
    path: str
    model: str

    @property
    def name(self) -> str:
        """As `recipe.import` takes it: the shortest path that means it."""
        below = self.path.removeprefix(f"{self.registry.recipes}/") if self.registry.recipes else self.path
        return f"@{self.registry.name}/{PurePosixPath(below).with_suffix('')}"


def search(word: str, *, update: bool, as_json: bool) -> None:
    """Print the recipes whose path or text has a word, in any case. update: follow each registry's branch first."""
    project = Project.here().root
    found: list[Found] = []
    added = registries.load(project)
    for one in added:
        repository, commit = _ready(project, one, update=update)
        for path, text in repository.texts(commit, _recipes(repository, one, commit)):
            if word.lower() in path.lower() or word.lower() in text.lower():
                found.append(Found(one, commit, path, _model(text, path)))
    if as_json:
        rows = [
            {"name": one.name, "model": one.model, "path": one.path, "commit": one.commit, "url": one.registry.url}
            for one in found
        ]
        return say_json({"recipes": rows})
    width = max((len(one.name) for one in found), default=0)
    for row in found:
        say(f"{row.name:<{width}}  {one_line(row.model, at_most=80)}")
    if not found:
        return say(f"No recipe of {', '.join(one.name for one in added)} contains '{one_line(word, at_most=80)}'.")
    return say(f"{count(len(found), 'recipe')}. Take one: `invoke recipe.import {found[0].name}`.")


def take(given: str, name: str, answers: Mapping[str, str], *, yes: bool, as_json: bool) -> Taken:
    """The recipe @REGISTRY/NAME: shown first, and agreed to. Raises Refused where it is not, is not there, or means several."""
    project = Project.here().root
    registry, _, wanted = given.removeprefix("@").partition("/")
    one = registries.of(project, registry)
    repository, commit = _ready(project, one, update=False)
    path = _path(repository, one, commit, wanted)
    text = repository.text(commit, path)
    origin = f"{one.url} at {commit[:SHORT]}, {path}"
    if not as_json:
        say(f"{origin}\n\n{text.rstrip()}\n", file=sys.stderr)
    if not agreed("Take this recipe?", yes=yes):
        raise Refused("the recipe was not taken.", fix="Read it, then pass --yes.")
    with _laid_out(repository, commit, path, text) as there:
        try:
            return of_source(Source(text, there, origin), name, answers)
        except Refused as error:
            error.where = error.where.replace(document.shown(there), given)
            raise


def _ready(project: Path, one: Registry, *, update: bool) -> tuple[Repository, str]:
    """The repository with its pinned commit here; pinned now where it never was, or is to be updated."""
    repository = Repository(one.url, one.name)
    if one.commit and not update:
        if not repository.has(one.commit):
            repository.fetch(one.commit)
        return repository, one.commit
    commit = repository.fetch(one.ref)
    if commit != one.commit:
        before = f"{one.commit[:SHORT]} -> " if one.commit else ""
        say(f"{registries.LOCK}: {one.name} {before}{commit[:SHORT]}.", file=sys.stderr)
        registries.pin(project, one, commit)
    return repository, commit


def _recipes(repository: Repository, one: Registry, commit: str) -> list[str]:
    hidden = (
        path for path in repository.files(commit, one.recipes) if not any(step[:1] == "." for step in path.split("/"))
    )
    return [path for path in hidden if path.endswith(ENDINGS)]


def _path(repository: Repository, one: Registry, commit: str, wanted: str) -> str:
    """The one path that a name means: full, or its last steps. Raises Refused for none and for several."""
    paths = {str(PurePosixPath(path).with_suffix("")): path for path in _recipes(repository, one, commit)}
    full = f"{one.recipes}/{wanted}" if one.recipes else wanted
    if full in paths:
        return paths[full]
    found = [path for name, path in paths.items() if name.lower().endswith(f"/{wanted.lower()}")]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(one_line(path, at_most=100) for path in found[:5])
        raise Refused(f"@{one.name}/{wanted} means {len(found)} recipes: {listed}.", fix="Name more of its path.")
    fix = nearest(wanted, {PurePosixPath(name).name for name in paths})
    raise Refused(
        f"the registry {one.name} has no recipe '{one_line(wanted, at_most=80)}' at {commit[:SHORT]}.",
        fix=one_line(fix, at_most=300),
    )


@contextmanager
def _laid_out(repository: Repository, commit: str, path: str, text: str) -> Iterator[Path]:
    """The recipe in a folder with the scripts of mods beside it, as they lie in the repository: they are read, never run."""
    with tempfile.TemporaryDirectory(prefix="sparkwright-") as folder:
        scripts = [one for one in repository.files(commit, "") if one.endswith(f"/{SCRIPT}")][:MOST_SCRIPTS]
        for inside, content in ((path, text), *repository.texts(commit, scripts)):
            target = Path(folder, inside)
            if ".." not in PurePosixPath(inside).parts and not inside.startswith("/"):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content, encoding="utf-8")
        yield Path(folder, path)


def _model(text: str, path: str) -> str:
    try:
        data: Any = document.parse(text, Path(path)).data
    except Refused:
        return "(not readable)"
    model = data.get("model") if isinstance(data, dict) else None
    found = model.get("model_id") or model.get("id") if isinstance(model, dict) else model
    return found if isinstance(found, str) else ""
