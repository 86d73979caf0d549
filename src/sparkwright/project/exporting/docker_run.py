"""Export of a recipe as a docker run command to paste into a shell."""

from __future__ import annotations

from sparkwright.errors import Refused
from sparkwright.project.exporting.export import HOME, Export
from sparkwright.shell import join, quote


def refuse_cluster(export: Export) -> None:
    """Raise Refused for a recipe of several hosts: each member has a container of its own."""
    if export.recipe.split is not None:
        fix = "`render --host CLUSTER` prints the script of each member."
        raise Refused(
            "a cluster's members have a container each.", where=export.recipe.source.where("parallel"), fix=fix
        )


def note_model(export: Export) -> None:
    """Note that the model must be on the host first: neither docker nor compose downloads it."""
    model = export.recipe.file.model
    revision = ["--revision", export.commit] if export.commit else []
    fetched = join(["hf", "download", model.id, *revision, "--local-dir"])
    export.notes.append(f"the model has to be in {model.dir} first: `{fetched} {model.dir}`")


def text(export: Export) -> str:
    """Return the command. Raises Refused for a recipe of several hosts."""
    refuse_cluster(export)
    note_model(export)
    spec = export.spec
    rows = [["docker", "run", "-d", "--name", spec.name, "--restart", spec.restart]]
    rows += [[flag, value] if value else [flag] for flag, value in spec.docker_options()]
    entrypoint = spec.entrypoint or ()
    rows += [["--entrypoint", entrypoint[0]]] if entrypoint else []
    rows += [[export.image], *_paired([*entrypoint[1:], *spec.command])]
    return " \\\n  ".join(" ".join(map(_word, row)) for row in rows) + "\n"


def _word(word: str) -> str:
    """Quote a word, except the home folder, which the shell must expand."""
    if word.startswith(f"{HOME}/"):
        return f'"$HOME"{quote(word.removeprefix(HOME))}'
    return quote(word)


def _paired(words: list[str]) -> list[list[str]]:
    """Return the words in rows: an option and its values in each."""
    rows: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not rows:
            rows.append([word])
        else:
            rows[-1].append(word)
    return rows
