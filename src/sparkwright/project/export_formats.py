"""Exports a recipe, with image and model pinned, to sparkrun, Compose or `docker run`."""

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
from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABEL_PREFIX, ContainerSpec
from sparkwright.shell import join, quote
from sparkwright.trust.image_name import ImageReference, with_digest
from sparkwright.trust.process_option_rules import BRIDGE_NETWORK, HEALTHCHECK_OFF, parse_network

#: home folder of the user who starts the container; expanded by the shell or Compose
HOME = "~"
#: keys of a Compose service that `render_compose` handles individually
SPECIAL_KEYS = ("environment", "ulimits", "container_name", "restart", "network_mode")
#: map from an option of a recipe's container to the Compose key with the same value
COMPOSE_KEYS = {
    docker_command.recipe_field(option): key
    for key, option in compose_file.DOCKER_OPTION_NAMES.items()
    if key not in SPECIAL_KEYS
}
#: sparkrun's runtimes, by engine
SPARKRUN_RUNTIMES = {"vllm": "vllm", "sglang": "sglang", "llama_cpp": "llama-cpp"}
#: a file pattern that names a quantisation, such as *Q4_K_M*.gguf
_QUANTISATION_PATTERN = re.compile(r"\*-?([A-Za-z0-9][A-Za-z0-9_.-]{0,60}?)-?\*?\.gguf")


@dataclass
class Export:
    """The data that every export format needs."""

    recipe: Recipe
    #: container whose volumes are below HOME
    spec: ContainerSpec
    #: image reference with its digest, if pinned
    image: str
    #: the model's commit; empty if the model is not pinned
    commit: str
    #: messages for the user, for example about settings that are left out
    notes: list[str] = field(default_factory=list)


def build_export(recipe: Recipe, pins: Mapping[str, Any]) -> Export:
    """Prepare a recipe for export. Raises Refused for a recipe with `files`.

    pins: the lock's entries, {"image": ..., "model": ...}.
    """
    file = recipe.file
    notes = []
    if file.server_key is not None:
        notes.append("server_key is left out: set the server's key separately, and keep it out of the file")
    if file.files:
        fix = "Put their content into the image, or pass it in flags."
        raise Refused("no other format supports `files`.", where=recipe.source.where("files"), fix=fix)
    host = Host("host", "host", home=HOME)
    standalone_file = file.model_copy(update={"server_key": None, "parallel": None})
    variables = recipes.scope(host, "user", dataclasses.replace(recipe, file=standalone_file), pins)
    spec = ContainerSpec.from_json(variables["container"])
    labels = {name: text for name, text in spec.labels.items() if not name.startswith(OWN_LABEL_PREFIX)}
    digest = str((pins.get("image") or {}).get("digest", ""))
    commit = str((pins.get("model") or {}).get("commit", ""))
    image_reference = ImageReference.parse(file.image)
    spec = dataclasses.replace(spec, labels=labels, caches="")
    return Export(recipe, spec, with_digest(image_reference.by_tag, digest), commit, notes)


def refuse_cluster(export: Export) -> None:
    """Raise Refused for a multi-host recipe, because each member has a separate container."""
    if export.recipe.split is not None:
        fix = "`render --host CLUSTER` prints each member's script."
        raise Refused(
            "each member of a cluster has its own container.", where=export.recipe.source.where("parallel"), fix=fix
        )


def add_model_note(export: Export) -> None:
    """Add the note that the user has to download the model first."""
    model = export.recipe.file.model
    revision = ["--revision", export.commit] if export.commit else []
    download = join(["hf", "download", model.id, *revision, "--local-dir"])
    export.notes.append(f"download the model to {model.dir} first: `{download} {model.dir}`")


def render_docker_run(export: Export) -> str:
    """Return the `docker run` command. Raises Refused for a multi-host recipe."""
    refuse_cluster(export)
    add_model_note(export)
    spec = export.spec
    for words in spec.further_networks():
        export.notes.append(
            f"then connect it to its other network: `{join(['docker', 'network', 'connect', *words, spec.name])}`"
        )
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
    """Group each option with its values."""
    rows: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not rows:
            rows.append([word])
        else:
            rows[-1].append(word)
    return rows


def render_compose(export: Export) -> str:
    """Return the compose file. Dollar signs are doubled, because Compose interpolates single ones.

    Raises Refused for a multi-host recipe.
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
        if name in COMPOSE_KEYS and (value or (name == "init" and value is False)):
            service[COMPOSE_KEYS[name]] = _escape_dollars(value)
    if spec.env:
        service["environment"] = _escape_dollars(spec.env)
    if spec.ulimits:
        service["ulimits"] = {name: _format_ulimit(value) for name, value in spec.ulimits.items()}
    if spec.gpus:
        ids = spec.gpus.removeprefix("device=").split(",") if spec.gpus.startswith("device=") else None
        count = int(spec.gpus) if spec.gpus.isdecimal() else "all"
        device = {"driver": "nvidia", **({"device_ids": ids} if ids else {"count": count}), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    if spec.healthcheck:
        service["healthcheck"] = _compose_healthcheck(spec.healthcheck)
    if spec.log_driver or spec.log_options:
        logging = {"driver": spec.log_driver, "options": spec.log_options}
        service["logging"] = {key: _escape_dollars(value) for key, value in logging.items() if value}
    network_settings, external_networks = _compose_networks(spec)
    document = {"services": {spec.name: {**service, **network_settings}}, **external_networks}
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _compose_healthcheck(check: Mapping[str, str]) -> dict[str, Any]:
    if check.get("test") == HEALTHCHECK_OFF:
        return {"disable": True}
    return {key: int(text) if key == "retries" else _escape_dollars(text) for key, text in check.items()}


def _compose_networks(spec: ContainerSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the service's network settings, and the `networks` section, in which existing networks are external.

    A container on a single network without aliases keeps its `network_mode`. For a container that joins more networks,
    Compose's own default network replaces Docker's default bridge, on which the alias that Compose sets is not allowed.
    """
    networks = dict(map(parse_network, (spec.network, *spec.networks)))
    if list(networks) == [spec.network]:
        return ({"network_mode": spec.network} if spec.network else {}), {}
    aliases_by_name = {
        "default" if name in ("", BRIDGE_NETWORK) else name: aliases for name, aliases in networks.items()
    }
    service_networks = {name: {"aliases": aliases} if aliases else None for name, aliases in aliases_by_name.items()}
    return {"networks": service_networks}, {
        "networks": {name: {"external": True} for name in aliases_by_name if name != "default"}
    }


