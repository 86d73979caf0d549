"""The container of an imported recipe: the options that become `container`, those left out, and one that runs already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing.command import ServerCommand
from sparkwright.project.importing.docker_command import find_variables, split_assignments, unwrap_shell
from sparkwright.project.importing.foreign_recipe import DROP_ANSWER, ForeignRecipe, ImportReport, format_value
from sparkwright.trust.image_name import ImageReference, check_image
from sparkwright.trust.process_option_rules import HOST
from sparkwright.trust.secret_names import is_secret, is_secret_name
from sparkwright.visible import one_line

#: options of `docker run` that an import leaves out, each with the reason; the user can add them to the recipe
DROPPED_OPTIONS = {
    "privileged": "the server needs no rights of the host's root; `devices` and `cap_add` give single ones",
    "restart": "the restart policy is `unless-stopped`, once the server is verified",
    "healthcheck": "sparkwright checks that it generates (`health.install`)",
    "pid": "the server has no need of the host's processes",
}


def build_container(
    name: str,
    foreign: ForeignRecipe,
    serving: ServerCommand,
    section: dict[str, Any],
    cluster: bool,
    report: ImportReport,
) -> dict[str, Any]:
    """Return the recipe's `container`.

    Args:
        section: the engine's flags; the port is removed from them.
        cluster: whether it uses its hosts' network.
    """
    box: dict[str, Any] = {"name": name}
    set_by_cluster = frozenset(serving.engine.parallel.VARIABLES if cluster and serving.engine.parallel else ())
    if foreign.adopted:
        return box | _running_container(foreign, serving, report)
    for option, value in foreign.options.items():
        if option in DROPPED_OPTIONS:
            report.add("dropped", f"{option} {one_line(format_value(value), max_chars=60)}", DROPPED_OPTIONS[option])
        elif option == "name":
            report.add("translated", f"container {value}", f"container.name: {name}")
        else:
            box[option] = list(value) if isinstance(value, tuple) else value
            report.add("kept", f"{option} {one_line(format_value(value), max_chars=60)}")
    if foreign.network and not cluster:
        reason = (
            "the port is published instead"
            if foreign.network == "host"
            else "Docker's own bridge is used, and the port published"
        )
        report.add("dropped", f"network {foreign.network}", reason)
    if not cluster:
        box["ports"] = [_published_port(foreign, serving, section, report)]
    if env := select_environment(foreign.env, set_by_cluster, report):
        box["env"] = env
    if volumes := _select_volumes(foreign, report):
        box["volumes"] = volumes
    if entrypoint := _select_entrypoint(foreign, serving):
        box["entrypoint"] = entrypoint
        report.add(
            "kept",
            f"container.entrypoint {' '.join(entrypoint)}",
            "the command names it: the image may start something else",
        )
    elif foreign.entrypoint is not None:
        report.add("translated", "entrypoint", "the engine's own program, which its image starts")
    return box


def _select_entrypoint(foreign: ForeignRecipe, serving: ServerCommand) -> list[str]:
    """Return the program that the command names; empty if the engine's image, or any recipe, starts it anyway."""
    own = ImageReference.parse(serving.imports.image).repository if not check_image(foreign.image) else ""
    if (
        not foreign.image
        or serving.engine.flags.ENTRYPOINT is not None
        or ImageReference.parse(foreign.image).repository == own
    ):
        return []
    return serving.entrypoint


def _running_container(foreign: ForeignRecipe, serving: ServerCommand, report: ImportReport) -> dict[str, Any]:
    """Return all options that the container was created with, under its own name."""
    box = dict(foreign.options)
    if foreign.network:
        box["network"] = foreign.network
        if foreign.network == HOST and not foreign.ports:
            reason = "a deploy names the port, by which the container is found, and so replaces it once"
            report.add("note", "network host", reason)
    box["ports"] = foreign.ports
    if serving.program and list(serving.program) != foreign.starts:
        box["entrypoint"] = list(serving.program)
    elif foreign.entrypoint is not None:
        box["entrypoint"] = foreign.entrypoint
    if foreign.env:
        box["env"] = foreign.env
    if foreign.volumes:
        box["volumes"] = foreign.volumes
    for name, value in box.items():
        report.add("kept", f"container.{name} {one_line(format_value(value), max_chars=60)}")
    return box


def _published_port(
    foreign: ForeignRecipe, serving: ServerCommand, section: dict[str, Any], report: ImportReport
) -> str:
    """Return HOST:CONTAINER. In the container the server uses its engine's usual port; the host's is the one that
    clients know."""
    engine_flags = serving.engine.flags
    is_compound = isinstance(engine_flags.value(section, engine_flags.PORT), list | tuple | dict)
    problem = "must be a port" if is_compound else engine_flags.find_value_problem(section, engine_flags.PORT)
    if problem:
        raise Refused(f"`--{engine_flags.PORT}` {problem}.")
    container_port = engine_flags.port(section)
    flag_port = section.pop(engine_flags.PORT, None)
    published = next(
        (port for port in foreign.ports if port.partition("/")[0].rpartition(":")[2] == str(container_port)), ""
    )
    outside = published.rpartition("/")[0] or published
    host = outside.rpartition(":")[0].rpartition(":")[2] or str(container_port)
    if published or flag_port is not None:
        report.add(
            "translated", f"port {published or flag_port}", f"container.ports: {host}:{serving.imports.port_inside}"
        )
    for other in foreign.ports:
        if other != published:
            report.add("dropped", f"port {other}", "nothing of the server listens there")
    return f"{host}:{serving.imports.port_inside}"


