"""Which format a text is of, and its reader."""

from __future__ import annotations

import re
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.importing import compose_file, docker_line, foreign, sparkrun, vllm_recipes
from sparkwright.project.importing.foreign import Foreign
from sparkwright.project.importing.report import Report
from sparkwright.trust.shapes import Misfit

FORMATS = (
    "a recipe of vllm-project/recipes, of sparkrun (version 2 or 1) or of eugr, a compose file, or a docker run line"
)


#: what people have a server's start in besides these formats, by the file's ending and by how such a file begins
OTHER_KINDS = (
    (
        "a systemd unit",
        (".service", ".container", ".timer"),
        re.compile(r"\s*(?:[#;].*\n\s*)*\[(?:Unit|Service|Install|Container)\]"),
    ),
    ("a shell script", (".sh", ".bash"), re.compile(r"#!.{0,80}\b(?:ba|z|da)?sh\b|\s*(?:set -[a-z]|export [A-Z_]+=)")),
    ("a text for people", (".md", ".rst", ".txt"), re.compile(r"\s*# .{0,200}\n(?:.{0,400}\n){0,40}?```|```")),
    ("a Dockerfile", (".dockerfile",), re.compile(r"\s*(?:#.*\n\s*)*(?:ARG .{1,200}\n\s*)*FROM \S+")),
    ("a file of variables", (".env",), re.compile(r"\s*(?:#.*\n\s*)*[A-Z][A-Z0-9_]{1,60}=\S")),
    ("a Python program", (".py",), re.compile(r"#!.{0,80}\bpython")),
)


def _other_kind(text: str, path: Path) -> str:
    """The kind of a file that is none of the formats, where it is a usual one; "" for any other."""
    for kind, endings, begins in OTHER_KINDS:
        if path.suffix.lower() in endings or begins.match(text[:20_000]):
            return kind
    return "a Dockerfile" if path.name == "Dockerfile" else ""


def read(text: str, path: Path, report: Report) -> Foreign:
    """What a text describes. path: of its file, for messages and for what lies beside it.

    Raises Refused for what is none of the formats, and as their readers do.
    """
    if docker_line.is_one(text):
        return docker_line.read(text, report)
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
