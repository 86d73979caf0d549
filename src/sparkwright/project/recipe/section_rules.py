"""Rules for sections of a recipe: options of its container that Docker refuses or ignores, further models, `parallel`."""

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
from sparkwright.project.recipe.models import Adapter, RecipeFile
from sparkwright.trust import container_option_rules, process_option_rules, security_option_rules
from sparkwright.trust.container_option_rules import is_below

#: message, place in the file, and fix
Mistake = tuple[str, Place, str]


def check_container(file: Any, source: Document) -> Iterator[Mistake]:
    """Yield the mistakes in a recipe's container. file: the RecipeFile."""
    for rule in CONTAINER_RULES:
        yield from rule(file)


def is_on_host_network(file: Any) -> bool:
    """Return True if the container has no addresses of its own: its server listens on the host's."""
    return bool(process_option_rules.parse_network(file.container.network)[0] == process_option_rules.HOST)


def _check_reachable(file: Any) -> Iterator[Mistake]:
    if file.container.network == process_option_rules.NONE:
        message = "`container.network: none`: nothing can reach the server."
        yield message, ("container", "network"), "Remove it, or name a network."


def _check_host_ports(file: Any) -> Iterator[Mistake]:
    """Yield ports on the host's network: nothing is published there, as the server listens on the host itself."""
    if not is_on_host_network(file):
        return
    if "ports" in file.container.model_fields_set and file.container.ports:
        message = "`container.ports` has no meaning with `network: host`: the server listens on its engine's own port."
        yield message, ("container", "ports"), "Remove it; the engine's flag `port` sets the port."
    if file.publish == "loopback":
        message = (
            "`publish: loopback` has no meaning with `network: host`: the server listens on all addresses of the host."
        )
        yield message, ("publish",), "Remove it; the engine's flag `host: 127.0.0.1` limits the server to the host."


def _check_networks(file: Any) -> Iterator[Mistake]:
    box = file.container
    names = [process_option_rules.parse_network(network)[0] for network in box.networks]
    first = process_option_rules.parse_network(box.network)[0] or process_option_rules.BRIDGE
    if names and first in (process_option_rules.HOST, process_option_rules.NONE):
        message = f"`container.networks`: with `network: {first}` a container joins no other network."
        yield message, ("container", "networks"), "Remove one of them."
    for n, name in enumerate(names):
        if name in (first, *names[:n]):
            yield f"`container.networks` joins '{name}' twice.", ("container", "networks", n), "Remove one of them."


def _check_sysctls(file: Any) -> Iterator[Mistake]:
    box = file.container
    for name in box.sysctls:
        of_network = security_option_rules.is_network_sysctl(name)
        option, shared = ("network", is_on_host_network(file)) if of_network else ("ipc", box.ipc == "host")
        if shared:
            message = f"`container.sysctls`: {name} is the host's own with `{option}: host`."
            fix = f"Set it on the host with sysctl, or use another `{option}`."
            yield message, ("container", "sysctls", name), fix


def _check_memory(file: Any) -> Iterator[Mistake]:
    box = file.container
    if not box.memory_swap:
        return
    if not box.memory:
        message = "`container.memory_swap` needs `memory`: it is the limit of both together."
        yield message, ("container", "memory_swap"), "Set `memory` too."
    elif 0 <= process_option_rules.parse_swap(box.memory_swap) < container_option_rules.parse_size(box.memory):
        message = "`container.memory_swap` is less than `memory`: it is the limit of both together."
        yield message, ("container", "memory_swap"), "Set it to `memory` for no swap, or higher."


def _check_log(file: Any) -> Iterator[Mistake]:
    box = file.container
    if box.log_driver == "none" and box.log_options:
        yield "`container.log_options`: the log driver `none` has none.", ("container", "log_options"), "Remove them."


