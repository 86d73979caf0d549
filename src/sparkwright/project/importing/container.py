"""The container of an imported recipe: the options that become `container`, those left out, and one that runs already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing.command import Serving
from sparkwright.project.importing.docker_words import assignments, unwrapped, variables
from sparkwright.project.importing.foreign import DROP, Foreign, Report, shown
from sparkwright.trust.image_name import Name, why_not_an_image
from sparkwright.trust.process_words import HOST
from sparkwright.trust.secret_names import is_secret, names_a_secret
from sparkwright.visible import one_line

#: options of `docker run` that an import leaves out, each with the reason; the user can add them to the recipe
DROPPED_OPTIONS = {
    "privileged": "the server needs no rights of the host's root; `devices` and `cap_add` give single ones",
    "restart": "the restart policy is `unless-stopped`, once the server is verified",
    "healthcheck": "sparkwright checks that it generates (`health.install`)",
    "pid": "the server has no need of the host's processes",
}


def of(
    name: str, found: Foreign, serving: Serving, section: dict[str, Any], cluster: bool, report: Report
) -> dict[str, Any]:
    """Return the recipe's `container`.

    Args:
        section: the engine's flags; the port is removed from them.
        cluster: whether it uses its hosts' network.
    """
    box: dict[str, Any] = {"name": name}
    set_by_cluster = frozenset(serving.engine.parallel.VARIABLES if cluster and serving.engine.parallel else ())
    if found.adopted:
        return box | _as_it_runs(found, serving, report)
    for option, value in found.options.items():
        if option in DROPPED_OPTIONS:
            report.add("dropped", f"{option} {one_line(shown(value), at_most=60)}", DROPPED_OPTIONS[option])
        elif option == "name":
            report.add("translated", f"container {value}", f"container.name: {name}")
        else:
            box[option] = list(value) if isinstance(value, tuple) else value
            report.add("kept", f"{option} {one_line(shown(value), at_most=60)}")
    if found.network and not cluster:
        why = (
            "the port is published instead"
            if found.network == "host"
            else "Docker's own bridge is used, and the port published"
        )
        report.add("dropped", f"network {found.network}", why)
    if not cluster:
        box["ports"] = [_port(found, serving, section, report)]
    if env := environment_kept(found.env, set_by_cluster, report):
        box["env"] = env
    if volumes := _volumes(found, report):
        box["volumes"] = volumes
    if entrypoint := _entrypoint(found, serving):
        box["entrypoint"] = entrypoint
        report.add(
            "kept",
            f"container.entrypoint {' '.join(entrypoint)}",
            "the command names it: the image may start something else",
        )
    elif found.entrypoint is not None:
        report.add("translated", "entrypoint", "the engine's own program, which its image starts")
    return box


def _entrypoint(found: Foreign, serving: Serving) -> list[str]:
    """Return the program that the command names; empty if the engine's image, or any recipe, starts it anyway."""
    own = Name.parse(serving.imports.image).repository if not why_not_an_image(found.image) else ""
    if not found.image or serving.engine.flags.ENTRYPOINT is not None or Name.parse(found.image).repository == own:
        return []
    return serving.entrypoint


def _as_it_runs(found: Foreign, serving: Serving, report: Report) -> dict[str, Any]:
    """Return all options that the container was created with, under its own name."""
    box = dict(found.options)
    if found.network:
        box["network"] = found.network
        if found.network == HOST and not found.ports:
            why = "a deploy names the port, by which the container is found, and so replaces it once"
            report.add("note", "network host", why)
    box["ports"] = found.ports
    if serving.program and list(serving.program) != found.starts:
        box["entrypoint"] = list(serving.program)
    elif found.entrypoint is not None:
        box["entrypoint"] = found.entrypoint
    if found.env:
        box["env"] = found.env
    if found.volumes:
        box["volumes"] = found.volumes
    for name, value in box.items():
        report.add("kept", f"container.{name} {one_line(shown(value), at_most=60)}")
    return box