def _escape_dollars(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, tuple | list):
        return [_escape_dollars(child) for child in value]
    return {name: _escape_dollars(child) for name, child in value.items()} if isinstance(value, dict) else value


def _format_ulimit(value: str) -> Any:
    soft, _, hard = value.partition(":")
    return {"soft": int(soft), "hard": int(hard)} if hard else int(soft)


# sparkrun's recipe format version 2, with image digest and model commit. Source: sparkrun 0.4.2 core/recipe.py and api/_pin.py.


def render_sparkrun(export: Export) -> str:
    """Return the sparkrun recipe.

    Raises Refused for an engine without a sparkrun runtime, and for a GGUF pattern without the name of a quantisation.
    """
    file, engine = export.recipe.file, export.recipe.engine
    imports = engine.imports
    if engine.name not in SPARKRUN_RUNTIMES or imports is None:
        raise Refused(f"sparkrun has no runtime for {engine.title}.", where=export.recipe.source.where("engine"))
    split = export.recipe.split
    defaults: dict[str, Any] = {"host": "0.0.0.0", "port": int(_published_port(export))}
    separate_flags = (engine.flags.PORT, imports.host_flag, *engine.flags.RESERVED_FLAGS)
    all_flags = engine.parse_command(list(export.spec.command)).flags
    flags = {name: value for name, value in all_flags.items() if name not in separate_flags}
    words = [*imports.program, *_model_words(export)]
    words += ["--" + imports.host_flag, "{host}", f"--{engine.flags.PORT}", "{port}"]
    if split is not None:
        defaults |= {"tensor_parallel": split.tensor, "pipeline_parallel": split.pipeline}
        words += [f"--{imports.tensor_flag}", "{tensor_parallel}", f"--{imports.pipeline_flag}", "{pipeline_parallel}"]
    hosts = split.hosts if split else 1
    data: dict[str, Any] = {
        "recipe_version": "2",
        "description": file.description or export.recipe.name,
        "model": _sparkrun_model_name(export),
        **({"model_revision": export.commit} if export.commit else {}),
        "runtime": SPARKRUN_RUNTIMES[engine.name],
        "container": export.image,
        "min_nodes": hosts,
        "max_nodes": hosts,
        "defaults": defaults,
        **({"env": dict(file.container.env)} if file.container.env else {}),
    }
    if unsupported := _options_outside_sparkrun(export):
        export.notes.append(
            f"left out, because the format has no key for these container options: {', '.join(unsupported)}"
        )
    command = f"{' '.join(words)} {join(engine.flags.argv(flags)).replace('{', '{{').replace('}', '}}')}"
    return yaml.safe_dump({**data, "command": command}, sort_keys=False, width=120)


def _options_outside_sparkrun(export: Export) -> list[str]:
    """Return the options of the recipe that sparkrun's format does not support.

    The format supports one port, published on all the host's addresses. The model's volume is not an option of the recipe.
    """
    spec, defaults = export.spec, ContainerSpec("", "")
    names = DOCKER_OPTIONS.keys() - {"ports", "volumes", "env"}
    unsupported_options = [name for name in names if getattr(spec, name) != getattr(defaults, name)]
    unsupported_options += ["ports"] if len(spec.ports) > 1 or any(port.count(":") > 1 for port in spec.ports) else []
    unsupported_options += ["volumes"] if len(spec.volumes) > 1 else []
    unsupported_options += ["entrypoint"] if export.recipe.file.container.entrypoint is not None else []
    return sorted(unsupported_options)


def _published_port(export: Export) -> str:
    """Return the port that clients use."""
    port = (export.spec.ports or ("8000:8000",))[0].partition("/")[0]
    return port.rpartition(":")[0].rpartition(":")[2] or "8000"


def _model_words(export: Export) -> list[str]:
    engine = export.recipe.engine
    imports = engine.imports
    if imports is not None and imports.repository_flag:
        return [f"--{imports.repository_flag}", "{model}"]
    return (
        ["{model}"] if engine.flags.ENTRYPOINT is None else [f"--{next(iter(engine.flags.RESERVED_FLAGS))}", "{model}"]
    )


def _sparkrun_model_name(export: Export) -> str:
    model = export.recipe.file.model
    if not model.file:
        return model.id
    match = _QUANTISATION_PATTERN.fullmatch(model.file.rpartition("/")[2])
    if match is None or "*" in match[1]:
        where = export.recipe.source.where("model", "file")
        raise Refused("sparkrun needs the quantisation of a GGUF, which this pattern does not contain.", where=where)
    return f"{model.id}:{match[1]}"