def _check_devices(file: Any) -> Iterator[Mistake]:
    rows = [security_option_rules.device_mapping(device)["PathInContainer"] for device in file.container.devices]
    for n, inside in enumerate(rows):
        if inside in rows[:n]:
            message = f"`container.devices`: '{inside}' is in the container already."
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
    """Return the place of a flag in a recipe, however it is spelled there; the flags' section if it is not set.

    name: the flag's own name.
    """
    section = _engine_section(source)
    spelled = find_spelling(engine.get_engine(section).flags, written_flags(source), name)
    return (section, spelled) if spelled else (section,)


def _engine_section(source: Document) -> str:
    name = source.data.get("engine") if isinstance(source.data, dict) else None
    return str(name or engine.DEFAULT_ENGINE)


def written_flags(source: Document) -> list[str]:
    """Return the keys of the flags' section of a recipe, as they are spelled there."""
    section = source.data.get(_engine_section(source)) if isinstance(source.data, dict) else None
    return list(section) if isinstance(section, dict) else []


def _check_models(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield second models that the engine cannot use, or that a flag names too."""
    recipe_engine = engine.get_engine(file.engine)
    for role in file.models:
        place, flags = recipe_engine.flags.MODEL_FLAGS.get(role), recipe_engine.flags.normalize(file.flags)
        if place is None:
            supported = ", ".join(recipe_engine.flags.MODEL_FLAGS) or "none"
            yield (
                f"`models.{role}` cannot be used with {recipe_engine.title}.",
                ("models", role),
                f"It takes: {supported}.",
            )
            continue
        flag = f"{place.flag}.{place.key}" if place.key else place.flag
        if has_model(flags, place) or (role == "draft" and file.model.draft):
            other = "`model.draft`" if role == "draft" and file.model.draft else f"`{file.engine}.{flag}`"
            yield f"{other} and `models.{role}` both name a model.", ("models", role), f"Remove {other}."
        elif not is_model_effective(flags, place):
            message = f"`models.{role}` has no effect without `{file.engine}.{place.needs or place.flag}`."
            yield message, ("models", role), "Add it, or remove the model: `invoke explain speculation`."


def _check_adapters(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield adapters that the engine cannot serve by their names, and flags that say the same or the opposite."""
    if not file.adapters:
        return
    recipe_engine = engine.get_engine(file.engine)
    place = recipe_engine.flags.ADAPTERS
    if place is None:
        message = f"`adapters` cannot be used with {recipe_engine.title}: its command is not known."
        yield message, ("adapters",), "Mount them with `container.volumes` and name them in its command."
        return
    flags = recipe_engine.flags.normalize(file.flags)
    for flag in (place.flag, *place.instead):
        if flag in flags:
            message = f"`{file.engine}.{flag}` and `adapters` both name adapters."
            yield message, (file.engine, flag), f"Remove `{flag}`."
    if place.enable and flags.get(place.enable, True) is not True:
        message = f"`adapters` has no effect with `{place.enable}: {visible.one_line(str(flags[place.enable]))}`."
        yield message, (file.engine, place.enable), "Remove one of them."
    yield from _check_adapter_names(file, recipe_engine, place)


def _check_adapter_names(file: RecipeFile, recipe_engine: Engine, place: AdapterFlags) -> Iterator[Mistake]:
    """Yield names of adapters that two things have, or that requests cannot use."""
    served = recipe_engine.flags.served_names(
        recipe_engine.flags.normalize(file.flags), file.model.file or file.model.mount
    )
    ids_by_name: dict[str, str] = {}
    for n, adapter in enumerate(file.adapters):
        at = ("adapters", n, "name")
        if adapter.name in ids_by_name:
            yield f"two `adapters` are called `{adapter.name}`.", at, "Give one another name."
        ids_by_name[adapter.name] = adapter.id
        if place.named and adapter.name in served:
            yield f"`adapters`: `{adapter.name}` is a served name of the model.", at, "Choose another name."
        elif not place.named and adapter.name != served[0]:
            message = (
                f"{recipe_engine.title} serves no adapter by a name: every request gets it, so `{adapter.name}` must be "
                "the server's "
                f"own name, and that is `{visible.display_name(served[0])}`."
            )
            yield message, at, f"Set the flag for the served name to {adapter.name}, or serve it with vLLM."
    if place.prefixed and ":" in served[0]:
        message = f"{recipe_engine.title} reads a colon in a request's model as the beginning of an adapter's name."
        yield message, (file.engine,), "Serve the model under a name without a colon."


def _check_model_files(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield further models whose `file` is missing or has no meaning."""
    recipe_engine, file_rules = engine.get_engine(file.engine), engine.get_engine(file.engine).files
    for role, model in file.further_models.items():
        if bool(file_rules) is not bool(model.file):
            message = (
                f"`{_model_key(file, role)}.file` {'is missing' if file_rules else 'cannot be used'} with "
                f"{recipe_engine.title}."
            )
            yield message, file.place_of(role), f"Name {file_rules.NEEDED}." if file_rules else "Remove it."


def _check_shared_folders(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield further models' folders, on the host or in the container, that overlap another model's."""
    for role, model in file.further_models.items():
        others = {
            "model": file.model,
            **{_model_key(file, name): other for name, other in file.further_models.items() if name != role},
        }
        for option in ("dir", "mount"):
            folder = posixpath.normpath(getattr(model, option))
            for name, other in others.items():
                other_folder = posixpath.normpath(getattr(other, option))
                if folder == other_folder or is_below(folder, other_folder) or is_below(other_folder, folder):
                    message = (
                        f"`{_model_key(file, role)}.{option}` and `{name}.{option}` are one folder, or one lies in the "
                        "other."
                    )
                    yield message, (*file.place_of(role), option), "Give each model a folder of its own."


def _model_key(file: RecipeFile, role: str) -> str:
    """Return a further model's key in the recipe, for messages."""
    model = file.further_models[role]
    return f"adapters.{model.name}" if isinstance(model, Adapter) else f"models.{role}"


MODEL_RULES = (_check_models, _check_adapters, _check_model_files, _check_shared_folders)


def apply_parallel(file: RecipeFile, source: Document) -> RecipeFile:
    """Return the recipe on the host's network: its members use the hosts' own addresses.

    Raises Refused with file and line for the first setting that conflicts with `parallel`.
    """
    for message, place, fix in _find_parallel_mistakes(file, source):
        raise Refused(message, where=source.where(*place), fix=fix)
    return file.model_copy(
        update={"container": file.container.model_copy(update={"network": process_option_rules.HOST, "networks": ()})}
    )


def _find_parallel_mistakes(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    split, recipe_engine = file.parallel, engine.get_engine(file.engine)
    if split is None:
        return
    if split.tensor * split.pipeline == 1:
        yield "`parallel` splits the model over one host.", ("parallel",), "Remove it, or write `tensor: 2`."
    if not recipe_engine.served:
        return  # reported for every recipe of such an engine
    if recipe_engine.parallel is None:
        message = f"`parallel` cannot be used with {recipe_engine.title}: it serves from one host only."
        yield message, ("parallel",), "Remove it, or choose another engine."
        return
    yield from _check_parallel_network(file)
    yield from _check_cluster_settings(file, source, recipe_engine.parallel)


def _check_parallel_network(file: RecipeFile) -> Iterator[Mistake]:
    box: Any = file.container
    if box.network and process_option_rules.parse_network(box.network)[0] != process_option_rules.HOST:
        message = "`container.network` must be `host` with `parallel`: the ranks reach each other over the host's own interfaces."
        yield message, ("container", "network"), "Remove it."


def _check_cluster_settings(file: RecipeFile, source: Document, parallel: Parallel) -> Iterator[Mistake]:
    """Yield the recipe's flags and variables that a cluster sets for each of its members."""
    for name, setter in parallel.SET_BY.items():
        if name in file.flags:
            place = flag_place(source, name)
            yield f"`{'.'.join(place)}` cannot be set with `parallel`: {setter} sets it.", place, "Remove it."
    for name in parallel.VARIABLES:
        if name in file.container.env:
            message = f"`container.env.{name}` cannot be set with `parallel`: the cluster sets it for each member."
            yield message, ("container", "env", name), "Remove it; hosts/*.yml give it by `fabric`."
