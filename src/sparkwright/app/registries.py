"""Fetch recipes from registries at a pinned commit, search them by word, and show one before importing it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sparkwright.app.prompts import confirm
from sparkwright.app.recipe_exchange import ImportSource, convert_source
from sparkwright.console.command_output import print_json_line, print_prose, print_text
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.project import registries
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.folder import Project
from sparkwright.project.importing.recipe_builder import ImportedRecipe
from sparkwright.project.importing.sparkrun import MOD_SCRIPT
from sparkwright.project.registries import Registry
from sparkwright.remote.git import File, Repository
from sparkwright.units import MIB
from sparkwright.visible import format_count, one_line

RECIPE_SUFFIXES = (".yaml", ".yml")
#: limits on the number and the total size of mod scripts
MAX_SCRIPTS, MAX_TOTAL_SCRIPT_BYTES = 400, 4 * MIB
#: limit on the folder depth of a written file
MAX_PATH_PARTS = 32
#: size limits for recipes that a search parses for their model: of one, and of all together; the largest known is 20 kB
MAX_PARSED_BYTES, MAX_TOTAL_PARSED_BYTES = 64 * 1024, 4 * MIB
SHORT_COMMIT_CHARS = 12


@dataclass(frozen=True)
class RegistryRecipe:
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
        relative_path = self.path.removeprefix(f"{self.registry.recipes}/") if self.registry.recipes else self.path
        return f"@{self.registry.name}/{PurePosixPath(relative_path).with_suffix('')}"


def search(word: str, *, update: bool, as_json: bool) -> Exit:
    """Print the recipes whose path or text contains a word, ignoring case.

    Returns the exit code. The errors of registries that can't be read are printed on standard error.

    Args:
        update: update each registry's pin to its branch first.
    """
    project = Project.here().root
    matches: list[RegistryRecipe] = []
    failures: list[SparkwrightError] = []
    configured_registries = registries.load(project)
    for registry in configured_registries:
        try:
            matches += _find_matches(project, registry, word.lower(), update=update)
        except SparkwrightError as error:
            failures.append(error)
            print_prose(str(error), file=sys.stderr)
    code = failures[0].exit if failures else Exit.OK
    if as_json:
        rows = [
            {"name": row.name, "model": row.model, "path": row.path, "commit": row.commit, "url": row.registry.url}
            for row in matches
        ]
        print_json_line({"recipes": rows})
        return code
    width = max((len(row.name) for row in matches), default=0)
    for row in matches:
        print_text(f"{row.name:<{width}}  {one_line(row.model, max_chars=80)}")
    if matches:
        print_prose(
            f"{format_count(len(matches), 'recipe')}. Import one with `invoke recipe.import {matches[0].name}`."
        )
    elif len(failures) < len(configured_registries):
        names = ", ".join(registry.name for registry in configured_registries)
        print_prose(f"No recipe in {names} contains '{one_line(word, max_chars=80)}'.")
    return code


def _find_matches(project: Path, registry: Registry, word: str, *, update: bool) -> list[RegistryRecipe]:
    """Return the recipes of a registry whose path or text contains a word (in lowercase). Raises SparkwrightError."""
    repository, commit = _open_repository(project, registry, update=update)
    matches = []
    parsed_bytes = 0
    for file, text in repository.read_texts(_list_recipe_files(repository, registry, commit)):
        if word not in file.path.lower() and word not in text.lower():
            continue
        model = ""
        if file.size_bytes <= MAX_PARSED_BYTES and parsed_bytes < MAX_TOTAL_PARSED_BYTES:
            parsed_bytes += file.size_bytes
            model = _parse_model_id(text, file.path)
        matches.append(RegistryRecipe(registry, commit, file.path, model))
    return matches


def import_recipe(reference: str, name: str, answers: Mapping[str, str], *, yes: bool, as_json: bool) -> ImportedRecipe:
    """Show the recipe @REGISTRY/NAME, ask for confirmation, and convert it.

    Raises Refused if the import is not confirmed, or the recipe does not exist, is invalid, or has an ambiguous name.
    """
    project = Project.here().root
    registry_name, _, recipe_path = reference.removeprefix("@").partition("/")
    registry = registries.get_registry(project, registry_name)
    repository, commit = _open_repository(project, registry, update=False)
    file = _find_recipe_file(repository, registry, commit, recipe_path)
    text = repository.text(file)
    origin = f"{registry.url} at {commit[:SHORT_COMMIT_CHARS]}, {file.path}"
    if not as_json:
        print_text(f"{origin}\n\n{text.rstrip()}\n", file=sys.stderr)
    if not confirm("Import this recipe?", yes=yes):
        raise Refused("the recipe was not imported.", fix="Read it, then pass --yes.")
    with _temporary_checkout(repository, commit, file.path, text) as checkout_path:
        try:
            return convert_source(ImportSource(text, checkout_path, origin), name, answers)
        except Refused as error:
            error.where = error.where.replace(document.format_path(checkout_path), reference)
            raise


def _open_repository(project: Path, registry: Registry, *, update: bool) -> tuple[Repository, str]:
    """Return the local repository and the commit to read, which is pinned if there is no pin yet or `update` is set."""
    repository = Repository(registry.url, registry.name)
    if registry.commit and not update:
        if not repository.has_commit(registry.commit):
            repository.fetch(registry.commit)
        return repository, registry.commit
    commit = repository.fetch(registry.ref)
    if commit != registry.commit:
        old_commit = f"{registry.commit[:SHORT_COMMIT_CHARS]} -> " if registry.commit else ""
        print_text(
            f"{registries.LOCK_FILE}: {registry.name} {old_commit}{commit[:SHORT_COMMIT_CHARS]}.", file=sys.stderr
        )
        registries.pin(project, registry, commit)
    return repository, commit


def _list_recipe_files(repository: Repository, registry: Registry, commit: str) -> list[File]:
    files = (file for file in repository.files(commit, registry.recipes) if file.path.endswith(RECIPE_SUFFIXES))
    return [file for file in files if not any(part[:1] == "." for part in file.path.split("/"))]


def _find_recipe_file(repository: Repository, registry: Registry, commit: str, recipe_path: str) -> File:
    """Return the file with this path, or whose path ends with it. Raises Refused if there is not exactly one."""
    files = {
        str(PurePosixPath(file.path).with_suffix("")): file for file in _list_recipe_files(repository, registry, commit)
    }
    full_path = f"{registry.recipes}/{recipe_path}" if registry.recipes else recipe_path
    if full_path in files:
        return files[full_path]
    matches = [file for name, file in files.items() if name.lower().endswith(f"/{recipe_path.lower()}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        candidates = ", ".join(one_line(file.path, max_chars=100) for file in matches[:5])
        raise Refused(
            f"@{registry.name}/{recipe_path} matches {len(matches)} recipes: {candidates}.", fix="Add more of the path."
        )
    fix = suggest_name(recipe_path, {name.rpartition("/")[2] for name in files})
    raise Refused(
        f"the registry {registry.name} has no recipe '{one_line(recipe_path, max_chars=80)}' at {commit[:SHORT_COMMIT_CHARS]}.",
        fix=one_line(fix, max_chars=300),
    )


@contextmanager
def _temporary_checkout(repository: Repository, commit: str, path: str, text: str) -> Iterator[Path]:
    """Write the recipe and the scripts of mods to a temporary folder. The scripts are read but never run.

    A script whose path is invalid on this machine is left out.
    """
    with tempfile.TemporaryDirectory(prefix="sparkwright-") as folder:
        recipe_path = Path(folder, path) if _write_file(Path(folder), path, text) else Path(folder, "recipe.yaml")
        recipe_path.write_text(text, encoding="utf-8")
        for file, script in repository.read_texts(_list_scripts(repository, commit)):
            _write_file(Path(folder), file.path, script)
        yield recipe_path


def _list_scripts(repository: Repository, commit: str) -> list[File]:
    scripts: list[File] = []
    total_bytes = 0
    for file in repository.files(commit, ""):
        if file.path.endswith(f"/{MOD_SCRIPT}") and len(scripts) < MAX_SCRIPTS:
            total_bytes += file.size_bytes
            if total_bytes > MAX_TOTAL_SCRIPT_BYTES:
                break
            scripts.append(file)
    return scripts


def _write_file(folder: Path, relative_path: str, text: str) -> bool:
    """Write a file below a folder. Return False if its path leads out of the folder or is invalid on this machine."""
    parts = PurePosixPath(relative_path).parts
    if ".." in parts or relative_path.startswith("/") or len(parts) > MAX_PATH_PARTS:
        return False
    target = folder / relative_path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except (OSError, ValueError):  # the name is too long, is a folder, or is invalid on this file system
        return False
    return True


def _parse_model_id(text: str, path: str) -> str:
    try:
        data: Any = document.parse(text, Path(path)).data
    except Refused:
        return "(not readable)"
    model = data.get("model") if isinstance(data, dict) else None
    model_id = model.get("model_id") or model.get("id") if isinstance(model, dict) else model
    return model_id if isinstance(model_id, str) else ""
