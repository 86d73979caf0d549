"""Convert a foreign recipe to a sparkwright recipe, checked as if a person had written it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sparkwright.engines import container_rules
from sparkwright.engines.flags import Imports
from sparkwright.engines.http import GENERATE
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import check
from sparkwright.project.importing import command, container, flags, model
from sparkwright.project.importing.command import Serving
from sparkwright.project.importing.foreign import Foreign, Report
from sparkwright.project.importing.model import Model
from sparkwright.project.recipe import rules, section_rules
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.trust.image_name import Name, why_not_an_image
from sparkwright.visible import one_line

#: names of locally built images, without a registry
LOCAL = re.compile(r"[a-z0-9._-]+(:(latest|local|dev))?")
#: sparkrun's substitutes for images that eugr's recipes build (core/recipe.py of 0.4.2); the tag moves every night
STANDS_FOR = {"vllm-node": "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest"}
NAME_CHARS = 60


@dataclass
class Taken:
    """An imported recipe."""

    #: name of the recipe's file
    name: str
    #: the file's content; "" while questions are open
    text: str
    report: Report
    #: digest that the source pinned the image to
    image_digest: str = ""
    #: number of hosts that serve it together
    hosts: int = 1


def taken(found: Foreign, name: str, report: Report, origin: str) -> Taken:
    """Return the recipe.

    Args:
        name: the user's choice, "" for its own name.
        origin: its source, for the file's first line.

    Raises Refused, with the reason, for a source that cannot become a recipe.
    """
    _answered_image(found, report)
    serving = command.read(found, report)
    source_name = serving.model or found.model
    model_section = model.of(found, serving, report)
    own_name = slug(name or found.name or model_section.id.rpartition("/")[2])
    parallel = flags.split(found, serving, report)
    section, more = flags.settled(serving, report, cluster=bool(parallel), adopted=found.adopted)
    section |= _served_name(serving, section, source_name, model_section, report)
    found.task = found.task or _task(found, serving, section, report)
    image, digest = _image(found, serving.imports, report)
    data: dict[str, Any] = {
        "description": _line(found.description) or own_name,
        "image": image,
        "model": model_section.to_yaml(),
    }
    if serving.engine.name != "vllm" or found.task:
        data |= {"engine": serving.engine.name}
    if found.task:
        data["task"] = found.task
    data["container"] = container.of(own_name, found, serving, section, bool(parallel), report)
    if not parallel and "server_key" not in more and not found.adopted:
        data["publish"] = "loopback"
        report.add(
            "note", "publish: loopback", "only the host itself reaches it; `server_key` or `publish: lan` for others"
        )
    data |= more
    data[serving.engine.name] = section
    if parallel:
        data["parallel"] = parallel
    if not found.task:
        _probes(serving, section, report)
    for danger in container_rules.of(data["container"], section):
        report.add("warning", danger.value, danger.why)
    report.refuse_unheard()
    if report.questions:
        return Taken(own_name, "", report, digest)
    text = _text(data, found, origin)
    _checked(text, own_name)
    return Taken(own_name, text, report, digest, math.prod(parallel.values()))


def _text(data: Mapping[str, Any], found: Foreign, origin: str) -> str:
    """Return the recipe's file."""
    source = _line(origin) if origin == found.kind else f"{_line(origin)} ({found.kind})"
    head = f"{shipped_files.line('recipe')}# Imported from {source}.\n\n"
    return head + yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=120)


def _served_name(
    serving: Serving, section: Mapping[str, Any], source_name: str, model_section: Model, report: Report
) -> dict[str, Any]:
    """Return the flag that keeps the model's name in requests; empty if it stays without one.

    Without the flag an engine uses the model as it is written, which here would be its mounted folder.
    """
    flag = serving.imports.served_name
    if not flag or section.get(flag) or not source_name or source_name == model_section.to_yaml()["mount"]:
        return {}
    report.add("translated", f"model {source_name}", f"--{flag}: clients ask for the model by this name")
    return {flag: source_name}


