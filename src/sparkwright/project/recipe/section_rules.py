"""Rules for the container, the additional models, the adapters and `parallel` of a recipe."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Any

from sparkwright import visible
from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.engines.flags import AdapterFlags, find_spelling, has_model, is_model_effective
from sparkwright.engines.parallel import Parallel
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.recipe.models import Adapter, ParallelFile, RecipeFile
from sparkwright.trust import container_option_rules, process_option_rules, security_option_rules
from sparkwright.trust.container_option_rules import is_below

#: message, place in the file, and fix
Mistake = tuple[str, Place, str]


def check_container(file: Any, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each option that Docker would reject or ignore, or that contradicts another. file: a RecipeFile."""
    for rule in CONTAINER_RULES:
        yield from rule(file)


def is_on_host_network(file: Any) -> bool:
    """Return True if the container uses the host's network, so that its server listens on the host's addresses."""
    return bool(process_option_rules.parse_network(file.container.network)[0] == process_option_rules.HOST_NETWORK)


def _check_reachable(file: Any) -> Iterator[Mistake]:
    if file.container.network == process_option_rules.NO_NETWORK:
        message = "`container.network: none`: nothing can reach the server."
        yield message, ("container", "network"), "Remove it, or name a network."


def _check_host_ports(file: Any) -> Iterator[Mistake]:
    """Yield a mistake for each setting of published ports that has no effect on the host's network."""
    if not is_on_host_network(file):
        return
    if "ports" in file.container.model_fields_set and file.container.ports:
        message = "`container.ports` has no effect with `network: host`: the server listens on its engine's own port."
        yield message, ("container", "ports"), "Remove it; the engine's flag `port` sets the port."
    if file.publish == "loopback":
        message = (
            "`publish: loopback` has no effect with `network: host`: the server listens on all of the host's addresses."
        )
        yield message, ("publish",), "Remove it; the engine's flag `host: 127.0.0.1` limits the server to the host."


def _check_networks(file: Any) -> Iterator[Mistake]:
    container = file.container
    names = [process_option_rules.parse_network(network)[0] for network in container.networks]
    first_network = process_option_rules.parse_network(container.network)[0] or process_option_rules.BRIDGE_NETWORK
    if names and first_network in (process_option_rules.HOST_NETWORK, process_option_rules.NO_NETWORK):
        message = f"`container.networks`: with `network: {first_network}` a container cannot join other networks."
        yield message, ("container", "networks"), "Remove one of them."
    for n, name in enumerate(names):
        if name in (first_network, *names[:n]):
            yield f"`container.networks` joins '{name}' twice.", ("container", "networks", n), "Remove one of them."


def _check_sysctls(file: Any) -> Iterator[Mistake]:
    container = file.container
    for name in container.sysctls:
        is_shared = container.ipc == "host"
        option = "ipc"
        if security_option_rules.is_network_sysctl(name):
            option, is_shared = "network", is_on_host_network(file)
        if is_shared:
            message = f"`container.sysctls`: {name} belongs to the host with `{option}: host`."
            fix = f"Set it on the host with sysctl, or use another `{option}`."
            yield message, ("container", "sysctls", name), fix


def _check_memory(file: Any) -> Iterator[Mistake]:
    container = file.container
    if not container.memory_swap:
        return
    if not container.memory:
        message = "`container.memory_swap` needs `memory`: it is the combined limit of memory and swap."
        yield message, ("container", "memory_swap"), "Set `memory` too."
    elif (
        0
        <= process_option_rules.parse_swap(container.memory_swap)
        < container_option_rules.parse_size(container.memory)
    ):
        message = "`container.memory_swap` is less than `memory`, but it is the combined limit of memory and swap."
        yield message, ("container", "memory_swap"), "Set it to `memory` for no swap, or higher."


def _check_log(file: Any) -> Iterator[Mistake]:
    container = file.container
    if container.log_driver == "none" and container.log_options:
        message = "`container.log_options` has no effect with `log_driver: none`."
        yield message, ("container", "log_options"), "Remove it."


def _check_devices(file: Any) -> Iterator[Mistake]:
    paths = [security_option_rules.device_mapping(device)["PathInContainer"] for device in file.container.devices]
    for n, path in enumerate(paths):
        if path in paths[:n]:
            message = f"`container.devices`: two devices have the path '{path}' in the container."
            yield message, ("container", "devices", n), "Remove one of them."


