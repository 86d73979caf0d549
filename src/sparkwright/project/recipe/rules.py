"""Rules that apply to the recipes of all engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright import visible
from sparkwright.engines import api_paths, dialects, engine, options
from sparkwright.engines.flags import find_duplicate
from sparkwright.engines.http import GENERATE
from sparkwright.engines.probes import table
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import format_place
from sparkwright.project.recipe import section_rules
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.project.recipe.section_rules import Mistake, flag_place, is_on_host_network, written_flags
from sparkwright.trust import container_option_rules
from sparkwright.trust.container_option_rules import normalize_mount_point
from sparkwright.trust.model_files import check_container_path
from sparkwright.trust.secret_names import find_plain_secrets
from sparkwright.visible import one_line

SECRET_EXPOSURE_REASON = "`docker inspect`, the history and incident bundles show it"
SERVER_KEY_FIX = "Remove it, and set `server_key: {{env: SPARK_KEY}}` next to `{0}:`."
#: sparkwright's data folder on the host (host/records/own_folders.py)
OWN_DATA_FOLDER = "~/.local/share/sparkwright"
#: limits of `expect.depths`, tokens
MIN_DEPTH_TOKENS, MAX_DEPTH_TOKENS = 1024, 1 << 20
LOOPBACK_PREFIXES = ("127.", "localhost", "[::1]", "::1")


def check(file: RecipeFile, source: Document) -> None:
    """Raise Refused for the first mistake in a recipe."""
    for rule in (
        _check_engine,
        _check_described_section,
        _check_files,
        *section_rules.MODEL_RULES,
        _check_flags,
        _check_task,
        _check_probes,
        _check_load,
        _check_ascend,
        _check_server_key,
        _check_secrets,
        _check_publish,
        _check_duplicate_ports,
        _check_duplicate_mounts,
        _check_nested_mounts,
        _check_file_paths,
        section_rules.check_container,
    ):
        for message, place, fix in rule(file, source):
            raise Refused(message, where=source.where(*place), fix=fix)


def published_addresses(file: RecipeFile) -> list[str]:
    """Return the addresses of the published ports in Docker's notation, "" for all addresses.

    On the host's network, it is the address on which the engine listens.
    """
    if is_on_host_network(file):
        return [str(engine.get_engine(file.engine).flags.value(file.flags, "host") or "")]
    default_address = "127.0.0.1" if file.publish == "loopback" else ""
    return [port.rsplit(":", 2)[0] if port.count(":") > 1 else default_address for port in file.container.ports]


def is_loopback(address: str) -> bool:
    """Return True if an address is reachable only from the host itself."""
    return address.startswith(LOOPBACK_PREFIXES)


def _check_engine(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield mistakes in the choice of sections: a recipe has one section of flags, named after its engine."""
    sections = [name for name in engine.TITLES if name in file.model_fields_set]
    recipe_engine = engine.get_engine(file.engine)
    other_section = next((name for name in sections if name != file.engine), "")
    if len(sections) > 1:
        message = f"`{sections[0]}` and `{sections[1]}` are both set, but a recipe has only one engine."
        yield (
            message,
            (other_section,),
            f"Remove `{other_section}:`." if file.engine in sections else "Remove one of them.",
        )
    if other_section and "engine" in file.model_fields_set:
        message = (
            f"`{other_section}` sets flags of {engine.get_engine(other_section).title}, but `engine` is {file.engine}."
        )
        yield message, (other_section,), f"Write them under `{file.engine}:`, or set `engine: {other_section}`."
    if other_section:
        message = f"`{other_section}` sets flags of {engine.get_engine(other_section).title}, but `engine` is missing."
        yield message, (other_section,), f"Add `engine: {other_section}`."
    if not recipe_engine.is_supported:
        supported = ", ".join(engine.name for engine in engine.list_supported())
        message = f"this release does not support {recipe_engine.title} yet."
        yield message, ("engine",), f"Supported engines: {supported}."
    if "engine" in file.model_fields_set and not sections:
        message = f"`engine: {file.engine}` needs its section `{file.engine}`."
        fix = f"Add the flags of {recipe_engine.title} under `{file.engine}:`, or `{file.engine}: {{}}`."
        yield message, ("engine",), fix


