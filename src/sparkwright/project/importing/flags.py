"""Converts the flags of an imported recipe: each is kept, becomes another key of the recipe, or is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkwright.engines.flags import ModelRole
from sparkwright.errors import Refused
from sparkwright.project.importing.command import ServerCommand
from sparkwright.project.importing.foreign_recipe import (
    DROP_ANSWER,
    KEEP_ANSWER,
    PIN_ANSWER,
    ForeignRecipe,
    ImportReport,
    format_value,
)
from sparkwright.trust.model_files import check_container_path
from sparkwright.visible import one_line

MAX_HOSTS = 64
#: folder in the container for files of the project
FILES_FOLDER = "/etc/sparkwright"
KEY_VARIABLE = "SPARK_KEY"


def extract_parallel(foreign: ForeignRecipe, server_command: ServerCommand, report: ImportReport) -> dict[str, int]:
    """Return the recipe's `parallel`, empty for one host, and remove the flags that split the model over GPUs.

    Raises Refused if the model needs several hosts and the engine can serve only from one.
    """
    imports, flags = server_command.imports, server_command.flags
    tensor, pipeline = (
        _parse_count(flags.pop(name, 1)) if name else 1 for name in (imports.tensor_flag, imports.pipeline_flag)
    )
    for name in imports.replica_flags:
        if _parse_count(flags.get(name, 1)) > 1:
            fix = "A recipe starts one server; a `gateway` combines several at one address (docs/gateway.md)."
            raise Refused(f"`--{name} {format_value(flags[name])}` starts several copies of the model.", fix=fix)
        flags.pop(name, None)
    gpu_count = tensor * pipeline
    if gpu_count == 1 and foreign.hosts > 1:
        tensor = gpu_count = foreign.hosts
        reason = f"the recipe is for {foreign.hosts} hosts without a split: tensor parallelism over all of them"
        report.add("note", "hosts", reason)
    if gpu_count > 1 and foreign.hosts == 1:
        report.add("dropped", f"split over {gpu_count}", "the recipe is for one host, and a Spark has one GPU")
        tensor = pipeline = gpu_count = 1
    elif gpu_count > 1 and not foreign.hosts:
        question = f"the model is split over {gpu_count} GPUs, and a Spark has one: the number of hosts"
        if report.ask("hosts", question, ("1", str(gpu_count))) != str(gpu_count):
            tensor = pipeline = gpu_count = 1
    for name in imports.cluster_flags:
        if name in flags:
            reason = "the cluster sets it for each member" if gpu_count > 1 else "there is only one host"
            report.add("dropped", f"--{name} {format_value(flags.pop(name))}", reason)
    if gpu_count == 1:
        return {}
    if gpu_count > MAX_HOSTS:
        raise Refused(f"the model is split over {gpu_count} hosts; a cluster has at most {MAX_HOSTS}.")
    if server_command.engine.parallel is None:
        fix = "Choose a smaller quantisation, or a recipe for another engine."
        raise Refused(
            f"the model needs {gpu_count} hosts, but {server_command.engine.title} can serve only from one.", fix=fix
        )
    reason = f"parallel: a cluster of {gpu_count} hosts, one GPU each (docs/clusters.md)"
    report.add("translated", f"split over {gpu_count}", reason)
    return {name: size for name, size in (("tensor", tensor), ("pipeline", pipeline)) if size > 1}


def resolve_flags(
    server_command: ServerCommand, report: ImportReport, *, uses_cluster: bool, is_adopted: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flags for the recipe's section, and other keys of the recipe.

    is_adopted: the flags are those of a running container, and are kept if possible.
    """
    imports, flags = server_command.imports, server_command.flags
    other_keys: dict[str, Any] = {}
    if (address := flags.pop(imports.host_flag, None)) is not None and is_adopted:
        flags[imports.host_flag] = address
    elif address is not None and not uses_cluster:
        reason = "`publish` and `container.ports` determine who can reach the server"
        report.add("dropped", f"--{imports.host_flag} {format_value(address)}", reason)
    elif uses_cluster and address not in (None, "0.0.0.0", "::"):
        flags[imports.host_flag] = address
    for name in imports.key_flags:
        if flags.pop(name, None) is None:
            continue
        if server_command.engine.key is None:
            reason = (
                f"not written: {server_command.engine.title} cannot read a key from a file; use `publish: loopback`"
            )
        else:
            other_keys["server_key"] = {"env": KEY_VARIABLE}
            reason = f"not written: `server_key: {{env: {KEY_VARIABLE}}}` reads the key on the laptop"
        report.add("secret", f"--{name}", reason)
    for name in imports.token_flags:
        if flags.pop(name, None) is not None:
            report.add("secret", f"--{name}", "not written: the host downloads the model")
    for name in imports.download_flags:
        if name in flags:
            reason = "the host downloads the model, and mounts its folder"
            report.add("dropped", f"--{name} {format_value(flags.pop(name))}", reason)
    if not is_adopted:
        files = _resolve_files(server_command, report)
        if models := _resolve_further_models(server_command, report):
            other_keys["models"] = models
        if files:
            other_keys["files"] = files
    for name in flags:
        if is_adopted or uses_cluster or name != server_command.engine.flags.PORT:
            report.add("kept", f"--{name}")
    return flags, other_keys