def _select_volumes(foreign: ForeignRecipe, report: ImportReport) -> list[str]:
    volumes = []
    for volume in foreign.volumes:
        source = volume.partition(":")[0].replace("${HOME}", "~").replace("$HOME", "~")
        if "huggingface" in volume or "/.cache" in volume:
            report.add(
                "dropped",
                f"volume {volume}",
                "a cache: the host downloads the model, and keeps what the engine compiles",
            )
        elif source.startswith(("/", "~/")) and "$" not in source and ".." not in volume.split("/"):
            volumes.append(source + volume[len(volume.partition(":")[0]) :])
            report.add("kept", f"volume {volume}")
        else:
            report.add("dropped", f"volume {volume}", "not a folder of the host by an absolute path")
    return volumes


#: the variables from which the hub's clients read a token
HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_HUB_TOKEN"})
#: settings of a container's downloads; here the host downloads the model
DOWNLOAD_VARIABLES = frozenset(
    {"HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HUB_ENABLE_HF_TRANSFER", "HF_XET_HIGH_PERFORMANCE"}
)
HUB_TOKEN_HINT = (
    "the host downloads the model itself; a gated one needs `secrets: {HF_TOKEN: {env: HF_TOKEN}}` in hosts/groups.yml"
)


def select_environment(env: Mapping[str, str], set_by_cluster: frozenset[str], report: ImportReport) -> dict[str, str]:
    """Return the variables that a recipe may hold. set_by_cluster: those that a cluster sets for each member."""
    selected: dict[str, str] = {}
    for name, value in env.items():
        if name in HUB_TOKENS:
            report.add("secret", name, f"not written: {HUB_TOKEN_HINT}")
        elif is_secret(name, value) or is_secret_name(name):
            report.add(
                "secret", name, "not written: a recipe holds no secret; a key for clients is `server_key: {env: NAME}`"
            )
        elif name in DOWNLOAD_VARIABLES:
            report.add("dropped", name, "the container downloads nothing: the host does, and mounts the model's folder")
        elif name in set_by_cluster:
            report.add("dropped", name, "the cluster sets it for each member")
        elif find_variables(value):
            sentence = f"the variable {name} is filled from a shell ({value}): what is its value, or `{DROP_ANSWER}`"
            answer = report.ask(f"env.{name}", sentence)
            if answer and answer != DROP_ANSWER:
                selected[name] = answer
            elif answer:
                report.add("dropped", name, "as answered")
        else:
            selected[name] = value
            report.add("kept", f"env {name}")
    return selected


#: `container_settings` replaces secrets by this
MASK = "***"


def convert_running(settings: Mapping[str, Any], host: str, report: ImportReport) -> ForeignRecipe:
    """Return the container as a foreign recipe.

    Args:
        settings: the result of the module `container_settings`.
        host: the host's name.
    """
    foreign = ForeignRecipe(
        kind=f"the container {settings['name']} of {host}",
        name=str(settings["name"]),
        image=str(settings["image"]),
        ports=list(settings["ports"]),
        volumes=list(settings["volumes"]),
        network=str(settings["network"]),
        options={**settings["options"], "name": str(settings["name"])},
        entrypoint=settings["entrypoint"],
        hosts=1,
        adopted=True,
        starts=list(settings["program"]) if settings["entrypoint"] is None else [],
    )
    env, words = split_assignments(unwrap_shell([*settings["program"], *settings["command"]]))
    foreign.words = words
    foreign.env = {name: value for name, value in {**settings["env"], **env}.items() if MASK not in value}
    for name, value in settings["env"].items():
        if MASK in value:
            why = "its value stays on the host: a recipe holds no secret, and a deploy replaces the container once, without it"
            report.add("secret", name, why)
    _remove_hidden(foreign, report)
    report.add(
        "note",
        foreign.name,
        f"it goes on serving: importing changed nothing on {host}; `plan` says what a deploy would",
    )
    return foreign


def _remove_hidden(foreign: ForeignRecipe, report: ImportReport) -> None:
    """Remove labels that held a secret, and report words that held one."""
    reason = "its value stays on the host: a recipe holds no secret"
    labels = foreign.options.get("labels") or {}
    for name in [name for name, value in labels.items() if MASK in str(value)]:
        report.add("secret", f"label {name}", reason)
        del labels[name]
    for word in foreign.words:
        if MASK in word and word != MASK and not word.startswith("--"):
            report.add("secret", word, "its secret stays on the host: give it by a file, or in `server_key`")
    if not labels:
        foreign.options.pop("labels", None)
