"""The variables that playbooks and templates may use for a host, and the rendered files of a recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright import visible
from sparkwright.engines.compile_caches import compile_cache_key, live_folder_path
from sparkwright.engines.memory import Memory
from sparkwright.errors import Refused
from sparkwright.host.records.baselines import MEMBERS_FIELD
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.variables import DEFAULTS
from sparkwright.project.playbook.names import ErrorLocator
from sparkwright.project.recipe import cluster_member
from sparkwright.project.recipe.models import Model, SecondModel
from sparkwright.project.recipe.recipe import Recipe, build_container_spec, serve_port
from sparkwright.protocol import expressions
from sparkwright.protocol.container import ContainerSpec, start_key
from sparkwright.trust.container_option_rules import parse_size
from sparkwright.trust.image_name import digest_of
from sparkwright.trust.model_files import RECIPE_FILES_FOLDER
from sparkwright.trust.secret_names import has_secret

if TYPE_CHECKING:
    from sparkwright.engines.parallel import MemberSettings
    from sparkwright.project.recipe.engine_settings import ServerSettings


#: names that depend on the recipe
RECIPE_NAMES = (
    "recipe",
    "engine",
    "base_url",
    "served_name",
    "port",
    "memory_utilization",
    "memory_bytes",
    "beside",
    "recipe_files",
)
#: names that depend on the recipe and the lock
PINNED_NAMES = ("lock", "container", "docker_options", "docker_networks", "pinned_model", "serve", "engine_memory")
#: Docker's default size of /dev/shm
DEFAULT_SHM_SIZE = "64m"
SECRET_FIX = "A secret belongs under the host's `secrets:`, or in `server_key`; anyone on the host can read this file."


def scope(
    host: Host,
    user: str,
    recipe: Recipe | None,
    pinned: Mapping[str, Any],
    server_settings: ServerSettings | None = None,
    gateways: Sequence[Mapping[str, Any]] = (),
    other_servers: Sequence[Mapping[str, Any]] = (),
    turns: Sequence[Mapping[str, Any]] = (),
    interim: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the variables that templates may use, by name.

    Args:
        user: the user that logs in on the host.
        pinned: the lock's entries, {"image": ..., "model": ..., "models": {role: ...}}.
        server_settings: the result of `resolve_settings`; computed if None.
        gateways: gateways that route to the host.
        other_servers: other servers of the same machine (app/plans/server_context.py).
        turns: the `on_demand` servers that take turns with this one (app/plans/server_context.py).
        interim: the server that may answer requests during a swap (app/plans/server_context.py).
    """
    home = home_folder(host, user)
    variables: dict[str, Any] = {
        **DEFAULTS,
        **host.vars,
        "home": home,
        "host": _host_context(host, user, gateways, turns, interim),
    }
    if recipe is None:
        return variables
    variables |= {"page_cache": recipe.file.model.page_cache} if recipe.file.model.page_cache else {}
    if host.cluster is not None and recipe.engine.parallel is not None:
        variables["host"]["cluster"]["port"] = host.cluster.port or recipe.engine.parallel.MASTER_PORT
    is_alone = host.cluster is None and recipe.split is None
    member_settings = None if is_alone else cluster_member.member_settings(recipe, host)
    server_settings = _server_settings(recipe, pinned, server_settings, member_settings)
    command = recipe.engine.flags.command(recipe.file.model.mount, server_settings.flags)
    further_entries = pinned.get("models") or {}
    memory = recipe.memory(pinned.get("model") or {}, server_settings.flags, further_entries)
    model = _model_context(recipe, pinned.get("model") or {}, further_entries)
    variables |= _recipe_names(recipe, pinned, server_settings, memory, serve_port(host, recipe))
    variables |= {"beside": list(other_servers), "pinned_model": model}
    texts = render_files(recipe, variables) if recipe.file.files else {}
    digests = {path: content_digest(text) for path, text in texts.items()}
    spec = build_container_spec(recipe, host, home, pinned.get("image"), command, digests, member_settings)
    spec = replace(spec, caches=cache_key(recipe, spec, model, command))
    container = spec.to_json()
    commits = "+".join(str(source["commit"]) for source in (model, *model.get("models", ())))
    memory_needs = engine_memory(memory, container, commits)
    options = (*spec.docker_options(), *file_mount_options(digests, home), *cache_options(recipe, spec, home))
    return {
        **variables,
        "engine_memory": memory_needs,
        "recipe_files": {digests[path]: text for path, text in texts.items()},
        "container": container,
        "docker_options": list(map(list, options)),
        "docker_networks": spec.further_networks(),
        "serve": _serve_settings(
            host, recipe, server_settings, memory, {**container, "command": command}, model, memory_needs
        ),
    }