def _port(found: Foreign, serving: Serving, section: dict[str, Any], report: Report) -> str:
    """Return HOST:CONTAINER. In the container the server uses its engine's usual port; the host's is the one that
    clients know."""
    own = serving.engine.flags
    listed = isinstance(own.value(section, own.PORT), list | tuple | dict)
    wrong = "must be a port" if listed else own.misfit(section, own.PORT)
    if wrong:
        raise Refused(f"`--{own.PORT}` {wrong}.")
    inside = own.port(section)
    given = section.pop(own.PORT, None)
    published = next((port for port in found.ports if port.partition("/")[0].rpartition(":")[2] == str(inside)), "")
    outside = published.rpartition("/")[0] or published
    host = outside.rpartition(":")[0].rpartition(":")[2] or str(inside)
    if published or given is not None:
        report.add("translated", f"port {published or given}", f"container.ports: {host}:{serving.imports.port_inside}")
    for other in found.ports:
        if other != published:
            report.add("dropped", f"port {other}", "nothing of the server listens there")
    return f"{host}:{serving.imports.port_inside}"


def _volumes(found: Foreign, report: Report) -> list[str]:
    kept = []
    for volume in found.volumes:
        source = volume.partition(":")[0].replace("${HOME}", "~").replace("$HOME", "~")
        if "huggingface" in volume or "/.cache" in volume:
            report.add(
                "dropped",
                f"volume {volume}",
                "a cache: the host downloads the model, and keeps what the engine compiles",
            )
        elif source.startswith(("/", "~/")) and "$" not in source and ".." not in volume.split("/"):
            kept.append(source + volume[len(volume.partition(":")[0]) :])
            report.add("kept", f"volume {volume}")
        else:
            report.add("dropped", f"volume {volume}", "not a folder of the host by an absolute path")
    return kept


#: the variables from which the hub's clients read a token
HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_HUB_TOKEN"})
#: settings of a container's downloads; here the host downloads the model
DOWNLOADING = frozenset(
    {"HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HUB_ENABLE_HF_TRANSFER", "HF_XET_HIGH_PERFORMANCE"}
)
TOKEN_WAY = (
    "the host downloads the model itself; a gated one needs `secrets: {HF_TOKEN: {env: HF_TOKEN}}` in hosts/groups.yml"
)


def environment_kept(env: Mapping[str, str], set_by_cluster: frozenset[str], report: Report) -> dict[str, str]:
    """Return the variables that a recipe may hold. set_by_cluster: those that a cluster sets for each member."""
    found: dict[str, str] = {}
    for name, value in env.items():
        if name in HUB_TOKENS:
            report.add("secret", name, f"not written: {TOKEN_WAY}")
        elif is_secret(name, value) or names_a_secret(name):
            report.add(
                "secret", name, "not written: a recipe holds no secret; a key for clients is `server_key: {env: NAME}`"
            )
        elif name in DOWNLOADING:
            report.add("dropped", name, "the container downloads nothing: the host does, and mounts the model's folder")
        elif name in set_by_cluster:
            report.add("dropped", name, "the cluster sets it for each member")
        elif variables(value):
            sentence = f"the variable {name} is filled from a shell ({value}): what is its value, or `{DROP}`"
            answer = report.ask(f"env.{name}", sentence)
            if answer and answer != DROP:
                found[name] = answer
            elif answer:
                report.add("dropped", name, "as answered")
        else:
            found[name] = value
            report.add("kept", f"env {name}")
    return found


#: `container_settings` replaces secrets by this
HIDDEN = "***"


def read_running(settings: Mapping[str, Any], host: str, report: Report) -> Foreign:
    """Return the container as a foreign recipe.

    Args:
        settings: the result of the module `container_settings`.
        host: the host's name.
    """
    found = Foreign(
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
    env, words = assignments(unwrapped([*settings["program"], *settings["command"]]))
    found.words = words
    found.env = {name: value for name, value in {**settings["env"], **env}.items() if HIDDEN not in value}
    for name, value in settings["env"].items():
        if HIDDEN in value:
            why = "its value stays on the host: a recipe holds no secret, and a deploy replaces the container once, without it"
            report.add("secret", name, why)
    _drop_hidden(found, report)
    report.add(
        "note", found.name, f"it goes on serving: importing changed nothing on {host}; `plan` says what a deploy would"
    )
    return found


def _drop_hidden(found: Foreign, report: Report) -> None:
    """Remove labels that held a secret, and report words that held one."""
    why = "its value stays on the host: a recipe holds no secret"
    labels = found.options.get("labels") or {}
    for name in [name for name, value in labels.items() if HIDDEN in str(value)]:
        report.add("secret", f"label {name}", why)
        del labels[name]
    for word in found.words:
        if HIDDEN in word and word != HIDDEN and not word.startswith("--"):
            report.add("secret", word, "its secret stays on the host: give it by a file, or in `server_key`")
    if not labels:
        found.options.pop("labels", None)
