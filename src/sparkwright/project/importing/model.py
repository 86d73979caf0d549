"""The model of an imported recipe: a name on the hub, one of its files, or a mounted folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing.command import ServerCommand
from sparkwright.project.importing.foreign_recipe import ForeignRecipe, ImportReport
from sparkwright.trust import model_files
from sparkwright.visible import one_line

#: a quantisation that is safe as a part of a pattern
_QUANTISATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
#: the hub client's cache in a container that runs as root
HUB_CACHE = "/root/.cache/huggingface"
#: a path that needs no quotes in a shell
_PLAIN_PATH = re.compile(r"[~/][A-Za-z0-9_./-]{0,200}")


@dataclass
class ImportedModel:
    """A recipe's `model`."""

    id: str
    revision: str = ""
    file: str = ""
    #: "" for the default
    dir: str = ""
    #: "" for the default
    mount: str = ""

    def to_yaml(self) -> dict[str, Any]:
        """Return the recipe's `model` without default values."""
        short = self.id.rpartition("/")[2].lower()
        revision = {"revision": self.revision} if self.revision not in ("", "main") else {}
        file = {"file": self.file} if self.file else {}
        return {
            "id": self.id,
            **revision,
            **file,
            "dir": self.dir or f"~/models/{short}",
            "mount": self.mount or f"/models/{short}",
        }


def resolve_model(foreign: ForeignRecipe, serving: ServerCommand, report: ImportReport) -> ImportedModel:
    """Return the model, and remove its flags from the command. Raises Refused for anything that is not a model name."""
    imports, flags = serving.imports, serving.flags
    repository = str(flags.pop(imports.repository, "") or "") if imports.repository else ""
    file = str(flags.pop(imports.repository_file, "") or "") if imports.repository_file else ""
    revision = foreign.revision or next(
        (str(flags.pop(revision)) for revision in imports.revisions if revision in flags), ""
    )
    name = repository or serving.model or foreign.model
    if foreign.model and serving.model and _is_model_id(serving.model) and serving.model != foreign.model:
        report.add("note", foreign.model, f"the recipe's `model`; its command serves {serving.model}, which is taken")
    if not repository and name.startswith(("/", "./", "~")):
        return _resolve_mounted_model(name, foreign, serving, report)
    name, _, quantisation = name.partition(":")
    if not name:
        name = report.ask("model", "neither the recipe nor its command names a model: its id on the hub, as OWNER/NAME")
    if name and (reason := model_files.check_model_id(name)):
        raise Refused(f"the model '{one_line(name, max_chars=80)}' {reason}.")
    if name and "/" not in name:
        report.add("note", name, "a model without an owner on the hub")
    model = ImportedModel(name or "owner/name", revision)
    if serving.engine.files is not None:
        model.file = _select_file(file, quantisation, serving, report)
    if not name:
        return model
    if foreign.adopted:
        report.add(
            "note",
            model.id,
            "the container downloaded it itself: a deploy mounts the model's folder, and so replaces it",
        )
        _note_cached_files(foreign, model, report)
    if not revision:
        report.add("note", model.id, "no revision is named: `main`, of which `invoke lock` pins the commit")
    return model


def _note_cached_files(foreign: ForeignRecipe, model: ImportedModel, report: ImportReport) -> None:
    """Report how to reuse the files in the host's hub cache, so that a deploy need not download them."""
    cache = next((volume.partition(":")[0] for volume in foreign.volumes if volume.split(":")[1:2] == [HUB_CACHE]), "")
    if not cache or not _PLAIN_PATH.fullmatch(cache):
        return
    files, folder = f"{cache}/hub/models--{model.id.replace('/', '--')}/snapshots", model.to_yaml()["dir"]
    command = f"mkdir -p {folder} && sudo cp -rlL {files}/*/. {folder}/"
    report.add(
        "note", f"{folder} on the host", f"`{command}` there takes its files over, without a download or more disk"
    )


def _is_model_id(name: str) -> bool:
    return not model_files.check_model_id(name.partition(":")[0])


def _select_file(file: str, quantisation: str, serving: ServerCommand, report: ImportReport) -> str:
    file_rules = serving.engine.files
    suffix = file_rules.SUFFIX if file_rules else ""
    if file:
        return file
    if quantisation and _QUANTISATION.fullmatch(quantisation):
        pattern = f"*{quantisation}*{suffix}"
        report.add("translated", quantisation, f"model.file: {pattern}; `lock` says whether it means one model")
        return pattern
    title = serving.engine.title
    sentence = f"which file of the repository, by pattern, e.g. *Q4_K_M*{suffix}: it names none, and {title} serves one"
    return report.ask("file", sentence) or f"*{suffix}"


def _resolve_mounted_model(
    path: str, foreign: ForeignRecipe, serving: ServerCommand, report: ImportReport
) -> ImportedModel:
    """Return the model of a folder that is mounted from the host; the user is asked for its name on the hub."""
    container_path = PurePosixPath(path)
    is_single_file = serving.engine.files is not None and container_path.suffix == serving.engine.files.SUFFIX
    folder = container_path.parent if is_single_file else container_path
    host, volume = _find_host_folder(folder, foreign.volumes)
    sentence = f"the model is a folder, {one_line(path, max_chars=120)}: its id on the hub, as OWNER/NAME"
    name = report.ask("model", sentence) or "owner/name"
    if reason := model_files.check_model_id(name):
        raise Refused(f"the model '{one_line(name, max_chars=80)}' {reason}.")
    if volume:
        foreign.volumes.remove(volume)
        report.add("translated", f"volume {volume}", f"model.dir: {host}, mounted at {folder}")
    else:
        report.add("note", path, "no volume of the recipe holds it: the usual folder of the host is taken")
    return ImportedModel(name, foreign.revision, container_path.name if is_single_file else "", host, str(folder))


def _find_host_folder(folder: PurePosixPath, volumes: list[str]) -> tuple[str, str]:
    """Return the host's folder for a folder of the container, and the volume that mounts it; "" for none."""
    for volume in volumes:
        source, _, target = volume.partition(":")
        mount = PurePosixPath(target.partition(":")[0])
        if mount == folder or mount in folder.parents:
            below = folder.relative_to(mount)
            return (source if str(below) == "." else f"{source.rstrip('/')}/{below}"), volume
    return "", ""