def _resolve_files(server_command: ServerCommand, report: ImportReport) -> dict[str, Any]:
    """Return the recipe's `files` for flags that name a file. The user is asked about files that may not be in the image."""
    files: dict[str, Any] = {}
    for name in server_command.imports.file_flags:
        value = server_command.flags.get(name)
        if not isinstance(value, str) or "{" in value or "\n" in value:
            continue
        question = (
            f"--{name} names the file {one_line(value, max_chars=120)}, which is not in the recipe: `{KEEP_ANSWER}` if "
            f"the image contains it, `{DROP_ANSWER}` to remove the flag, or the path of a file of this project"
        )
        answer = KEEP_ANSWER if _is_in_image(value) else report.ask(name, question)
        if answer == DROP_ANSWER:
            report.add("dropped", f"--{name} {value}", "as answered")
            del server_command.flags[name]
        elif answer == KEEP_ANSWER:
            report.add("note", f"--{name} {value}", "the image must contain this file")
        elif answer:
            path = f"{FILES_FOLDER}/{answer.rpartition('/')[2]}"
            if reason := check_container_path(path):
                raise Refused(f"`{name}`: '{one_line(path, max_chars=120)}' {reason}.")
            server_command.flags[name] = path
            files[path] = {"file": answer}
            report.add("translated", f"--{name} {value}", f"files: {answer} of the project")
    return files


def _is_in_image(path: str) -> bool:
    """Return True for a path in a folder that the engines' images contain."""
    return path.startswith(("examples/", "/vllm-workspace/", "/app/", "/sgl-workspace/"))


def _resolve_further_models(server_command: ServerCommand, report: ImportReport) -> dict[str, Any]:
    """Return the recipe's `models`: the second models in flags that the user chose to pin.

    The container downloads the others itself, unpinned.
    """
    models: dict[str, Any] = {}
    for name, key in server_command.imports.further_model_flags.items():
        value = server_command.flags.get(name)
        if key:
            settings = _parse_json(value)
            value = settings.get(key) if isinstance(settings, Mapping) else None
        model = str(value or "")
        if "/" not in model or model.startswith("/"):
            continue
        role = _find_role(server_command, name, key)
        question = (
            f"--{name} names a second model, {one_line(model, max_chars=100)}, which spark.lock does not pin: "
            f"{f'`{PIN_ANSWER}` (under `models:` of the recipe), ' if role else ''}`{KEEP_ANSWER}` (the "
            f"container downloads it if missing) or `{DROP_ANSWER}`"
        )
        answer = report.ask(name, question, (*((PIN_ANSWER,) if role else ()), KEEP_ANSWER, DROP_ANSWER))
        if answer == PIN_ANSWER and role:
            models[role] = _extract_model(server_command, name, key, model)
            report.add("translated", f"--{name} {model}", f"models.{role}: pinned, downloaded and mounted")
        elif answer == DROP_ANSWER:
            for flag in [flag for flag in server_command.flags if flag.partition(".")[0] == name.partition(".")[0]]:
                del server_command.flags[flag]
            report.add("dropped", f"--{name.partition('.')[0]}", f"as answered: {model} is not used")
        elif answer == KEEP_ANSWER:
            report.add("note", model, "a second model, not pinned: the container needs access to the hub")
    return models


def _find_role(server_command: ServerCommand, name: str, key: str) -> ModelRole | None:
    """Return the role of a second model in a recipe's `models`; None if it has none, or the engine serves single files."""
    if server_command.engine.files is not None:
        return None
    flag, _, subkey = name.partition(".")
    for role, model_flag in server_command.engine.flags.MODEL_FLAGS.items():
        if (model_flag.flag, model_flag.key) == (flag, key or subkey):
            return role
    return None


def _extract_model(server_command: ServerCommand, name: str, key: str, model: str) -> dict[str, str]:
    """Remove a second model from its flag, and return its entry in the recipe."""
    flag_value = server_command.flags.pop(name)
    if key:
        settings = _parse_json(flag_value)
        server_command.flags[name] = {setting: value for setting, value in settings.items() if setting != key}
    folder = model.rpartition("/")[2].lower()
    return {"id": model, "dir": f"~/models/{folder}", "mount": f"/models/{folder}"}


def _parse_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _parse_count(value: Any) -> int:
    number = str(value)
    return int(number) if number.isdigit() and len(number) < 6 else 1
