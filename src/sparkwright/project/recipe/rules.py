"""Rules for every recipe, whatever the engine: no secret where everybody can read it, no setting given twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright import visible
from sparkwright.engines import api_paths, dialects, engine, options
from sparkwright.engines.flags import find_duplicate
from sparkwright.engines.http import GENERATE
from sparkwright.engines.probes import table
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document
from sparkwright.project.recipe import section_rules
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.project.recipe.section_rules import Mistake, flag_place, is_on_host_network, written_flags
from sparkwright.trust import container_option_rules
from sparkwright.trust.model_files import check_container_path
from sparkwright.trust.secret_names import find_plain_secrets
from sparkwright.visible import one_line

WHERE_SECRETS_SHOW = "`docker inspect`, the history and incident bundles show it"
USE_SERVER_KEY = "Take it out and write `server_key: {{env: SPARK_KEY}}`, beside `{0}:`."
#: the host's folder for caches, below its user's home (host/records/own_folders.py)
OWN_DATA_FOLDER = "~/.local/share/sparkwright"
#: limits of `expect.depths`, tokens
MIN_DEPTH_TOKENS, MAX_DEPTH_TOKENS = 1024, 1 << 20
LOOPBACK_PREFIXES = ("127.", "localhost", "[::1]", "::1")


def check(file: RecipeFile, source: Document) -> None:
    """Raise Refused with file and line for the first mistake."""
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
    """Return the address of each published port, as Docker takes it; "" for all. On the host's network, the engine's own."""
    if is_on_host_network(file):
        return [str(engine.get_engine(file.engine).flags.value(file.flags, "host") or "")]
    default = "127.0.0.1" if file.publish == "loopback" else ""
    return [port.rsplit(":", 2)[0] if port.count(":") > 1 else default for port in file.container.ports]


def is_loopback(address: str) -> bool:
    """Return True if only programs on the host itself can reach this address."""
    return address.startswith(LOOPBACK_PREFIXES)


def _check_engine(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield mistakes in the engine and its section: a recipe has one of each, with the same name."""
    sections = [name for name in engine.TITLES if name in file.model_fields_set]
    recipe_engine = engine.get_engine(file.engine)
    other = next((name for name in sections if name != file.engine), "")
    if len(sections) > 1:
        message = f"`{sections[0]}` and `{sections[1]}` both hold flags, but a recipe has one engine."
        yield message, (other,), f"Remove `{other}:`." if file.engine in sections else "Remove one of them."
    if other and "engine" in file.model_fields_set:
        message = f"`{other}` holds flags of {engine.get_engine(other).title}, but `engine` is {file.engine}."
        yield message, (other,), f"Write them under `{file.engine}:`, or `engine: {other}`."
    if other:
        message = f"`{other}` holds flags of {engine.get_engine(other).title}, but `engine` is missing."
        yield message, (other,), f"Add `engine: {other}`."
    if not recipe_engine.served:
        supported = ", ".join(engine.name for engine in engine.list_served())
        yield (
            f"this release cannot serve with {recipe_engine.title} yet.",
            ("engine",),
            f"Engines it can serve with: {supported}.",
        )
    if "engine" in file.model_fields_set and not sections:
        message = f"`engine: {file.engine}` needs its section `{file.engine}`."
        yield (
            message,
            ("engine",),
            f"Add the flags of {recipe_engine.title} under `{file.engine}:`, or `{file.engine}: {{}}`.",
        )


