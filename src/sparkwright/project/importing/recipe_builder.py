"""Converts a foreign recipe to a validated sparkwright recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sparkwright.engines import container_rules
from sparkwright.engines.flags import ImportTable
from sparkwright.engines.http import GENERATE
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import validate
from sparkwright.project.importing import command, container, flags, model
from sparkwright.project.importing.command import ServerCommand
from sparkwright.project.importing.foreign_recipe import ForeignRecipe, ImportReport
from sparkwright.project.importing.model import ImportedModel
from sparkwright.project.recipe import rules, section_rules
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.trust.image_name import ImageReference, check_image
from sparkwright.visible import one_line

#: names of locally built images
LOCAL_IMAGE_PATTERN = re.compile(r"[a-z0-9._-]+(:(latest|local|dev))?")
#: sparkrun's substitutes for images that eugr's recipes build (core/recipe.py of 0.4.2); their tags move every night
IMAGE_SUBSTITUTES = {"vllm-node": "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest"}
MAX_NAME_CHARS = 60


@dataclass
class ImportedRecipe:
    """An imported recipe."""

    #: name of the recipe's file, without .yml
    name: str
    #: content of the file; empty while questions are open
    text: str
    report: ImportReport
    #: digest of the image in the source; empty if it has none
    image_digest: str = ""
    #: number of hosts that serve the recipe together
    hosts: int = 1


def build_recipe(foreign: ForeignRecipe, name: str, report: ImportReport, origin: str) -> ImportedRecipe:
    """Return the recipe. Raises Refused if the source cannot be converted.

    Args:
        name: name chosen by the user; if empty, the name in the source.
        origin: description of the source, for the file's first lines.
    """
    _apply_answered_image(foreign, report)
    server_command = command.parse(foreign, report)
    source_name = server_command.model or foreign.model
    model_section = model.resolve_model(foreign, server_command, report)
    recipe_name = slug(name or foreign.name or model_section.id.rpartition("/")[2])
    parallel = flags.extract_parallel(foreign, server_command, report)
    engine_section, other_keys = flags.resolve_flags(
        server_command, report, uses_cluster=bool(parallel), is_adopted=foreign.adopted
    )
    engine_section |= _served_name_flag(server_command, engine_section, source_name, model_section, report)
    foreign.task = foreign.task or _find_task(foreign, server_command, engine_section, report)
    image, digest = _resolve_image(foreign, server_command.imports, report)
    data: dict[str, Any] = {
        "description": _single_line(foreign.description) or recipe_name,
        "image": image,
        "model": model_section.to_yaml(),
    }
    if server_command.engine.name != "vllm" or foreign.task:
        data |= {"engine": server_command.engine.name}
    if foreign.task:
        data["task"] = foreign.task
    data["container"] = container.build_container(
        recipe_name, foreign, server_command, engine_section, bool(parallel), report
    )
    if not parallel and "server_key" not in other_keys and not foreign.adopted:
        data["publish"] = "loopback"
        reason = "reachable only from the host itself; set `server_key` or `publish: lan` to open it"
        report.add("note", "publish: loopback", reason)
    data |= other_keys
    data[server_command.engine.name] = engine_section
    if parallel:
        data["parallel"] = parallel
    if not foreign.task:
        _note_probes(server_command, engine_section, report)
    for danger in container_rules.find_dangers(data["container"], engine_section):
        report.add("warning", danger.value, danger.reason)
    report.refuse_unused_answers()
    if report.questions:
        return ImportedRecipe(recipe_name, "", report, digest)
    text = _render_recipe(data, foreign, origin)
    try:
        source = document.parse(text, Path(f"recipes/{recipe_name}.yml"))
        rules.check(section_rules.apply_parallel(validate(RecipeFile, source), source), source)
    except Refused as error:  # its place is a line of a file that does not exist
        message = f"the recipe made from it is not valid: {error.message}"
        raise Refused(message, where=_single_line(origin), fix=error.fix) from error
    return ImportedRecipe(recipe_name, text, report, digest, math.prod(parallel.values()))


def _render_recipe(data: Mapping[str, Any], foreign: ForeignRecipe, origin: str) -> str:
    source = _single_line(origin) if origin == foreign.kind else f"{_single_line(origin)} ({foreign.kind})"
    header = f"{shipped_files.schema_line('recipe')}# Imported from {source}.\n\n"
    return header + yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=120)


def _served_name_flag(
    server_command: ServerCommand,
    section: Mapping[str, Any],
    source_name: str,
    model_section: ImportedModel,
    report: ImportReport,
) -> dict[str, Any]:
    """Return the flag that keeps the model's name in requests; empty if it is not needed.

    Without the flag, the engine would use the path of the mounted folder as the name.
    """
    flag = server_command.imports.served_name_flag
    if not flag or section.get(flag) or not source_name or source_name == model_section.to_yaml()["mount"]:
        return {}
    report.add("translated", f"model {source_name}", f"--{flag}: the model's name in requests")
    return {flag: source_name}


def _note_probes(server_command: ServerCommand, section: dict[str, Any], report: ImportReport) -> None:
    """Suggest probes for the abilities that the flags enable."""
    probe_flags = server_command.engine.probe_flags
    flags_by_probe = {
        probe: (flag, *probe_flags.required_flags.get(probe, ())) for probe, flag in probe_flags.promises.items()
    }
    if probes := [probe for probe, names in flags_by_probe.items() if all(section.get(name) for name in names)]:
        report.add("note", f"expect.probes: [{', '.join(probes)}]", "not in the source; would test the flags' parsers")


def _find_task(
    foreign: ForeignRecipe, server_command: ServerCommand, section: dict[str, Any], report: ImportReport
) -> str:
    """Return the task of a server whose flags rule out text generation, from its name or the user's answer; else ""."""
    excluded_values = server_command.engine.task_flags.excluded_values.get(GENERATE, {})
    excluding_flags = [
        f"--{name} {section[name]}" for name, values in excluded_values.items() if section.get(name) in values
    ]
    if not excluding_flags:
        return ""
    names = f"{foreign.name} {foreign.model}".lower()
    task = next((task for word, task in (("embed", "embed"), ("rerank", "rerank")) if word in names), "")
    if task:
        report.add("translated", excluding_flags[0], f"task: {task}, according to the name")
        return task
    question = f"with {excluding_flags[0]} the server generates no text: vectors (embed) or scores (rerank)"
    return report.ask("task", question, ("embed", "rerank"))


