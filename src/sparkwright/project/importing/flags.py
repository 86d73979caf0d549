"""The flags of an imported recipe: those that another key expresses, that a cluster sets, or that name a file."""

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
#: folder of the project's files in a container
FILES_FOLDER = "/etc/sparkwright"
KEY_VARIABLE = "SPARK_KEY"


def extract_parallel(foreign: ForeignRecipe, serving: ServerCommand, report: ImportReport) -> dict[str, int]:
    """Return how the model is split over hosts, as a recipe's `parallel`; {} for one host. Removes the flags that say so.

    Raises Refused if it needs several hosts and the engine can serve from one only.
    """
    imports, flags = serving.imports, serving.flags
    tensor, pipeline = (_parse_count(flags.pop(name, 1)) if name else 1 for name in (imports.tensor, imports.pipeline))
    for name in imports.replicas:
        if _parse_count(flags.get(name, 1)) > 1:
            fix = "A recipe starts one server; `gateway:` gives several one address (docs/gateway.md)."
            raise Refused(f"`--{name} {format_value(flags[name])}` starts several copies of the model.", fix=fix)
        flags.pop(name, None)
    gpus = tensor * pipeline
    if gpus == 1 and foreign.hosts > 1:
        tensor = gpus = foreign.hosts
        report.add(
            "note", "hosts", f"it is for {foreign.hosts} hosts and says no split: tensor parallelism over all of them"
        )
    if gpus > 1 and foreign.hosts == 1:
        report.add("dropped", f"split over {gpus}", "it is for one host, and a Spark has one GPU")
        tensor = pipeline = gpus = 1
    elif gpus > 1 and not foreign.hosts:
        sentence = f"the model is split over {gpus} GPUs, and a Spark has one: how many hosts are to serve it"
        if report.ask("hosts", sentence, ("1", str(gpus))) != str(gpus):  # unanswered: said of neither
            tensor = pipeline = gpus = 1
    for name in imports.backends:
        if name in flags:
            reason = "the cluster sets it for each member" if gpus > 1 else "there is one host"
            report.add("dropped", f"--{name} {format_value(flags.pop(name))}", reason)
    if gpus == 1:
        return {}
    if gpus > MAX_HOSTS:
        raise Refused(f"it is split over {gpus} hosts; at most {MAX_HOSTS} are a cluster.")
    if serving.engine.parallel is None:
        fix = "Choose a smaller quantisation, or a recipe of another engine."
        raise Refused(f"it needs {gpus} hosts, and {serving.engine.title} is served from one host only.", fix=fix)
    reason = f"parallel: a cluster of {gpus} hosts, one GPU each (docs/clusters.md)"
    report.add("translated", f"split over {gpus}", reason)
    return {name: size for name, size in (("tensor", tensor), ("pipeline", pipeline)) if size > 1}


