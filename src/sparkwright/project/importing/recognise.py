"""Which format a text is of, and its reader."""

from __future__ import annotations

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


def read(text: str, path: Path, report: Report) -> Foreign:
    """What a text describes. path: of its file, for messages and for what lies beside it.

    Raises Refused for what is none of the formats, and as their readers do.
    """
    if docker_line.is_one(text):
        return docker_line.read(text, report)
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