CONTAINER_RULES: tuple[Callable[[Any], Iterator[Mistake]], ...] = (
    _check_reachable,
    _check_host_ports,
    _check_networks,
    _check_sysctls,
    _check_memory,
    _check_log,
    _check_devices,
)


def flag_place(source: Document, name: str) -> tuple[str, ...]:
    """Return the place of a flag in a recipe; the engine's section if the flag is not set.

    name: the flag's canonical name; the recipe may spell it differently.
    """
    section = _engine_section(source)
    spelling = find_spelling(engine.get_engine(section).flags, written_flags(source), name)
    return (section, spelling) if spelling else (section,)


def _engine_section(source: Document) -> str:
    name = source.data.get("engine") if isinstance(source.data, dict) else None
    return str(name or engine.DEFAULT_ENGINE)


def written_flags(source: Document) -> list[str]:
    """Return the flags of a recipe as they are spelled there."""
    section = source.data.get(_engine_section(source)) if isinstance(source.data, dict) else None
    return list(section) if isinstance(section, dict) else []


def _check_models(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each additional model that the engine cannot use, or that a flag also sets."""
    if not file.models:
        return
    recipe_engine = engine.get_engine(file.engine)
    flags = recipe_engine.flags.normalize(file.flags)
    for role in file.models:
        model_flag = recipe_engine.flags.MODEL_FLAGS.get(role)
        if model_flag is None:
            supported = ", ".join(recipe_engine.flags.MODEL_FLAGS) or "none"
            message = f"`models.{role}` cannot be used with {recipe_engine.title}."
            yield message, ("models", role), f"Supported roles: {supported}."
            continue
        flag = f"{model_flag.flag}.{model_flag.key}" if model_flag.key else model_flag.flag
        if has_model(flags, model_flag) or (role == "draft" and file.model.draft):
            other = "`model.draft`" if role == "draft" and file.model.draft else f"`{file.engine}.{flag}`"
            yield f"{other} and `models.{role}` both name a model.", ("models", role), f"Remove {other}."
        elif not is_model_effective(flags, model_flag):
            message = (
                f"`models.{role}` has no effect without `{file.engine}.{model_flag.required_flag or model_flag.flag}`."
            )
            yield message, ("models", role), "Add it, or remove the model; see `invoke explain speculation`."


def _check_adapters(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for adapters that the engine cannot serve, and for flags that duplicate or contradict `adapters`."""
    if not file.adapters:
        return
    recipe_engine = engine.get_engine(file.engine)
    adapter_flags = recipe_engine.flags.ADAPTER_FLAGS
    if adapter_flags is None:
        message = f"`adapters` cannot be used with {recipe_engine.title}: the recipe contains the whole command."
        yield message, ("adapters",), "Mount them with `container.volumes` and name them in the command."
        return
    flags = recipe_engine.flags.normalize(file.flags)
    for flag in (adapter_flags.flag, *adapter_flags.conflicting_flags):
        if flag in flags:
            message = f"`{file.engine}.{flag}` and `adapters` both name adapters."
            yield message, (file.engine, flag), f"Remove `{flag}`."
    switch = adapter_flags.enabling_flag
    if switch and flags.get(switch, True) is not True:
        message = f"`adapters` has no effect with `{switch}: {visible.one_line(str(flags[switch]))}`."
        yield message, (file.engine, switch), "Remove one of them."
    yield from _check_adapter_names(file, recipe_engine, adapter_flags)


def _check_adapter_names(file: RecipeFile, recipe_engine: Engine, adapter_flags: AdapterFlags) -> Iterator[Mistake]:
    """Yield a mistake for each adapter name that is not unique, or that requests cannot use."""
    served_names = recipe_engine.flags.served_names(
        recipe_engine.flags.normalize(file.flags), file.model.file or file.model.mount
    )
    names = [adapter.name for adapter in file.adapters]
    for n, name in enumerate(names):
        place = ("adapters", n, "name")
        if name in names[:n]:
            yield f"two `adapters` have the name `{name}`.", place, "Rename one of them."
        if adapter_flags.selected_by_name and name in served_names:
            yield f"`adapters`: `{name}` is a served name of the model.", place, "Choose another name."
        elif not adapter_flags.selected_by_name and name != served_names[0]:
            message = (
                f"{recipe_engine.title} cannot select adapters by name and applies this one to every request: the name "
                f"`{name}` must be the served name, `{visible.display_name(served_names[0])}`."
            )
            yield message, place, f"Set the flag for the served name to {name}, or serve it with vLLM."
    if adapter_flags.prefixed_by_served_name and ":" in served_names[0]:
        message = f"{recipe_engine.title} treats what follows a colon in a request's model as the name of an adapter."
        yield message, (file.engine,), "Serve the model under a name without a colon."


def _check_model_files(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each adapter or additional model whose `file` is missing, or set for an engine that serves folders."""
    recipe_engine = engine.get_engine(file.engine)
    file_rules = recipe_engine.files
    for role, model in file.further_models.items():
        key, place = f"`{_model_key(file, role)}.file`", file.place_of(role)
        if file_rules and not model.file:
            yield f"{key} is required with {recipe_engine.title}.", place, f"Name {file_rules.NEEDED}."
        if model.file and not file_rules:
            yield f"{key} cannot be used with {recipe_engine.title}.", place, "Remove it."


def _check_shared_folders(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each pair of overlapping model folders, on the host or in the container."""
    for role, model in file.further_models.items():
        key = _model_key(file, role)
        other_models = {
            "model": file.model,
            **{
                _model_key(file, name): other_model for name, other_model in file.further_models.items() if name != role
            },
        }
        for option in ("dir", "mount"):
            folder = posixpath.normpath(getattr(model, option))
            for other_key, other_model in other_models.items():
                other_folder = posixpath.normpath(getattr(other_model, option))
                if folder == other_folder or is_below(folder, other_folder) or is_below(other_folder, folder):
                    message = f"`{key}.{option}` and `{other_key}.{option}` overlap."
                    yield message, (*file.place_of(role), option), "Give each model its own folder."


def _model_key(file: RecipeFile, role: str) -> str:
    """Return the key of an adapter or additional model, for messages."""
    model = file.further_models[role]
    return f"adapters.{model.name}" if isinstance(model, Adapter) else f"models.{role}"


MODEL_RULES = (_check_models, _check_adapters, _check_model_files, _check_shared_folders)


def apply_parallel(file: RecipeFile, source: Document) -> RecipeFile:
    """Return a recipe with `parallel` on the host's network, because members use the hosts' own addresses.

    Raises Refused for the first setting that conflicts with `parallel`. Other recipes are returned unchanged.
    """
    if file.parallel is None:
        return file
    for message, place, fix in _find_parallel_mistakes(file, file.parallel, source):
        raise Refused(message, where=source.where(*place), fix=fix)
    return file.model_copy(
        update={
            "container": file.container.model_copy(
                update={"network": process_option_rules.HOST_NETWORK, "networks": ()}
            )
        }
    )


def _find_parallel_mistakes(file: RecipeFile, split: ParallelFile, source: Document) -> Iterator[Mistake]:
    recipe_engine = engine.get_engine(file.engine)
    if split.tensor * split.pipeline == 1:
        yield "`parallel` splits the model over one host.", ("parallel",), "Remove it, or write `tensor: 2`."
    if not recipe_engine.is_supported:
        return  # reported by the checks of every recipe
    if recipe_engine.parallel is None:
        message = f"`parallel` cannot be used with {recipe_engine.title}, which can serve only from one host."
        yield message, ("parallel",), "Remove it, or choose another engine."
        return
    container: Any = file.container
    if container.network and not is_on_host_network(file):
        message = "`container.network` must be `host` with `parallel`: the ranks use the interfaces of their hosts."
        yield message, ("container", "network"), "Remove it."
    yield from _check_cluster_settings(file, source, recipe_engine.parallel)


def _check_cluster_settings(file: RecipeFile, source: Document, parallel: Parallel) -> Iterator[Mistake]:
    """Yield a mistake for each flag or environment variable that the cluster sets for each member."""
    for name, setter in parallel.RESERVED_FLAGS.items():
        if name in file.flags:
            place = flag_place(source, name)
            yield f"`{'.'.join(place)}` cannot be set with `parallel`: {setter} sets it.", place, "Remove it."
    for name in parallel.VARIABLES:
        if name in file.container.env:
            message = f"`container.env.{name}` cannot be set with `parallel`: the cluster sets it for each member."
            yield message, ("container", "env", name), "Remove it; it is derived from `fabric` in hosts/*.yml."