def _probes(serving: Serving, section: dict[str, Any], report: Report) -> None:
    """Note the probes for what its flags promise to clients and nothing in the source verifies."""
    own = serving.engine.probe_flags
    flags_of = {probe: (flag, *own.needs.get(probe, ())) for probe, flag in own.promises.items()}
    if probes := [probe for probe, names in flags_of.items() if all(section.get(name) for name in names)]:
        report.add(
            "note",
            f"expect.probes: [{', '.join(probes)}]",
            "not in the source; it would prove the parsers that it names",
        )


def _task(found: Foreign, serving: Serving, section: dict[str, Any], report: Report) -> str:
    """Return the task of a server whose flags rule out text generation; "" if they do not.

    Asks the user if the name does not tell the task.
    """
    excluded = serving.engine.task_flags.excludes.get(GENERATE, {})
    telling = [f"--{name} {section[name]}" for name, values in excluded.items() if section.get(name) in values]
    if not telling:
        return ""
    named = f"{found.name} {found.model}".lower()
    task = next((task for word, task in (("embed", "embed"), ("rerank", "rerank")) if word in named), "")
    if task:
        report.add("translated", telling[0], f"task: {task}, as its name says")
        return task
    return report.ask(
        "task",
        f"{telling[0]} is a server that generates no text: vectors (embed) or scores (rerank)",
        ("embed", "rerank"),
    )


def slug(text: str) -> str:
    """Return a name for a file and a container."""
    plain = re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")[:NAME_CHARS].strip("-._")
    return plain if len(plain) > 1 else f"imported-{plain}".rstrip("-")


def _checked(text: str, name: str) -> None:
    """Check the recipe's text as `recipe.load` checks a file."""
    source = document.parse(text, Path(f"recipes/{name}.yml"))
    file = check(RecipeFile, source)
    rules.refuse(section_rules.applied(file, source) if file.parallel is not None else file, source)


def _answered_image(found: Foreign, report: Report) -> None:
    """Use an image from the answers even if it was not asked for: it is the way out of mods and of installed packages."""
    answer = report.given("image")
    if answer:
        instead = f"image {found.image}" if found.image not in ("", answer) else "image"
        report.add("translated", instead, f"{answer}, as answered")
        found.image = answer


def _image(found: Foreign, imports: Imports, report: Report) -> tuple[str, str]:
    """Return REPOSITORY:TAG and the digest: those of the source, else the release that the engine's tables belong to."""
    written = found.image.strip()
    if not written:
        report.add(
            "translated", "image", f"it names none: {imports.image}, the release that sparkwright's tables are of"
        )
        return imports.image, ""
    local = LOCAL.fullmatch(written) is not None
    instead = f"; {STANDS_FOR[written]} is built from the same" if written in STANDS_FOR else ""
    if local and found.adopted:
        report.add(
            "note", written, "an image that is not from a registry: `lock` cannot pin it until it is pushed to one"
        )
        return Name.parse(written).by_tag, ""
    if (local or "$" in written or "{" in written) and not report.given("image"):
        why = "is not in a registry: its author built it" if local else "is filled from a shell"
        example = f"as REPOSITORY:TAG, e.g. {imports.image}{instead}"
        sentence = f"the image {one_line(written, at_most=80)} {why}: which image, {example}"
        report.ask("image", sentence)
        return imports.image, ""
    if reason := why_not_an_image(written):
        raise Refused(f"the image '{one_line(written, at_most=80)}' {reason}.")
    image = Name.parse(written)
    pinned = f"; the source pins {image.digest}" if image.digest else ""
    report.add(
        "kept", f"image {image.by_tag}", f"`invoke lock` pins its digest, and proves that it is for arm64{pinned}"
    )
    return image.by_tag, image.digest


def _line(text: str) -> str:
    return one_line(" ".join(text.split()), at_most=160)