def resolve_flags(
    serving: ServerCommand, report: ImportReport, *, cluster: bool, adopted: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flags for the recipe's section, and further keys of the recipe.

    adopted: the container runs with these flags already.
    """
    imports, flags, other_keys = serving.imports, serving.flags, {}
    if (address := flags.pop(imports.host, None)) is not None and adopted:
        flags[imports.host] = address
    elif address is not None and not cluster:
        report.add(
            "dropped",
            f"--{imports.host} {format_value(address)}",
            "`publish` and `container.ports` say who reaches the server",
        )
    elif cluster and address not in (None, "0.0.0.0", "::"):
        flags[imports.host] = address
    for name in imports.key:
        if flags.pop(name, None) is None:
            continue
        if serving.engine.key is None:
            report.add(
                "secret",
                f"--{name}",
                f"not written: {serving.engine.title} reads no key from a file; `publish: loopback`",
            )
        else:
            other_keys["server_key"] = {"env": KEY_VARIABLE}
            report.add(
                "secret", f"--{name}", f"not written: `server_key: {{env: {KEY_VARIABLE}}}` reads the key on the laptop"
            )
    for name in imports.tokens:
        if flags.pop(name, None) is not None:
            report.add("secret", f"--{name}", "not written: the host downloads the model itself")
    for name in imports.downloads:
        if name in flags:
            report.add(
                "dropped",
                f"--{name} {format_value(flags.pop(name))}",
                "the host downloads the model, and mounts its folder",
            )
    files = {} if adopted else _resolve_files(serving, report)
    models = {} if adopted else _resolve_further_models(serving, report)
    for name in flags:
        if adopted or cluster or name != serving.engine.flags.PORT:
            report.add("kept", f"--{name}")
    return flags, {**other_keys, **({"models": models} if models else {}), **({"files": files} if files else {})}


def _resolve_files(serving: ServerCommand, report: ImportReport) -> dict[str, Any]:
    """Return the recipe's `files` for flags that name a file: a file of the image stays, for others the user is asked."""
    files: dict[str, Any] = {}
    for name in serving.imports.files:
        value = serving.flags.get(name)
        if not isinstance(value, str) or "{" in value or "\n" in value:
            continue
        sentence = (
            f"--{name} names the file {one_line(value, max_chars=120)}, which is not in the recipe: `{KEEP_ANSWER}` if "
            "the image has it, "
            f"`{DROP_ANSWER}` for none, or a file of this project"
        )
        answer = KEEP_ANSWER if _is_in_image(value) else report.ask(name, sentence)
        if answer == DROP_ANSWER:
            report.add("dropped", f"--{name} {value}", "as answered")
            del serving.flags[name]
        elif answer == KEEP_ANSWER:
            report.add("note", f"--{name} {value}", "a file that the image must have")
        elif answer:
            place = f"{FILES_FOLDER}/{answer.rpartition('/')[2]}"
            if reason := check_container_path(place):
                raise Refused(f"`{name}`: '{one_line(place, max_chars=120)}' {reason}.")
            serving.flags[name] = place
            files[place] = {"file": answer}
            report.add("translated", f"--{name} {value}", f"files: {answer} of the project")
    return files


def _is_in_image(path: str) -> bool:
    """Return True for a path in the folders of vLLM's and other engines' images."""
    return path.startswith(("examples/", "/vllm-workspace/", "/app/", "/sgl-workspace/"))


def _resolve_further_models(serving: ServerCommand, report: ImportReport) -> dict[str, Any]:
    """Return the recipe's `models`: those further models, a drafter or a tokenizer, that are to be pinned.

    The container would download any other at its start, unpinned.
    """
    models: dict[str, Any] = {}
    for name, key in serving.imports.further_models.items():
        value = serving.flags.get(name)
        inner = _parse_json(value) if key else None
        model = str(inner.get(key) or "") if isinstance(inner, Mapping) else str(value or "") if not key else ""
        if "/" not in model or model.startswith("/"):
            continue
        role = _find_role(serving, name, key)
        sentence = (
            f"--{name} names a second model, {one_line(model, max_chars=100)}, which spark.lock does not pin: "
            f"{f'`{PIN_ANSWER}` (under `models:` of the recipe), ' if role else ''}`{KEEP_ANSWER}` (the "
            f"container downloads it at each start that does not have it) or `{DROP_ANSWER}`"
        )
        answer = report.ask(name, sentence, (*((PIN_ANSWER,) if role else ()), KEEP_ANSWER, DROP_ANSWER))
        if answer == PIN_ANSWER and role:
            models[role] = _extract_model(serving, name, key, model)
            report.add("translated", f"--{name} {model}", f"models.{role}: pinned, downloaded and mounted")
        elif answer == DROP_ANSWER:
            dropped = [flag for flag in serving.flags if flag.partition(".")[0] == name.partition(".")[0]]
            for item in dropped:
                del serving.flags[item]
            report.add("dropped", f"--{name.partition('.')[0]}", f"as answered: {model} is not used")
        elif answer == KEEP_ANSWER:
            report.add("note", model, "a second model, not pinned: the container needs the hub at its start")
    return models


def _find_role(serving: ServerCommand, name: str, key: str) -> ModelRole | None:
    """Return the role of a second model, if a recipe can name it; None if it can't, or needs a file's name."""
    if serving.engine.files is not None:
        return None
    flag, _, dotted = name.partition(".")
    places = serving.engine.flags.MODEL_FLAGS.items()
    return next((role for role, place in places if (place.flag, place.key) == (flag, key or dotted)), None)


def _extract_model(serving: ServerCommand, name: str, key: str, model: str) -> dict[str, str]:
    """Remove a second model from its flag, and return the recipe's entry for it."""
    value = serving.flags.pop(name)
    if key:
        parsed = _parse_json(value)
        serving.flags[name] = {part: value for part, value in parsed.items() if part != key}
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
