"""Export of a recipe to sparkrun, compose or docker run, with its pins."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sparkwright.errors import Refused
from sparkwright.project import recipe as recipes
from sparkwright.project.importing import compose_file, docker_command
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABELS, ContainerSpec
from sparkwright.shell import join, quote
from sparkwright.trust.image_name import ImageReference, with_digest

#: placeholder for the home folder of the user that starts it; a shell or compose expands it
HOME = "~"


@dataclass
class Export:
    """A recipe to export."""

    recipe: Recipe
    #: the container, with its volumes below HOME
    spec: ContainerSpec
    #: the image, pinned
    image: str
    #: the model's commit; "" while it is not pinned
    commit: str
    #: what the format cannot express
    notes: list[str] = field(default_factory=list)


def build_export(recipe: Recipe, pins: Mapping[str, Any]) -> Export:
    """Return the export of a recipe. Raises Refused for a recipe with files of its own.

    Args:
        pins: the lock's entries, {"image": ..., "model": ...}.
    """
    file = recipe.file
    notes = []
    if file.server_key is not None:
        notes.append("server_key is left out: give the server its key in its own way, and keep it out of the file")
    if file.files:
        fix = "Put what they say into the image, or into flags."
        raise Refused(
            "the recipe has `files`, which no other format carries.", where=recipe.source.where("files"), fix=fix
        )
    host = Host("host", "host", home=HOME)
    standalone = file.model_copy(update={"server_key": None, "parallel": None})
    names = recipes.scope(host, "user", dataclasses.replace(recipe, file=standalone), pins)
    spec = ContainerSpec.from_json(names["container"])
    labels = {name: text for name, text in spec.labels.items() if not name.startswith(OWN_LABELS)}
    digest = str((pins.get("image") or {}).get("digest", ""))
    commit = str((pins.get("model") or {}).get("commit", ""))
    name = ImageReference.parse(file.image)
    spec = dataclasses.replace(spec, labels=labels, caches="")
    return Export(recipe, spec, with_digest(name.by_tag, digest), commit, notes)


def refuse_cluster(export: Export) -> None:
    """Raise Refused for a recipe of several hosts: each member has a container of its own."""
    if export.recipe.split is not None:
        fix = "`render --host CLUSTER` prints the script of each member."
        raise Refused(
            "a cluster's members have a container each.", where=export.recipe.source.where("parallel"), fix=fix
        )


def add_model_note(export: Export) -> None:
    """Note that the model must be on the host first: neither docker nor compose downloads it."""
    model = export.recipe.file.model
    revision = ["--revision", export.commit] if export.commit else []
    download = join(["hf", "download", model.id, *revision, "--local-dir"])
    export.notes.append(f"the model has to be in {model.dir} first: `{download} {model.dir}`")


def render_docker_run(export: Export) -> str:
    """Return the command. Raises Refused for a recipe of several hosts."""
    refuse_cluster(export)
    add_model_note(export)
    spec = export.spec
    rows = [["docker", "run", "-d", "--name", spec.name, "--restart", spec.restart]]
    rows += [[flag, value] if value else [flag] for flag, value in spec.docker_options()]
    entrypoint = spec.entrypoint or ()
    rows += [["--entrypoint", entrypoint[0]]] if entrypoint else []
    rows += [[export.image], *_group_options([*entrypoint[1:], *spec.command])]
    return " \\\n  ".join(" ".join(map(_quote_word, row)) for row in rows) + "\n"


def _quote_word(word: str) -> str:
    """Quote a word, except the home folder, which the shell must expand."""
    if word.startswith(f"{HOME}/"):
        return f'"$HOME"{quote(word.removeprefix(HOME))}'
    return quote(word)


def _group_options(words: list[str]) -> list[list[str]]:
    """Return the words in rows: an option and its values in each."""
    rows: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not rows:
            rows.append([word])
        else:
            rows[-1].append(word)
    return rows


#: keys of a service that are not written as an import reads them
SPECIAL_KEYS = ("environment", "ulimits", "container_name", "restart")
#: options of a recipe's container with the equivalent keys of a service, as an import reads them; others have another form
COMPOSE_KEYS = {
    docker_command.recipe_field(option): key for key, option in compose_file.OPTIONS.items() if key not in SPECIAL_KEYS
}


def render_compose(export: Export) -> str:
    """Return the compose file. Dollars are doubled, as compose interpolates single ones.

    Raises Refused for a recipe of several hosts.
    """
    refuse_cluster(export)
    add_model_note(export)
    spec = export.spec
    service: dict[str, Any] = {"image": export.image, "container_name": spec.name, "restart": spec.restart}
    if spec.entrypoint:
        service["entrypoint"] = _escape_dollars(spec.entrypoint)
    service["command"] = _escape_dollars(spec.command)
    for name in DOCKER_OPTIONS:
        value = getattr(spec, name)
        if name in COMPOSE_KEYS and value not in (None, "", (), {}, False, 0):
            service[COMPOSE_KEYS[name]] = _escape_dollars(value)
    if spec.env:
        service["environment"] = _escape_dollars(spec.env)
    if spec.ulimits:
        service["ulimits"] = {name: _format_ulimit(value) for name, value in spec.ulimits.items()}
    if spec.gpus:
        ids = spec.gpus.removeprefix("device=").split(",") if spec.gpus.startswith("device=") else None
        device = {"driver": "nvidia", **({"device_ids": ids} if ids else {"count": "all"}), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return yaml.safe_dump({"services": {spec.name: service}}, sort_keys=False, width=120)


def _escape_dollars(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, tuple | list):
        return [_escape_dollars(part) for part in value]
    return {name: _escape_dollars(part) for name, part in value.items()} if isinstance(value, dict) else value


def _format_ulimit(value: str) -> Any:
    soft, _, hard = value.partition(":")
    return {"soft": int(soft), "hard": int(hard)} if hard else int(soft)


# A recipe as sparkrun's version 2: image by digest, model by commit. Source: sparkrun 0.4.2 core/recipe.py and api/_pin.py.

RUNTIMES = {"vllm": "vllm", "sglang": "sglang", "llama_cpp": "llama-cpp"}
#: a quantisation in a pattern that names one, as *Q4_K_M*.gguf
_QUANTISATION = re.compile(r"\*-?([A-Za-z0-9][A-Za-z0-9_.-]{0,60}?)-?\*?\.gguf")


def render_sparkrun(export: Export) -> str:
    """Return the sparkrun recipe.

    Raises Refused for an engine that sparkrun has no runtime for, and for a GGUF that it cannot name.
    """
    file, engine = export.recipe.file, export.recipe.engine
    imports = engine.imports
    if engine.name not in RUNTIMES or imports is None:
        raise Refused(f"sparkrun has no runtime for {engine.title}.", where=export.recipe.source.where("engine"))
    split = export.recipe.split
    defaults: dict[str, Any] = {"host": "0.0.0.0", "port": int(_published_port(export))}
    set_here = (engine.flags.PORT, imports.host, *engine.flags.SET_BY)
    all_flags = engine.command(list(export.spec.command)).flags
    flags = {name: value for name, value in all_flags.items() if name not in set_here}
    words = [*imports.program, *_model_words(export)]
    words += ["--" + imports.host, "{host}", f"--{engine.flags.PORT}", "{port}"]
    if split is not None:
        defaults |= {"tensor_parallel": split.tensor, "pipeline_parallel": split.pipeline}
        words += [f"--{imports.tensor}", "{tensor_parallel}", f"--{imports.pipeline}", "{pipeline_parallel}"]
    hosts = split.hosts if split else 1
    data: dict[str, Any] = {
        "recipe_version": "2",
        "description": file.description or export.recipe.name,
        "model": _sparkrun_model_name(export),
        **({"model_revision": export.commit} if export.commit else {}),
        "runtime": RUNTIMES[engine.name],
        "container": export.image,
        "min_nodes": hosts,
        "max_nodes": hosts,
        "defaults": defaults,
        **({"env": dict(file.container.env)} if file.container.env else {}),
    }
    command = f"{' '.join(words)} {join(engine.flags.argv(flags)).replace('{', '{{').replace('}', '}}')}"
    return yaml.safe_dump({**data, "command": command}, sort_keys=False, width=120)


def _published_port(export: Export) -> str:
    """Return the port that clients use."""
    port = (export.spec.ports or ("8000:8000",))[0].partition("/")[0]
    return port.rpartition(":")[0].rpartition(":")[2] or "8000"


def _model_words(export: Export) -> list[str]:
    engine = export.recipe.engine
    imports = engine.imports
    if imports is not None and imports.repository:
        return [f"--{imports.repository}", "{model}"]
    return ["{model}"] if engine.flags.ENTRYPOINT is None else [f"--{next(iter(engine.flags.SET_BY))}", "{model}"]


def _sparkrun_model_name(export: Export) -> str:
    model = export.recipe.file.model
    if not model.file:
        return model.id
    match = _QUANTISATION.fullmatch(model.file.rpartition("/")[2])
    if match is None or "*" in match[1]:
        where = export.recipe.source.where("model", "file")
        raise Refused("sparkrun names a GGUF by its quantisation, which this pattern does not.", where=where)
    return f"{model.id}:{match[1]}"
