"""Detection of a text's format, and its reader."""

from __future__ import annotations

import re
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.importing import compose_file, docker_words, foreign, sparkrun, vllm_recipes
from sparkwright.project.importing.foreign import Foreign, Report
from sparkwright.trust.shapes import Misfit

FORMATS = (
    "a recipe of vllm-project/recipes, of sparkrun (version 2 or 1) or of eugr, a compose file, or a docker run line"
)


#: other kinds of files that start a server, by their ending
ENDINGS = {
    **dict.fromkeys((".service", ".container", ".timer"), "a systemd unit"),
    **dict.fromkeys((".sh", ".bash"), "a shell script"),
    **dict.fromkeys((".md", ".rst", ".txt"), "a text for people"),
    ".dockerfile": "a Dockerfile",
    ".env": "a file of variables",
    ".py": "a Python program",
}
#: the same by the first line
SHEBANGS = (
    (re.compile(r"#!.{0,80}\b(?:ba|z|da)?sh\b"), "a shell script"),
    (re.compile(r"#!.{0,80}\bpython"), "a Python program"),
)
#: the same by the first line that is not a comment
FIRST_LINES = (
    (re.compile(r"\[(?:Unit|Service|Install|Container)\]"), "a systemd unit"),
    (re.compile(r"set -[a-z]|export [A-Z_]{1,60}="), "a shell script"),
    (re.compile(r"(?:ARG|FROM) \S"), "a Dockerfile"),
    (re.compile(r"[A-Z][A-Z0-9_]{1,60}=\S"), "a file of variables"),
)
SEARCHED_CHARS, SEARCHED_LINES = 20_000, 40


def _other_kind(text: str, path: Path) -> str:
    """Return the kind of a file that is none of the formats, where it is a usual one; "" for any other."""
    if kind := ENDINGS.get(path.suffix.lower(), "a Dockerfile" if path.name == "Dockerfile" else ""):
        return kind
    lines = [stripped[:200] for line in text[:SEARCHED_CHARS].splitlines() if (stripped := line.strip())]
    first = lines[0] if lines else ""
    code = next((line for line in lines if not line.startswith(("#", ";"))), "")
    fenced = any(line.startswith("```") for line in lines[:SEARCHED_LINES])
    if first.startswith("```") or (first.startswith("# ") and fenced):
        return "a text for people"
    found = (kind for rows, line in ((SHEBANGS, first), (FIRST_LINES, code)) for row, kind in rows if row.match(line))
    return next(found, "")


def read(text: str, path: Path, report: Report) -> Foreign:
    """Read a text in any of the known formats.

    Args:
        path: the text's file, for messages and for files beside it.

    Raises Refused if it has none of the formats, and as their readers do.
    """
    if docker_words.is_one(text):
        return docker_words.read(text, report)
    if kind := _other_kind(text, path):
        fix = f"It must be {FORMATS}: `recipe.import 'docker run ...'` takes a line as it stands there."
        raise Refused(f"this is {kind}, which is not read.", where=document.shown(path), fix=fix)
    parsed = document.parse(text, path)
    where = document.shown(path)
    if not isinstance(parsed.data, dict):
        raise Refused(f"this is not {FORMATS}.", where=where)
    try:
        held = foreign.plain(parsed.data)
    except Misfit as misfit:
        raise Refused(f"it {misfit.why}.", where=where) from None
    try:
        if vllm_recipes.is_one(held):
            foreign.checked(parsed, held, vllm_recipes.SHAPE)
            return vllm_recipes.read(held, report)
        if compose_file.is_one(held):
            foreign.checked(parsed, held, compose_file.SHAPE)
            return compose_file.read(held, report)
        if sparkrun.is_one(held):
            foreign.checked(parsed, held, sparkrun.SHAPE)
            return sparkrun.read(held, path, report)
    except Refused as error:
        raise error if error.where else Refused(error.message, where=where, fix=error.fix) from None
    if "image" in held and "container" in held:
        raise Refused("this is a recipe of sparkwright already.", where=where, fix="Copy it to recipes/.")
    raise Refused(f"this is not {FORMATS}.", where=where, fix="Formats: docs/recipes-in.md.")