def _check_described_section(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield mistakes in the section of an engine that its recipe describes."""
    for place, reason in engine.get_engine(file.engine).find_mistakes(file.flags):
        dotted = one_line(".".join(map(str, (file.engine, *place))), max_chars=200)
        flag = reason.startswith("is unknown") and len(place) == 1
        fix = "Flags of the server are words of `command`." if flag else "Correct it." if place else "Add it."
        yield f"`{dotted}` {reason}.", (file.engine, *place), fix


def _check_files(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield mistakes in `model.file`, `mmproj` and `draft`, which only an engine that serves single files takes."""
    file_rules, title = engine.get_engine(file.engine).files, engine.get_engine(file.engine).title
    for name in ("file", "mmproj", "draft"):
        if file_rules is None and getattr(file.model, name):
            message = f"`model.{name}` cannot be used with {title}: it serves the whole folder."
            yield message, ("model", name), "Remove it; `model.allow` limits what is downloaded."
        elif (
            file_rules is not None
            and (file_name := getattr(file.model, name))
            and not file_name.endswith(file_rules.SUFFIX)
        ):
            message = f"`model.{name}` must end in {file_rules.SUFFIX}, got '{one_line(file_name, max_chars=80)}'."
            yield (
                message,
                ("model", name),
                f"Name a file, or a pattern that means one, e.g. *Q4_K_M*{file_rules.SUFFIX}.",
            )
    if file_rules is not None and not file.model.file:
        message = f"`model.file` is missing: {title} serves {file_rules.NEEDED}."
        yield (
            message,
            ("model",),
            f"Name it, by pattern where it has several parts; *{file_rules.SUFFIX} lists those there are.",
        )


def _check_task(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield flags that contradict `task`, and expectations that have no meaning for it."""
    recipe_engine, task = file.resolved_engine, file.task
    flags = {} if recipe_engine.needs_description else recipe_engine.flags.normalize(file.flags)
    for name, needed in recipe_engine.task_flags.needs.get(task, {}).items():
        if flags.get(name) is not needed:
            line = f"{name}: {str(needed).lower()}"
            message = f"`task: {task}` needs `{line}`: {recipe_engine.title} does not serve it without."
            yield message, ("task",), f"Add `{line}`."
    for name, values in recipe_engine.task_flags.excludes.get(task, {}).items():
        if name in flags and flags[name] in values:
            message = f"with `{name}: {str(flags[name]).lower()}` {recipe_engine.title} does not {task}."
            yield message, flag_place(source, name), "Remove it, or set `task:` to generate, embed or rerank."
    if task != GENERATE and file.expect.tok_per_s is not None:
        message = f"`expect.tok_per_s` has no meaning with `task: {task}`: it generates no text."
        yield message, ("expect", "tok_per_s"), "Remove it."
    if task != GENERATE and file.parallel is not None:
        yield f"`parallel` cannot be used with `task: {task}`.", ("parallel",), "Serve it from one host."


def _check_probes(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield probes that do not apply to the server, and those that cannot pass because a flag is missing."""
    recipe_engine, task = file.resolved_engine, file.task
    flags = {} if recipe_engine.needs_description else recipe_engine.flags.normalize(file.flags)
    for n, probe in enumerate(file.expect.probes):
        name, place = table.probe_name(probe), ("expect", "probes", n)
        if name not in table.PROBES_BY_TASK[task]:
            yield f"`expect.probes`: {name} cannot be asked with `task: {task}`.", place, "Remove it."
        dialect = dialects.OTHER_DIALECTS.get(name)
        if dialect is not None and dialect.path not in api_paths.list_paths(recipe_engine.http.paths):
            message = (
                f"`expect.probes`: {name} cannot pass: {recipe_engine.title} is not known to serve {dialect.path}."
            )
            yield message, place, "Remove the probe."
        for flag in recipe_engine.probe_flags.needs.get(name, ()):
            if flags.get(flag) in (None, False):
                message = f"`expect.probes`: {name} cannot pass without `{file.engine}.{flag}`."
                yield message, place, f"Add `{flag}`, or remove the probe."


def _check_load(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a promised load, or a depth, that the server cannot serve, whatever its memory."""
    promised = file.expect.load
    if file.expect.depths and file.task != GENERATE:
        yield f"`expect.depths` has no meaning with `task: {file.task}`.", ("expect", "depths"), "Remove it."
    for n, depth in enumerate(file.expect.depths):
        if not MIN_DEPTH_TOKENS <= depth <= MAX_DEPTH_TOKENS:
            message = f"`expect.depths`: {depth} is not between {MIN_DEPTH_TOKENS} and {MAX_DEPTH_TOKENS} tokens."
            yield message, ("expect", "depths", n), "The decode rate behind a short prompt is measured anyway."
    if promised is None:
        return
    if file.task != GENERATE:
        yield f"`expect.load` has no meaning with `task: {file.task}`.", ("expect", "load"), "Remove it."
    longest = engine.get_engine(file.engine).with_section(file.flags).flags.context(file.flags)
    if longest is not None and promised.context > longest:
        message = f"`expect.load.context` {promised.context} is longer than the server's context of {longest} tokens."
        yield message, ("expect", "load", "context"), f"Promise {longest} or less, or raise the server's context."


def _check_flags(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    if engine.get_engine(file.engine).needs_description:
        return
    flags = engine.get_engine(file.engine).flags
    if pair := find_duplicate(flags, written_flags(source)):
        first, other = map(visible.display_name, pair)
        message = f"`{file.engine}.{first}` and `{file.engine}.{other}` are the same flag, {flags.canonical(pair[1])}."
        yield message, (file.engine, pair[1]), "Remove one of them."
    for name in file.flags:
        if other_engine := options.describe_owner(file.engine, name):
            equivalent = options.translate_flag(file.engine, name)
            yield f"{other_engine}.", flag_place(source, name), f"Write `{equivalent}`." if equivalent else "Remove it."
    for name, key in flags.SET_BY.items():
        if name in file.flags:
            yield f"`{file.engine}.{name}` is set by `{key}`.", flag_place(source, name), "Remove it."


def _check_ascend(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    if file.ascend is not None and file.platform != "ascend":
        yield "`ascend` requires `platform: ascend`.", ("ascend",), "Remove it."
    if file.platform == "ascend" and file.engine != engine.DEFAULT_ENGINE:
        yield "`platform: ascend` requires `engine: vllm`.", ("platform",), "Remove it."


def _check_server_key(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a server's key that everybody can read, or beside a file that would hide it."""
    recipe_engine = file.resolved_engine
    key, fix = recipe_engine.key, USE_SERVER_KEY.format(file.engine)
    if key is None:
        if file.server_key is not None:
            message = (
                f"`server_key` cannot be used with {recipe_engine.title}: it cannot be given a key that stays secret."
            )
            ways = f"Say how it takes one (`{file.engine}.key`), or use" if recipe_engine.needs_description else "Use"
            yield message, ("server_key",), f"{ways} `publish: loopback`."
        return
    if file.server_key is not None and not key.option and file.container.entrypoint is None:
        message = (
            f"`{file.engine}.key.env` needs `container.entrypoint`: a shell in the container starts it with the key."
        )
        yield message, (file.engine, "key"), "Name the program there; the image's own entrypoint is not known here."
    if key.flag in file.flags:
        place = flag_place(source, key.flag)
        yield f"`{'.'.join(place)}`: a key in the flags is not secret: {WHERE_SECRETS_SHOW}.", place, fix
    if key.variable in file.container.env:
        message = f"`container.env.{key.variable}`: a key in the environment is not secret: {WHERE_SECRETS_SHOW}."
        yield message, ("container", "env", key.variable), fix
    if file.server_key is not None and key.option in file.flags:
        place = flag_place(source, key.option)
        message = f"`{'.'.join(place)}` cannot be used with `server_key`: {key.alone}."
        yield message, place, f"Put its settings under `{file.engine}:`."


def _check_secrets(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    box = file.container
    options_checked = ("env", "labels", "entrypoint", "healthcheck", "log_options", "sysctls")
    values = {file.engine: file.flags, "container": {name: getattr(box, name) for name in options_checked}}
    for secret_place in find_plain_secrets(values):
        place = (
            (*flag_place(source, str(secret_place[1])), *secret_place[2:])
            if secret_place[0] == file.engine
            else secret_place
        )
        fix = (
            "A hub token belongs under `secrets:` of the host; the container does not need it. "
            "Mount any other secret as a file (`container.volumes`)."
        )
        dotted = ".".join(map(str, place))
        yield f"`{dotted}` looks like a secret: {WHERE_SECRETS_SHOW}.", place, fix


def _check_duplicate_ports(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield two published ports that can't both be opened: Docker creates such a container and can't start it."""
    for end in range(1, len(file.container.ports) + 1):
        twice = container_option_rules.find_port_conflict(file.container.ports[:end])
        if twice:
            message = f"`container.ports` publishes the host's port of '{twice}' twice."
            yield message, ("container", "ports", end - 1), "Use another host port."


def _check_duplicate_mounts(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    points = {container_option_rules.normalize_mount_point(file.model.mount): "the model"}
    points |= {
        container_option_rules.normalize_mount_point(model.mount): f"the {role}"
        for role, model in file.further_models.items()
    }
    key = file.resolved_engine.key
    if file.server_key is not None and key is not None:
        points[key.mount] = "the server's key"
    box: Any = file.container
    mounts = [("volumes", n, volume, volume.split(":")[1]) for n, volume in enumerate(box.volumes)]
    mounts += [("tmpfs", n, value, value.partition(":")[0]) for n, value in enumerate(box.tmpfs)]
    for option, n, text, point in mounts:
        at = container_option_rules.normalize_mount_point(point)
        if at in points:
            message = f"`container.{option}`: {points[at]} is mounted at {at} already."
            yield message, ("container", option, n), "Mount it elsewhere."
        points[at] = f"'{text}'"


def _check_nested_mounts(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield a host folder that the container may write to, and that holds the source of another mount.

    The container could put a link in its place, and its next start would mount whatever that names. The host compares the real
    paths before each start (host/containers/mount_sources.py).
    """
    box: Any = file.container
    inner = {"`model.dir`": file.model.dir, "sparkwright's own folder": OWN_DATA_FOLDER}
    inner |= {f"the folder of the {role}": model.dir for role, model in file.further_models.items()}
    inner |= {f"'{volume}'": volume.split(":")[0] for volume in box.volumes}
    for n, volume in enumerate(box.volumes):
        outer, _, *modes = volume.split(":")
        if not outer.startswith(("/", "~")) or "ro" in ",".join(modes).split(","):
            continue
        for what, folder in inner.items():
            if container_option_rules.is_below(folder, outer):
                message = f"`container.volumes`: {what} lies in {outer}, to which the container may write."
                fix = "Mount folders that do not lie in one another, or the outer one read-only (`:ro`)."
                yield message, ("container", "volumes", n), fix


def _check_file_paths(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield files that would hide something in the container, or be written into a folder of the host."""
    box: Any = file.container
    key = file.resolved_engine.key if file.server_key is not None else None
    mounts = {container_option_rules.normalize_mount_point(file.model.mount): "the model's folder"}
    mounts |= {
        container_option_rules.normalize_mount_point(model.mount): f"the folder of the {role}"
        for role, model in file.further_models.items()
    }
    mounts |= {
        container_option_rules.normalize_mount_point(volume.split(":")[1]): f"the volume '{volume}'"
        for volume in box.volumes
    }
    mounts |= {
        container_option_rules.normalize_mount_point(item.partition(":")[0]): f"the tmpfs '{item}'"
        for item in box.tmpfs
    }
    mounts |= {key.mount: "the server's key"} if key else {}
    for path in file.files:
        label = one_line(path, max_chars=100)
        if reason := check_container_path(path):
            yield f"`files`: '{label}' {reason}.", ("files", path), "Put it elsewhere, e.g. below /etc/sparkwright."
        point = container_option_rules.normalize_mount_point(path)
        for place, what in mounts.items():
            if point == place or point.startswith(f"{place}/") or place.startswith(f"{point}/"):
                yield f"`files`: '{label}' and {what} are in one place.", ("files", path), "Put it elsewhere."
        if outer := next((item for item in file.files if point.startswith(f"{item}/")), ""):
            yield (
                f"`files`: '{label}' is below the file '{visible.display_name(outer)}'.",
                ("files", path),
                "Put it elsewhere.",
            )


def _check_publish(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield ports whose own address contradicts `publish`."""
    if "publish" not in file.model_fields_set or is_on_host_network(file):
        return
    for n, (port, address) in enumerate(zip(file.container.ports, published_addresses(file), strict=True)):
        if port.count(":") > 1 and is_loopback(address) != (file.publish == "loopback"):
            message = f"`container.ports` publishes {port}, but `publish` is {file.publish}."
            yield message, ("container", "ports", n), "Remove one of them."
