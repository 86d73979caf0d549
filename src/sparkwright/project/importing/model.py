"""Finds the model of an imported recipe: a name on the hub, a single file, or a mounted folder."""

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

#: a quantisation that is safe in a file pattern
_QUANTISATION_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
#: cache of the hub's client in a container that runs as root
HUB_CACHE_FOLDER = "/root/.cache/huggingface"
#: a path that needs no quotes in a shell
_PLAIN_PATH_PATTERN = re.compile(r"[~/][A-Za-z0-9_./-]{0,200}")


@dataclass
class ImportedModel:
    """The `model` of an imported recipe. Empty fields stand for the default."""

    id: str
    revision: str = ""
    file: str = ""
    dir: str = ""
    mount: str = ""

    def to_yaml(self) -> dict[str, Any]:
        folder = self.id.rpartition("/")[2].lower()
        revision = {"revision": self.revision} if self.revision not in ("", "main") else {}
        file = {"file": self.file} if self.file else {}
        return {
            "id": self.id,
            **revision,
            **file,
            "dir": self.dir or f"~/models/{folder}",
            "mount": self.mount or f"/models/{folder}",
        }


def resolve_model(foreign: ForeignRecipe, server_command: ServerCommand, report: ImportReport) -> ImportedModel:
    """Return the model, and remove its flags from the command. Raises Refused for an invalid model name."""
    imports, flags = server_command.imports, server_command.flags
    repository = str(flags.pop(imports.repository_flag, "") or "") if imports.repository_flag else ""
    file = str(flags.pop(imports.repository_file_flag, "") or "") if imports.repository_file_flag else ""
    revision = foreign.revision or next((str(flags.pop(flag)) for flag in imports.revision_flags if flag in flags), "")
    name = repository or server_command.model or foreign.model
    is_hub_model = not model_files.check_model_id(server_command.model.partition(":")[0])
    if foreign.model and server_command.model and is_hub_model and server_command.model != foreign.model:
        report.add("note", foreign.model, f"replaced by the model in the recipe's command, {server_command.model}")
    if not repository and name.startswith(("/", "./", "~")):
        return _resolve_mounted_model(name, foreign, server_command, report)
    name, _, quantisation = name.partition(":")
    if not name:
        name = report.ask("model", "neither the recipe nor its command names a model: its name on the hub, OWNER/NAME")
    if name and (reason := model_files.check_model_id(name)):
        raise Refused(f"the model '{one_line(name, max_chars=80)}' {reason}.")
    if name and "/" not in name:
        report.add("note", name, "the name has no owner on the hub")
    model = ImportedModel(name or "owner/name", revision)
    if server_command.engine.files is not None:
        model.file = _select_file(file, quantisation, server_command, report)
    if not name:
        return model
    if foreign.adopted:
        reason = "downloaded by the container: the first deploy replaces the container with one that mounts the model's folder"
        report.add("note", model.id, reason)
        _note_cached_files(foreign, model, report)
    if not revision:
        report.add("note", model.id, "no revision in the source: `main`; `invoke lock` pins its commit")
    return model


def _note_cached_files(foreign: ForeignRecipe, model: ImportedModel, report: ImportReport) -> None:
    """Report how to reuse the files in the host's hub cache, so that a deploy does not download them again."""
    cache_folder = next(
        (volume.partition(":")[0] for volume in foreign.volumes if volume.split(":")[1:2] == [HUB_CACHE_FOLDER]), ""
    )
    if not cache_folder or not _PLAIN_PATH_PATTERN.fullmatch(cache_folder):
        return
    snapshots_folder, folder = (
        f"{cache_folder}/hub/models--{model.id.replace('/', '--')}/snapshots",
        model.to_yaml()["dir"],
    )
    command = f"mkdir -p {folder} && sudo cp -rlL {snapshots_folder}/*/. {folder}/"
    reason = f"to reuse the container's files without a download or more disk space, run there: `{command}`"
    report.add("note", f"{folder} on the host", reason)


def _select_file(file: str, quantisation: str, server_command: ServerCommand, report: ImportReport) -> str:
    if file:
        return file
    suffix = server_command.engine.files.SUFFIX if server_command.engine.files else ""
    if quantisation and _QUANTISATION_PATTERN.fullmatch(quantisation):
        pattern = f"*{quantisation}*{suffix}"
        report.add("translated", quantisation, f"model.file: {pattern}; `lock` checks that it matches a single model")
        return pattern
    question = f"{server_command.engine.title} serves one file of the repository: its name, or a pattern, e.g. *Q4_K_M*{suffix}"
    return report.ask("file", question) or f"*{suffix}"


def _resolve_mounted_model(
    path: str, foreign: ForeignRecipe, server_command: ServerCommand, report: ImportReport
) -> ImportedModel:
    """Return the model in a folder that is mounted from the host. The user is asked for its name on the hub."""
    container_path = PurePosixPath(path)
    is_single_file = (
        server_command.engine.files is not None and container_path.suffix == server_command.engine.files.SUFFIX
    )
    folder = container_path.parent if is_single_file else container_path
    host_folder, volume = _find_host_folder(folder, foreign.volumes)
    question = f"the model is a folder, {one_line(path, max_chars=120)}: its name on the hub, OWNER/NAME"
    name = report.ask("model", question) or "owner/name"
    if reason := model_files.check_model_id(name):
        raise Refused(f"the model '{one_line(name, max_chars=80)}' {reason}.")
    if volume:
        foreign.volumes.remove(volume)
        report.add("translated", f"volume {volume}", f"model.dir: {host_folder}, mounted at {folder}")
    else:
        report.add("note", path, "not in a volume of the source: the default folder of the host is used")
    file = container_path.name if is_single_file else ""
    return ImportedModel(name, foreign.revision, file, host_folder, str(folder))


def _find_host_folder(folder: PurePosixPath, volumes: list[str]) -> tuple[str, str]:
    """Return the host's folder for a folder in the container, and the volume that mounts it; both empty if none does."""
    for volume in volumes:
        source, _, target = volume.partition(":")
        mount = PurePosixPath(target.partition(":")[0])
        if mount == folder or mount in folder.parents:
            subfolder = str(folder.relative_to(mount))
            return (source if subfolder == "." else f"{source.rstrip('/')}/{subfolder}"), volume
    return "", ""
