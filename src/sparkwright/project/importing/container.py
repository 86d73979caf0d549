"""Builds the `container` of an imported recipe, and imports a running container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing.command import ServerCommand
from sparkwright.project.importing.docker_command import find_variables, split_assignments, unwrap_shell
from sparkwright.project.importing.foreign_recipe import DROP_ANSWER, ForeignRecipe, ImportReport, format_value
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from sparkwright.trust.image_name import ImageReference, check_image
from sparkwright.trust.process_option_rules import HOST_NETWORK
from sparkwright.trust.secret_names import is_secret, is_secret_name
from sparkwright.visible import one_line

#: options of `docker run` that an import drops, each with the reason; the user can add them to the recipe
DROPPED_OPTIONS = {
    "privileged": "the server does not need full root privileges; `devices` and `cap_add` grant individual ones",
    "restart": "the restart policy is `unless-stopped`, once the server is verified",
    "healthcheck": "sparkwright itself checks that the server generates text (`health.install`)",
    "pid": "the server does not need the host's processes",
}
#: variables from which clients of the hub read a token
HUB_TOKEN_VARIABLES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_HUB_TOKEN"})
#: settings for downloads in the container, which have no effect because the host downloads the model
DOWNLOAD_VARIABLES = frozenset(
    {"HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HUB_ENABLE_HF_TRANSFER", "HF_XET_HIGH_PERFORMANCE"}
)
HUB_TOKEN_HINT = (
    "the host downloads the model; a gated model needs `secrets: {HF_TOKEN: {env: HF_TOKEN}}` in hosts/groups.yml"
)
#: replacement for secrets in the result of `container_settings`
MASK = "***"


def build_container(
    name: str,
    foreign: ForeignRecipe,
    server_command: ServerCommand,
    section: dict[str, Any],
    uses_cluster: bool,
    report: ImportReport,
) -> dict[str, Any]:
    """Return the recipe's `container`.

    Args:
        section: the engine's flags; the port is removed from them.
        uses_cluster: True for a recipe with `parallel`, which uses the hosts' network.
    """
    container: dict[str, Any] = {"name": name}
    if foreign.adopted:
        return container | _running_container(foreign, server_command, report)
    for option, value in foreign.options.items():
        if option in DROPPED_OPTIONS:
            report.add("dropped", f"{option} {one_line(format_value(value), max_chars=60)}", DROPPED_OPTIONS[option])
        elif option == "name":
            report.add("translated", f"container {value}", f"container.name: {name}")
        else:
            container[option] = list(value) if isinstance(value, tuple) else value
            report.add("kept", f"{option} {one_line(format_value(value), max_chars=60)}")
    if foreign.network and not uses_cluster:
        reason = "the port is published instead"
        if foreign.network != "host":
            reason = "Docker's default bridge is used, and the port published"
        report.add("dropped", f"network {foreign.network}", reason)
    if not uses_cluster:
        container["ports"] = [_published_port(foreign, server_command, section, report)]
    cluster_variables = frozenset(
        server_command.engine.parallel.VARIABLES if uses_cluster and server_command.engine.parallel else ()
    )
    if env := select_environment(foreign.env, cluster_variables, report):
        container["env"] = env
    if volumes := _select_volumes(foreign, report):
        container["volumes"] = volumes
    if entrypoint := _select_entrypoint(foreign, server_command):
        container["entrypoint"] = entrypoint
        reason = "set by the command: the image may start another program"
        report.add("kept", f"container.entrypoint {' '.join(entrypoint)}", reason)
    elif foreign.entrypoint is not None:
        report.add("translated", "entrypoint", "the engine's usual program, which the image starts")
    return container


def _select_entrypoint(foreign: ForeignRecipe, server_command: ServerCommand) -> list[str]:
    """Return the program of the command; empty if the image or the engine's default entrypoint starts it anyway."""
    if not foreign.image or server_command.engine.flags.ENTRYPOINT is not None:
        return []
    official_repository = ImageReference.parse(server_command.imports.image).repository
    is_official = (
        not check_image(foreign.image) and ImageReference.parse(foreign.image).repository == official_repository
    )
    return [] if is_official else server_command.entrypoint


def _running_container(foreign: ForeignRecipe, server_command: ServerCommand, report: ImportReport) -> dict[str, Any]:
    """Return all options of a running container that a recipe supports, including its name."""
    container = dict(foreign.options)
    if foreign.network:
        container["network"] = foreign.network
    _drop_unsupported(container, report)
    if foreign.network == HOST_NETWORK and not foreign.ports:
        reason = "the first deploy replaces the container, because one that sparkwright creates also records the port"
        report.add("note", "network host", reason)
    container["ports"] = foreign.ports
    if server_command.program and list(server_command.program) != foreign.image_program:
        container["entrypoint"] = list(server_command.program)
    elif foreign.entrypoint is not None:
        container["entrypoint"] = foreign.entrypoint
    if foreign.env:
        container["env"] = foreign.env
    if foreign.volumes:
        container["volumes"] = foreign.volumes
    for name, value in container.items():
        report.add("kept", f"container.{name} {one_line(format_value(value), max_chars=60)}")
    return container