def slug(text: str) -> str:
    """Return a valid name for a recipe and its container."""
    name = re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")[:MAX_NAME_CHARS].strip("-._")
    return name if len(name) > 1 else f"imported-{name}".rstrip("-")


def _apply_answered_image(foreign: ForeignRecipe, report: ImportReport) -> None:
    """Use the image in the user's answers, even if none was asked for: it may include the source's mods or packages."""
    answer = report.find_answer("image")
    if answer:
        replaced_text = f"image {foreign.image}" if foreign.image not in ("", answer) else "image"
        report.add("translated", replaced_text, f"{answer}, as answered")
        foreign.image = answer


def _resolve_image(foreign: ForeignRecipe, imports: ImportTable, report: ImportReport) -> tuple[str, str]:
    """Return REPOSITORY:TAG and the digest of the source's image; by default, the engine release in sparkwright's tables."""
    image_text = foreign.image.strip()
    if not image_text:
        reason = f"the source names none: {imports.image}, the release that sparkwright's tables are based on"
        report.add("translated", "image", reason)
        return imports.image, ""
    is_local = LOCAL_IMAGE_PATTERN.fullmatch(image_text) is not None
    if is_local and foreign.adopted:
        report.add("note", image_text, "the image is not from a registry: push it to one, so that `lock` can pin it")
        return ImageReference.parse(image_text).by_tag, ""
    if (is_local or "$" in image_text or "{" in image_text) and not report.find_answer("image"):
        problem = "is not in a registry: its author built it" if is_local else "contains a variable"
        example = imports.image
        if image_text in IMAGE_SUBSTITUTES:
            example += f"; {IMAGE_SUBSTITUTES[image_text]} is built from the same sources"
        question = (
            f"the image {one_line(image_text, max_chars=80)} {problem}: an image as REPOSITORY:TAG, e.g. {example}"
        )
        report.ask("image", question)
        return imports.image, ""
    if reason := check_image(image_text):
        raise Refused(f"the image '{one_line(image_text, max_chars=80)}' {reason}.")
    image = ImageReference.parse(image_text)
    pinned_text = f"; the source pins {image.digest}" if image.digest else ""
    report.add(
        "kept", f"image {image.by_tag}", f"`invoke lock` pins its digest and checks that it is for arm64{pinned_text}"
    )
    return image.by_tag, image.digest


def _single_line(text: str) -> str:
    return one_line(" ".join(text.split()), max_chars=160)