def _host_context(
    host: Host,
    user: str,
    gateways: Sequence[Mapping[str, Any]],
    turns: Sequence[Mapping[str, Any]],
    interim: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the host as templates see it. Arguments: see `scope`."""
    context = {
        "name": host.name,
        "machine": host.machine,
        "address": host.address,
        "user": user,
        "port": host.port,
        "groups": list(host.groups),
        "gateways": list(gateways),
        "turns": list(turns),
        "interim": dict(interim or {"port": 0, "alone": False}),
        "home": home_folder(host, user),
        "connection": host.connection,
        "model_from": host.model_from or "",
        "registry_mirror": host.registry_mirror or "",
    }
    if host.cluster is None:
        return context
    if host.model_from in host.cluster.members:
        context["model_from"] = ""  # the play determines which member has the model
    cluster = {
        "name": host.cluster.name,
        "rank": host.cluster.rank(host.name),
        "world": len(host.cluster.members),
        "addresses": dict(zip(host.cluster.members, host.cluster.addresses, strict=True)),
        "interfaces": list(host.fabric.interfaces) if host.fabric else [],
        "adapters": list(host.fabric.hcas) if host.fabric else [],
        "members": list(host.cluster.members),
    }
    return {**context, "cluster": cluster}


def _server_settings(
    recipe: Recipe,
    pinned: Mapping[str, Any],
    server_settings: ServerSettings | None,
    member_settings: MemberSettings | None,
) -> ServerSettings:
    """Return the settings of the server, with a cluster member's flags. Flags that are None for the member are removed."""
    if server_settings is None:
        from sparkwright.project.recipe.engine_settings import resolve_settings

        server_settings = resolve_settings(recipe, pinned)
    if member_settings is None:
        return server_settings
    flags = {**server_settings.flags, **member_settings.flags}
    return replace(server_settings, flags={name: value for name, value in flags.items() if value is not None})


def _recipe_names(
    recipe: Recipe, pinned: Mapping[str, Any], server_settings: ServerSettings, memory: Memory, port: int
) -> dict[str, Any]:
    further_models = {"models": pinned["models"]} if pinned.get("models") else {}
    return {
        "recipe": recipe.to_json(),
        "engine": server_settings.to_json(),
        "lock": {"image": pinned.get("image"), "model": pinned.get("model"), **further_models},
        "base_url": f"http://127.0.0.1:{port}",
        "served_name": recipe.served_name,
        "port": port,
        "memory_utilization": memory.share,
        "memory_bytes": memory.bytes,
    }


def engine_memory(memory: Memory, container: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """Return a server's input for the host's memory budget: the engine's memory model, /dev/shm, and the start key."""
    shm: dict[str, Any] = {"host": True}
    if container.get("ipc") != "host":
        shm = {"size_bytes": parse_size(str(container.get("shm_size") or DEFAULT_SHM_SIZE))}
    return {**memory.to_json(), "shm": shm, "start": start_key(container, commit)}


def _model_context(recipe: Recipe, lock_entry: Mapping[str, Any], further_entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pinned sources of the model, and under `models` those of adapters and additional models."""
    further_models = [
        {"role": role, **_model_source(model, further_entries.get(role) or {})}
        for role, model in recipe.file.further_models.items()
    ]
    return {**_model_source(recipe.file.model, lock_entry), **({"models": further_models} if further_models else {})}


def _model_source(model: Model | SecondModel, lock_entry: Mapping[str, Any]) -> dict[str, Any]:
    source = model.model_dump(include={"id", "dir", "transfer"})
    return {**source, "commit": lock_entry.get("commit", ""), "files": lock_entry.get("files", [])}


def _serve_settings(
    host: Host,
    recipe: Recipe,
    server_settings: ServerSettings,
    memory: Memory,
    container: Mapping[str, Any],
    model: Mapping[str, Any],
    memory_needs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the settings to start and verify this server, without its container. Stored with the last verified state."""
    expect = recipe.file.expect
    return {
        "served_name": recipe.served_name,
        "utilization": memory.share,
        **({"needs_bytes": memory.bytes} if memory.bytes else {}),
        "engine_memory": dict(memory_needs),
        "ready_s": expect.ready_s,
        "tok_per_s": expect.tok_per_s,
        "stop_timeout_s": recipe.file.container.stop_timeout_s,
        "log": {
            "chunked_prefill": server_settings.expected,
            "note": server_settings.note,
            "expect": expect.log,
            "forbid": expect.forbid_log,
            "unknown": expect.log_unknown,
        },
        **({"adapters": list(recipe.adapter_names)} if recipe.adapter_names else {}),
        **({"probes": list(expect.probes)} if expect.probes else {}),
        **({"depths": depths} if (depths := _measured_depths(recipe, server_settings)) else {}),
        **({"load": expect.load.model_dump()} if expect.load else {}),
        **({"answers": expect.answers} if expect.answers != "judged" else {}),
        "baseline_key": _baseline_key(host, container, model),
    }


def _baseline_key(host: Host, container: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must be equal for measurements to be comparable."""
    return {
        "image": container["image"],
        "model_id": model["id"],
        "model": model["commit"],
        **(
            {"models": [[source["role"], source["commit"]] for source in model["models"]]}
            if model.get("models")
            else {}
        ),
        "command": container["command"],
        "env": container["env"],
        **({"files": sorted(container["files"].items())} if container.get("files") else {}),
        **({MEMBERS_FIELD: list(host.cluster.members)} if host.cluster else {}),
    }


def _measured_depths(recipe: Recipe, server_settings: ServerSettings) -> list[int]:
    """Return the recipe's `expect.depths` that fit into the server's context."""
    max_context = (
        recipe.engine.flags.context(server_settings.flags) or server_settings.architecture.max_position_embeddings
    )
    return [depth for depth in recipe.file.expect.depths if max_context is None or depth <= max_context]


def home_folder(host: Host, user: str) -> str:
    """Return the home folder that plans assume. `preflight` compares it with the real one (docs/decisions/0002)."""
    if host.home:
        return host.home
    if host.connection == "local":
        return str(Path.home())
    return "/root" if user == "root" else f"/home/{user}"


def render_files(recipe: Recipe, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the recipe's files, by path in the container. variables: for templates.

    Raises Refused for a file that is missing, too large, not text, cannot be rendered, or contains a secret.
    """
    return {path: _render_file(recipe, path, variables) for path in recipe.file.files}


def render_template_file(path: Path, variables: Mapping[str, Any]) -> str:
    """Return a rendered template. Raises Refused, with the line, for a mistake."""
    try:
        return str(expressions.render(document.read_text(path), variables))
    except expressions.ExpressionError as error:
        raise Refused(f"{error}.", where=ErrorLocator.in_template(path)(error.line)) from None


def content_digest(content: str) -> str:
    """Return the digest under which a file's content is stored."""
    return hashlib.sha256(content.encode()).hexdigest()


def file_mount_options(digests: Mapping[str, str], home: str) -> Iterator[tuple[str, str]]:
    """Yield the options of `docker run` that mount the files from where a deploy stores them. home: the user's home folder."""
    for path, digest in sorted(digests.items()):
        yield (
            "--mount",
            f"type=bind,source={home}/.local/state/sparkwright/{RECIPE_FILES_FOLDER}/{digest},target={path},readonly",
        )


def find_file(recipe: Recipe, path: str) -> Path:
    """Return the source of a file in `files`. Raises Refused if it does not exist or is outside the project."""
    source, where = recipe.file.files[path], recipe.source.where("files", path)
    root = recipe.source.path.parents[recipe.name.count("/") + 1]
    file = shipped_files.resolve_path(root, f"templates/{source.template}") if source.template else root / source.file
    try:
        folders = (root, shipped_files.shipped_folder() / "templates")
        is_inside = any(file.resolve().is_relative_to(folder.resolve()) for folder in folders)
        exists = file.is_file()
    except (OSError, ValueError):  # an invalid file name
        is_inside, exists = True, False
    if not is_inside:
        raise Refused(f"`files.{path}`: the file is outside the project.", where=where, fix="Copy it into the project.")
    if not exists:
        name = visible.display_name(f"templates/{source.template}" if source.template else source.file)
        raise Refused(f"`files.{path}`: no such file: {name}.", where=where, fix="Create it, or correct the name.")
    return file


def _render_file(recipe: Recipe, path: str, variables: Mapping[str, Any]) -> str:
    source, where = recipe.file.files[path], recipe.source.where("files", path)
    file = find_file(recipe, path)
    text = render_template_file(file, variables) if source.template else document.read_text(file)
    if len(text.encode()) > document.MAX_FILE_BYTES:
        message = f"`files.{path}` renders to more than {document.MAX_FILE_BYTES >> 20} MiB."
        raise Refused(message, where=where, fix="Shorten it.")
    for number, line in enumerate(text.splitlines(), 1):
        if has_secret(line):
            # lines of a rendered text differ from those of its template
            line_suffix = "" if source.template else f":{number}"
            message = f"`files.{path}` contains what looks like a secret."
            raise Refused(message, where=f"{document.format_path(file)}{line_suffix}", fix=SECRET_FIX)
    return text


def cache_key(recipe: Recipe, spec: ContainerSpec, model: Mapping[str, Any], command: tuple[str, ...]) -> str:
    """Return the key of the folder for compile caches; empty if there is none, or image or model are not pinned.

    The key covers everything that compiled files may depend on: image, model, arguments, environment, files, user.

    Args:
        model: see `_model_context`.
        command: see `build_container_spec`.
    """
    caches, digest, commit = recipe.engine.caches, digest_of(spec.image), model.get("commit")
    if caches is None or not recipe.file.container.compile_caches or not digest or not commit:
        return ""
    if caches.is_managed_by_recipe(spec.env, _mount_targets(spec)):
        return ""
    server_command = recipe.engine.parse_command(command)
    further_commits = [source["commit"] for source in model.get("models", ())]
    return compile_cache_key(
        {
            "image": digest,
            "model": [recipe.file.model.id, commit, server_command.model, *further_commits],
            "flags": caches.relevant_flags(server_command.flags),
            **{name: getattr(spec, name) for name in ("entrypoint", "env", "files", "user", "gpus")},
        }
    )


def cache_options(recipe: Recipe, spec: ContainerSpec, home: str) -> list[tuple[str, str]]:
    """Return the options of `docker run` for the compile caches. home: the user's home folder on the host."""
    caches = recipe.engine.caches
    if caches is None or not spec.caches:
        return []
    mounts = caches.sources(live_folder_path(home, spec.caches, spec.name)).items()
    variables = sorted((name, value) for name, value in caches.environment.items() if name not in spec.env)
    return [
        *(("--mount", f"type=bind,source={source},target={target}") for target, source in mounts),
        *(("-e", f"{name}={value}") for name, value in variables),
    ]


def _mount_targets(spec: ContainerSpec) -> list[str]:
    volumes = [volume.split(":")[1] for volume in spec.volumes]
    return [*volumes, *(tmpfs.partition(":")[0] for tmpfs in spec.tmpfs)]