def _check_described_section(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield mistakes in the section of an engine that the recipe itself describes."""
    for place, reason in engine.get_engine(file.engine).find_mistakes(file.flags):
        shown_place = format_place((file.engine, *place))
        fix = "Correct it." if place else "Add it."
        if len(place) == 1 and reason.startswith("is unknown"):
            fix = "Write the server's flags in `command`."
        yield f"{shown_place} {reason}.", (file.engine, *place), fix


def _check_files(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield mistakes in `model.file`, `mmproj` and `draft`, which need an engine that serves single files."""
    recipe_engine = engine.get_engine(file.engine)
    file_rules, title = recipe_engine.files, recipe_engine.title
    for key in ("file", "mmproj", "draft"):
        name = getattr(file.model, key)
        if not name:
            continue
        if file_rules is None:
            message = f"`model.{key}` cannot be used with {title}, which serves the whole folder."
            yield message, ("model", key), "Remove it; `model.allow` limits what is downloaded."
        elif not name.endswith(file_rules.SUFFIX):
            message = f"`model.{key}` must end in {file_rules.SUFFIX}, got '{one_line(name, max_chars=80)}'."
            fix = f"Name a file, or a pattern that matches one, e.g. *Q4_K_M*{file_rules.SUFFIX}."
            yield message, ("model", key), fix
    if file_rules is not None and not file.model.file:
        message = f"`model.file` is missing: {title} serves {file_rules.NEEDED}."
        fix = (
            "Name it, or a pattern that matches all its parts. "
            f"`file: '*{file_rules.SUFFIX}'` lists the files of the repository."
        )
        yield message, ("model",), fix


def _check_task(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each flag that contradicts `task`, and for settings that do not apply to it."""
    recipe_engine, task = file.resolved_engine, file.task
    flags = {} if recipe_engine.needs_description else recipe_engine.flags.normalize(file.flags)
    for name, required_value in recipe_engine.task_flags.required_flags.get(task, {}).items():
        if flags.get(name) is not required_value:
            setting = f"{name}: {str(required_value).lower()}"
            message = f"`task: {task}` needs `{setting}` with {recipe_engine.title}."
            yield message, ("task",), f"Add `{setting}`."
    for name, values in recipe_engine.task_flags.excluded_values.get(task, {}).items():
        if name in flags and flags[name] in values:
            message = f"with `{name}: {str(flags[name]).lower()}` {recipe_engine.title} does not {task}."
            yield message, flag_place(source, name), "Remove it, or set `task:` to generate, embed or rerank."
    if task != GENERATE and file.expect.tok_per_s is not None:
        message = f"`expect.tok_per_s` does not apply to `task: {task}`, which generates no text."
        yield message, ("expect", "tok_per_s"), "Remove it."
    if task != GENERATE and file.parallel is not None:
        yield f"`parallel` cannot be used with `task: {task}`.", ("parallel",), "Serve it from one host."


def _check_probes(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each probe that does not apply to the task, or cannot pass with this engine and these flags."""
    recipe_engine, task = file.resolved_engine, file.task
    flags = {} if recipe_engine.needs_description else recipe_engine.flags.normalize(file.flags)
    for n, probe in enumerate(file.expect.probes):
        name, place = table.probe_name(probe), ("expect", "probes", n)
        if name not in table.PROBES_BY_TASK[task]:
            yield f"`expect.probes`: {name} does not apply to `task: {task}`.", place, "Remove it."
        dialect = dialects.OTHER_DIALECTS.get(name)
        if dialect is not None and dialect.path not in api_paths.list_paths(recipe_engine.http.paths):
            message = (
                f"`expect.probes`: {name} cannot pass: {recipe_engine.title} is not known to serve {dialect.path}."
            )
            add_path = f"Add the path to `{file.engine}.paths`, or remove"
            yield message, place, f"{add_path if recipe_engine.needs_description else 'Remove'} the probe."
        for flag in recipe_engine.probe_flags.missing_flags(name, flags):
            message = f"`expect.probes`: {name} cannot pass without `{file.engine}.{flag}`."
            yield message, place, f"Add `{flag}`, or remove the probe."


def _check_load(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield mistakes in `expect.load` and `expect.depths` that do not depend on memory."""
    load = file.expect.load
    if file.expect.depths and file.task != GENERATE:
        yield f"`expect.depths` does not apply to `task: {file.task}`.", ("expect", "depths"), "Remove it."
    for n, depth in enumerate(file.expect.depths):
        if not MIN_DEPTH_TOKENS <= depth <= MAX_DEPTH_TOKENS:
            message = f"`expect.depths`: {depth} is not between {MIN_DEPTH_TOKENS} and {MAX_DEPTH_TOKENS} tokens."
            yield message, ("expect", "depths", n), "The decode rate after a short prompt is always measured."
    if load is None:
        return
    if file.task != GENERATE:
        yield f"`expect.load` does not apply to `task: {file.task}`.", ("expect", "load"), "Remove it."
    max_context = file.resolved_engine.flags.context(file.flags)
    if max_context is not None and load.context > max_context:
        message = f"`expect.load.context` {load.context} is longer than the server's context of {max_context} tokens."
        yield message, ("expect", "load", "context"), f"Set it to {max_context} or less, or raise the server's context."


def _check_flags(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    if engine.get_engine(file.engine).needs_description:
        return
    flags = engine.get_engine(file.engine).flags
    if pair := find_duplicate(flags, written_flags(source)):
        first, second = map(visible.display_name, pair)
        message = f"`{file.engine}.{first}` and `{file.engine}.{second}` are the same flag, {flags.canonical(pair[1])}."
        yield message, (file.engine, pair[1]), "Remove one of them."
    for name in file.flags:
        if owner := options.describe_owner(file.engine, name):
            equivalent = options.translate_flag(file.engine, name)
            yield f"{owner}.", flag_place(source, name), f"Write `{equivalent}`." if equivalent else "Remove it."
    for name, key in flags.RESERVED_FLAGS.items():
        if name in file.flags:
            yield f"`{file.engine}.{name}` is set by `{key}`.", flag_place(source, name), "Remove it."


def _check_ascend(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    if file.ascend is not None and file.platform != "ascend":
        yield "`ascend` requires `platform: ascend`.", ("ascend",), "Remove it."
    if file.platform == "ascend" and file.engine != engine.DEFAULT_ENGINE:
        yield "`platform: ascend` requires `engine: vllm`.", ("platform",), "Remove it."


def _check_server_key(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each server key that others can read, and for settings that conflict with `server_key`."""
    recipe_engine = file.resolved_engine
    key, fix = recipe_engine.key, SERVER_KEY_FIX.format(file.engine)
    if key is None:
        if file.server_key is not None:
            message = (
                f"`server_key` cannot be used with {recipe_engine.title}: there is no way to pass the key secretly."
            )
            alternative = f"Describe one in `{file.engine}.key`, or use" if recipe_engine.needs_description else "Use"
            yield message, ("server_key",), f"{alternative} `publish: loopback`."
        return
    if file.server_key is not None and not key.option and file.container.entrypoint is None:
        message = (
            f"`{file.engine}.key.env` needs `container.entrypoint`: a shell sets the variable and starts the program."
        )
        yield message, (file.engine, "key"), "Name the program there; the image's own entrypoint is unknown here."
    if key.flag in file.flags:
        place = flag_place(source, key.flag)
        yield f"`{'.'.join(place)}`: a key in the flags is not secret: {SECRET_EXPOSURE_REASON}.", place, fix
    if key.variable in file.container.env:
        message = f"`container.env.{key.variable}`: a key in the environment is not secret: {SECRET_EXPOSURE_REASON}."
        yield message, ("container", "env", key.variable), fix
    if file.server_key is not None and key.option in file.flags:
        place = flag_place(source, key.option)
        message = f"`{'.'.join(place)}` cannot be used with `server_key`: {key.conflict_reason}."
        yield message, place, f"Put its settings under `{file.engine}:`."


def _check_secrets(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    container = file.container
    checked_options = ("env", "labels", "entrypoint", "healthcheck", "log_options", "sysctls")
    values = {file.engine: file.flags, "container": {name: getattr(container, name) for name in checked_options}}
    for place in find_plain_secrets(values):
        if place[0] == file.engine:
            place = (*flag_place(source, str(place[1])), *place[2:])
        fix = (
            "A hub token belongs under the host's `secrets:`; the container does not need it. "
            "Mount any other secret as a file (`container.volumes`)."
        )
        yield f"{format_place(place)} looks like a secret: {SECRET_EXPOSURE_REASON}.", place, fix


def _check_duplicate_ports(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each conflicting port. Docker would create the container, but fail to start it."""
    for count in range(1, len(file.container.ports) + 1):
        conflict = container_option_rules.find_port_conflict(file.container.ports[:count])
        if conflict:
            message = f"`container.ports` publishes the host's port of '{conflict}' twice."
            yield message, ("container", "ports", count - 1), "Use another host port."


def _list_fixed_mounts(file: RecipeFile) -> dict[str, str]:
    """Return descriptions of the mounts that are not in `container`, by mount point."""
    mounts = {normalize_mount_point(file.model.mount): "the model's folder"}
    for role, model in file.further_models.items():
        mounts[normalize_mount_point(model.mount)] = f"the folder of the {role}"
    key = file.resolved_engine.key
    if file.server_key is not None and key is not None:
        mounts[key.mount] = "the server's key"
    return mounts


def _list_container_mounts(file: RecipeFile) -> Iterator[tuple[str, Place, str]]:
    """Yield mount point, place in the recipe and description of each volume and tmpfs."""
    container: Any = file.container
    for n, volume in enumerate(container.volumes):
        yield normalize_mount_point(volume.split(":")[1]), ("container", "volumes", n), f"the volume '{volume}'"
    for n, tmpfs in enumerate(container.tmpfs):
        yield normalize_mount_point(tmpfs.partition(":")[0]), ("container", "tmpfs", n), f"the tmpfs '{tmpfs}'"


def _check_duplicate_mounts(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    mounts = _list_fixed_mounts(file)
    for point, place, description in _list_container_mounts(file):
        if point in mounts:
            message = f"`container.{place[1]}`: {mounts[point]} is already mounted at {point}."
            yield message, place, "Mount it elsewhere."
        mounts[point] = description


def _check_nested_mounts(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each writable host folder that contains the source of another mount.

    The container could replace that source with a link, and its next start would mount the link's target. The host also compares
    the real paths before each start (host/containers/mount_sources.py).
    """
    container: Any = file.container
    mounted_folders = {"`model.dir`": file.model.dir, "sparkwright's own folder": OWN_DATA_FOLDER}
    mounted_folders |= {f"the folder of the {role}": model.dir for role, model in file.further_models.items()}
    mounted_folders |= {f"'{volume}'": volume.split(":")[0] for volume in container.volumes}
    for n, volume in enumerate(container.volumes):
        outer, _, *modes = volume.split(":")
        if not outer.startswith(("/", "~")) or "ro" in ",".join(modes).split(","):
            continue
        for description, folder in mounted_folders.items():
            if container_option_rules.is_below(folder, outer):
                message = f"`container.volumes`: {description} is inside {outer}, where the container may write."
                fix = "Mount folders that are not inside each other, or mount the outer one read-only (`:ro`)."
                yield message, ("container", "volumes", n), fix


def _check_file_paths(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each file whose path in the container is invalid or overlaps a mount or another file."""
    mounts = _list_fixed_mounts(file) | {point: label for point, _, label in _list_container_mounts(file)}
    for path in file.files:
        place, label = ("files", path), one_line(path, max_chars=100)
        if reason := check_container_path(path):
            yield f"`files`: '{label}' {reason}.", place, "Choose another path, e.g. below /etc/sparkwright."
        point = normalize_mount_point(path)
        for mount, description in mounts.items():
            if point == mount or point.startswith(f"{mount}/") or mount.startswith(f"{point}/"):
                yield f"`files`: '{label}' overlaps {description}.", place, "Choose another path."
        if outer := next((other for other in file.files if point.startswith(f"{other}/")), ""):
            message = f"`files`: '{label}' is below the file '{visible.display_name(outer)}'."
            yield message, place, "Choose another path."


def _check_publish(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a mistake for each port whose explicit address contradicts `publish`."""
    if "publish" not in file.model_fields_set or is_on_host_network(file):
        return
    for n, (port, address) in enumerate(zip(file.container.ports, published_addresses(file), strict=True)):
        if port.count(":") > 1 and is_loopback(address) != (file.publish == "loopback"):
            message = f"`container.ports` publishes {port}, but `publish` is {file.publish}."
            yield message, ("container", "ports", n), "Remove one of them."
