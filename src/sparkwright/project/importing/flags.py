"""The flags of an imported recipe: those that another key expresses, that a cluster sets, or that name a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkwright.engines.flags import Role
from sparkwright.errors import Refused
from sparkwright.project.importing.command import Serving
from sparkwright.project.importing.foreign import DROP, KEEP, PIN, Foreign, Report, shown
from sparkwright.trust.model_files import why_not_a_place
from sparkwright.visible import one_line

MOST_HOSTS = 64
#: folder of the project's files in a container
FILES_FOLDER = "/etc/sparkwright"
KEY_VARIABLE = "SPARK_KEY"


def split(found: Foreign, serving: Serving, report: Report) -> dict[str, int]:
    """Return how the model is split over hosts, as a recipe's `parallel`; {} for one host. Removes the flags that say so.

    Raises Refused if it needs several hosts and the engine can serve from one only.
    """
    imports, flags = serving.imports, serving.flags
    tensor, pipeline = (_count(flags.pop(name, 1)) if name else 1 for name in (imports.tensor, imports.pipeline))
    for name in imports.replicas:
        if _count(flags.get(name, 1)) > 1:
            fix = "A recipe starts one server; `gateway:` gives several one address (docs/gateway.md)."
            raise Refused(f"`--{name} {shown(flags[name])}` starts several copies of the model.", fix=fix)
        flags.pop(name, None)
    gpus = tensor * pipeline
    if gpus == 1 and found.hosts > 1:
        tensor = gpus = found.hosts
        report.add(
            "note", "hosts", f"it is for {found.hosts} hosts and says no split: tensor parallelism over all of them"
        )
    if gpus > 1 and found.hosts == 1:
        report.add("dropped", f"split over {gpus}", "it is for one host, and a Spark has one GPU")
        tensor = pipeline = gpus = 1
    elif gpus > 1 and not found.hosts:
        sentence = f"the model is split over {gpus} GPUs, and a Spark has one: how many hosts are to serve it"
        if report.ask("hosts", sentence, ("1", str(gpus))) != str(gpus):  # unanswered: said of neither
            tensor = pipeline = gpus = 1
    for name in imports.backends:
        if name in flags:
            why = "the cluster sets it for each member" if gpus > 1 else "there is one host"
            report.add("dropped", f"--{name} {shown(flags.pop(name))}", why)
    if gpus == 1:
        return {}
    if gpus > MOST_HOSTS:
        raise Refused(f"it is split over {gpus} hosts; at most {MOST_HOSTS} are a cluster.")
    if serving.engine.parallel is None:
        fix = "Choose a smaller quantisation, or a recipe of another engine."
        raise Refused(f"it needs {gpus} hosts, and {serving.engine.title} is served from one host only.", fix=fix)
    why = f"parallel: a cluster of {gpus} hosts, one GPU each (docs/clusters.md)"
    report.add("translated", f"split over {gpus}", why)
    return {name: size for name, size in (("tensor", tensor), ("pipeline", pipeline)) if size > 1}


def settled(serving: Serving, report: Report, *, cluster: bool, adopted: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flags for the recipe's section, and further keys of the recipe.

    adopted: the container runs with these flags already.
    """
    imports, flags, more = serving.imports, serving.flags, {}
    if (address := flags.pop(imports.host, None)) is not None and adopted:
        flags[imports.host] = address
    elif address is not None and not cluster:
        report.add(
            "dropped",
            f"--{imports.host} {shown(address)}",
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
            more["server_key"] = {"env": KEY_VARIABLE}
            report.add(
                "secret", f"--{name}", f"not written: `server_key: {{env: {KEY_VARIABLE}}}` reads the key on the laptop"
            )
    for name in imports.tokens:
        if flags.pop(name, None) is not None:
            report.add("secret", f"--{name}", "not written: the host downloads the model itself")
    for name in imports.downloads:
        if name in flags:
            report.add(
                "dropped", f"--{name} {shown(flags.pop(name))}", "the host downloads the model, and mounts its folder"
            )
    files = {} if adopted else _files(serving, report)
    models = {} if adopted else _further_models(serving, report)
    for name in flags:
        if adopted or cluster or name != serving.engine.flags.PORT:
            report.add("kept", f"--{name}")
    return flags, {**more, **({"models": models} if models else {}), **({"files": files} if files else {})}


def _files(serving: Serving, report: Report) -> dict[str, Any]:
    """Return the recipe's `files` for flags that name a file: a file of the image stays, for others the user is asked."""
    found: dict[str, Any] = {}
    for name in serving.imports.files:
        value = serving.flags.get(name)
        if not isinstance(value, str) or "{" in value or "\n" in value:
            continue
        sentence = (
            f"--{name} names the file {one_line(value, at_most=120)}, which is not in the recipe: `{KEEP}` if the image has it, "
            f"`{DROP}` for none, or a file of this project"
        )
        answer = KEEP if _of_the_image(value) else report.ask(name, sentence)
        if answer == DROP:
            report.add("dropped", f"--{name} {value}", "as answered")
            del serving.flags[name]
        elif answer == KEEP:
            report.add("note", f"--{name} {value}", "a file that the image must have")
        elif answer:
            place = f"{FILES_FOLDER}/{answer.rpartition('/')[2]}"
            if reason := why_not_a_place(place):
                raise Refused(f"`{name}`: '{one_line(place, at_most=120)}' {reason}.")
            serving.flags[name] = place
            found[place] = {"file": answer}
            report.add("translated", f"--{name} {value}", f"files: {answer} of the project")
    return found


def _of_the_image(path: str) -> bool:
    """Return True for a path in the folders of vLLM's and other engines' images."""
    return path.startswith(("examples/", "/vllm-workspace/", "/app/", "/sgl-workspace/"))


def _further_models(serving: Serving, report: Report) -> dict[str, Any]:
    """Return the recipe's `models`: those further models, a drafter or a tokenizer, that are to be pinned.

    The container would download any other at its start, unpinned.
    """
    found: dict[str, Any] = {}
    for name, key in serving.imports.further_models.items():
        value = serving.flags.get(name)
        inner = _parsed(value) if key else None
        model = str(inner.get(key) or "") if isinstance(inner, Mapping) else str(value or "") if not key else ""
        if "/" not in model or model.startswith("/"):
            continue
        role = _role(serving, name, key)
        sentence = (
            f"--{name} names a second model, {one_line(model, at_most=100)}, which spark.lock does not pin: "
            f"{f'`{PIN}` (under `models:` of the recipe), ' if role else ''}`{KEEP}` (the "
            f"container downloads it at each start that does not have it) or `{DROP}`"
        )
        answer = report.ask(name, sentence, (*((PIN,) if role else ()), KEEP, DROP))
        if answer == PIN and role:
            found[role] = _pinned(serving, name, key, model)
            report.add("translated", f"--{name} {model}", f"models.{role}: pinned, downloaded and mounted")
        elif answer == DROP:
            gone = [flag for flag in serving.flags if flag.partition(".")[0] == name.partition(".")[0]]
            for item in gone:
                del serving.flags[item]
            report.add("dropped", f"--{name.partition('.')[0]}", f"as answered: {model} is not used")
        elif answer == KEEP:
            report.add("note", model, "a second model, not pinned: the container needs the hub at its start")
    return found


def _role(serving: Serving, name: str, key: str) -> Role | None:
    """Return the role of a second model, if a recipe can name it; None if it can't, or needs a file's name."""
    if serving.engine.files is not None:
        return None
    flag, _, dotted = name.partition(".")
    places = serving.engine.flags.MODEL_FLAGS.items()
    return next((role for role, place in places if (place.flag, place.key) == (flag, key or dotted)), None)


def _pinned(serving: Serving, name: str, key: str, model: str) -> dict[str, str]:
    """Remove a second model from its flag, and return the recipe's entry for it."""
    value = serving.flags.pop(name)
    if key:
        parsed = _parsed(value)
        serving.flags[name] = {part: value for part, value in parsed.items() if part != key}
    folder = model.rpartition("/")[2].lower()
    return {"id": model, "dir": f"~/models/{folder}", "mount": f"/models/{folder}"}


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _count(value: Any) -> int:
    number = str(value)
    return int(number) if number.isdigit() and len(number) < 6 else 1