def _drop_unsupported(container: dict[str, Any], report: ImportReport) -> None:
    """Remove and report the options, or items of a list, that Docker accepts and a recipe does not.

    Example: the network of another container. A dropped `ipc` or `gpus` becomes empty, which is Docker's default, because the
    default in recipes grants more.
    """
    defaults = ContainerSpec("", "")
    for name in [name for name in container if name in DOCKER_OPTIONS]:
        check, value = DOCKER_OPTIONS[name].check, container[name]
        items = value if isinstance(value, list) else [value]
        supported_items = []
        for item in items:
            if problem := check(item):
                report.add("dropped", f"{name} {one_line(format_value(item), max_chars=60)}", problem)
            else:
                supported_items.append(item)
        if not supported_items and getattr(defaults, name):
            container[name] = ""
        elif not supported_items:
            del container[name]
        elif len(supported_items) < len(items):
            container[name] = supported_items


def _published_port(
    foreign: ForeignRecipe, server_command: ServerCommand, section: dict[str, Any], report: ImportReport
) -> str:
    """Return HOST:CONTAINER: the source's host port, and the engine's default port, on which the imported server listens."""
    engine_flags = server_command.engine.flags
    is_compound = isinstance(engine_flags.value(section, engine_flags.PORT), list | tuple | dict)
    problem = "must be a port" if is_compound else engine_flags.find_value_problem(section, engine_flags.PORT)
    if problem:
        raise Refused(f"`--{engine_flags.PORT}` {problem}.")
    container_port = engine_flags.port(section)
    flag_port = section.pop(engine_flags.PORT, None)
    published_port = next(
        (port for port in foreign.ports if port.partition("/")[0].rpartition(":")[2] == str(container_port)), ""
    )
    without_protocol = published_port.rpartition("/")[0] or published_port
    host_port = without_protocol.rpartition(":")[0].rpartition(":")[2] or str(container_port)
    port_mapping = f"{host_port}:{server_command.imports.container_port}"
    if published_port or flag_port is not None:
        report.add("translated", f"port {published_port or flag_port}", f"container.ports: {port_mapping}")
    for port in foreign.ports:
        if port != published_port:
            report.add("dropped", f"port {port}", "the server does not listen there")
    return port_mapping


def _select_volumes(foreign: ForeignRecipe, report: ImportReport) -> list[str]:
    volumes = []
    for volume in foreign.volumes:
        written_source, colon, mount = volume.partition(":")
        source = written_source.replace("${HOME}", "~").replace("$HOME", "~")
        if "huggingface" in volume or "/.cache" in volume:
            reason = "a cache: the host downloads the model and keeps the compile caches"
            report.add("dropped", f"volume {volume}", reason)
        elif source.startswith(("/", "~/")) and "$" not in source and ".." not in volume.split("/"):
            volumes.append(f"{source}{colon}{mount}")
            report.add("kept", f"volume {volume}")
        else:
            report.add("dropped", f"volume {volume}", "not an absolute path of the host")
    return volumes


def select_environment(
    env: Mapping[str, str], cluster_variables: frozenset[str], report: ImportReport
) -> dict[str, str]:
    """Return the variables for the recipe. cluster_variables: those that a cluster sets for each member."""
    selected_variables: dict[str, str] = {}
    for name, value in env.items():
        if name in HUB_TOKEN_VARIABLES:
            report.add("secret", name, f"not written: {HUB_TOKEN_HINT}")
        elif is_secret(name, value) or is_secret_name(name):
            reason = (
                "not written: a recipe must not contain secrets; set a key for clients with `server_key: {env: NAME}`"
            )
            report.add("secret", name, reason)
        elif name in DOWNLOAD_VARIABLES:
            report.add("dropped", name, "the host downloads the model, not the container")
        elif name in cluster_variables:
            report.add("dropped", name, "the cluster sets it for each member")
        elif find_variables(value):
            question = f"the variable {name} is set from the shell ({value}). Enter its value, or `{DROP_ANSWER}`"
            answer = report.ask(f"env.{name}", question)
            if answer and answer != DROP_ANSWER:
                selected_variables[name] = answer
            elif answer:
                report.add("dropped", name, "as answered")
        else:
            selected_variables[name] = value
            report.add("kept", f"env {name}")
    return selected_variables


def convert_running(settings: Mapping[str, Any], host: str, report: ImportReport) -> ForeignRecipe:
    """Return a running container as a foreign recipe. settings: result of the module `container_settings`."""
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
        image_program=list(settings["program"]) if settings["entrypoint"] is None else [],
    )
    env, words = split_assignments(unwrap_shell([*settings["program"], *settings["command"]]))
    foreign.words = words
    foreign.env = {name: value for name, value in {**settings["env"], **env}.items() if MASK not in value}
    for name, value in settings["env"].items():
        if MASK in value:
            reason = "not written: a recipe must not contain secrets; the first deploy creates a container without it"
            report.add("secret", name, reason)
    _report_masked(foreign, report)
    reason = f"continues to serve: the import changed nothing on {host}; `plan` shows what a deploy would change"
    report.add("note", foreign.name, reason)
    return foreign


def _report_masked(foreign: ForeignRecipe, report: ImportReport) -> None:
    """Remove and report options with masked secrets, and report masked words of the command."""
    reason = "not written: a recipe must not contain secrets"
    for option, value in [*foreign.options.items()]:
        if not isinstance(value, dict):
            masked_names = [option] if MASK in str(value) else []
        else:
            masked_names = [f"{option.removesuffix('s')} {name}" for name in value if MASK in str(value[name])]
            foreign.options[option] = {name: text for name, text in value.items() if MASK not in str(text)}
        for name in masked_names:
            report.add("secret", name, reason)
        if masked_names and not (isinstance(value, dict) and foreign.options[option]):
            del foreign.options[option]
    for word in foreign.words:
        if MASK in word and word != MASK and not word.startswith("--"):
            report.add("secret", word, "the secret was not written: pass it in a file, or with `server_key`")
