"""Reads sparkrun's recipes, versions 1 and 2, and those of eugr/spark-vllm-docker, which are version 1.

Sources: sparkrun 0.4.2 core/recipe.py (keys, order of values, placeholders) and runtimes/*.py (flags from defaults);
spark-arena/recipe-registry@3075780; spark-arena/eugr-recipes@0d81770.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.engines import engine, options
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.importing.command import ENGINES_BY_RUNTIME
from sparkwright.project.importing.docker_command import build_arguments, format_pairs, parse_arguments, split_command
from sparkwright.project.importing.foreign_recipe import (
    DROP_ANSWER,
    VARIABLES_SHAPE,
    ForeignRecipe,
    ImportReport,
    as_mapping,
    as_text,
    as_texts,
    format_value,
    partial_mapping,
    scalar,
    word_list,
)
from sparkwright.trust.names import check_file_name
from sparkwright.trust.process_option_rules import HOST_NETWORK
from sparkwright.visible import join_first, one_line

#: known values of `recipe_version`
VERSIONS = ("1", "2")

#: keys with commands to run, each with its effect
HOOK_EFFECTS = {
    "pre_exec": "commands in the container before the server starts",
    "post_exec": "commands in the container after the server has started",
    "post_commands": "commands on the machine that started the server",
}
#: keys that an import drops, each with the reason
DROPPED_KEYS = {
    "benchmark": "use `bench.serve`",
    "readiness": "sparkwright itself checks that the server generates text, which is stricter",
    "builder": "images are pulled, not built",
    "builder_config": "images are pulled, not built",
    "build_args": "images are pulled, not built",
    "distribution_config": "the host downloads the model; other members copy it over the fabric",
    "executor": "sparkwright always uses Docker",
    "executor_config": "sparkwright always uses Docker",
    "scheduler": "sparkwright has no scheduler",
    "min_sparkrun_version": "does not apply to sparkwright",
    "runtime_version": "the version is that of the image",
    "runtime_config": "settings of sparkrun; the server's flags are unchanged",
    "stop_after_post": "commands after the start are not supported",
    "layout": "the split is set by `parallel`",
    "cluster_config": "hosts and link are set by a group's `cluster`",
    "runtime_cache": "compile caches are kept on the host",
    "capabilities": "use `expect.probes` to test them",
    "unsupported_capabilities": "use `expect.probes` to test them",
}
#: keys that are read, or do not affect the server
READ_KEYS = {
    *("recipe_version", "sparkrun_version", "name", "description", "metadata", "model", "model_revision", "runtime"),
    *("mode", "solo_only", "cluster_only", "min_nodes", "max_nodes", "container", "containers", "defaults", "env"),
    *("command", "mods", "overrides", "include"),
}
_TEXT_KEYS = ("name", "description", "model", "model_revision", "runtime", "mode", "container", "command")
_OVERRIDE_SHAPE = partial_mapping(when=VARIABLES_SHAPE, defaults=VARIABLES_SHAPE, env=VARIABLES_SHAPE, container=scalar)
#: shape of a file, checked before it is read
SHAPE = {
    **partial_mapping(**dict.fromkeys((*_TEXT_KEYS, "recipe_version", "sparkrun_version"), scalar)),
    **partial_mapping(
        metadata=partial_mapping(description=scalar),
        defaults=VARIABLES_SHAPE,
        env=VARIABLES_SHAPE,
        containers=VARIABLES_SHAPE,
    ),
    **partial_mapping(overrides=[_OVERRIDE_SHAPE], mods=word_list),
}
#: names of a Spark's architecture
ARM_NAMES = ("arm64", "aarch64")
TAKE_ANSWER = "take"
_PLACEHOLDER_PATTERN = re.compile(r"\{([A-Za-z_]\w{0,60})\}")
_ESCAPED_PLACEHOLDER_PATTERN = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w{0,60})\}")
MOD_SCRIPT = "run.sh"
#: effect of a script, by a word in it
SCRIPT_EFFECTS = {
    "patch": "patches files of the image",
    "git": "applies changes from a git repository",
    "curl": "downloads from the network",
    "wget": "downloads from the network",
    "pip": "installs packages",
    "uv": "installs packages",
    "apt": "installs packages",
    "apt-get": "installs packages",
    "cp": "puts files into the image",
    "sed": "edits files of the image",
    "python": "runs Python code",
    "python3": "runs Python code",
    "drop_caches": "drops the page cache in a loop",
}
MAX_SHOWN_MODS, MAX_PARENT_FOLDERS = 8, 4


def matches(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    has_version = any(key in data for key in ("recipe_version", "sparkrun_version"))
    return has_version or (isinstance(data.get("model"), str) and ("container" in data or "command" in data))


def convert(data: dict[str, Any], path: Path, report: ImportReport) -> ForeignRecipe:
    """Return the recipe. Raises Refused for `include`, and for mods and hooks without an answer."""
    version = as_text(data.get("recipe_version")) or "1"
    kind = f"a sparkrun recipe, version {version}" if version != "1" else "a sparkrun recipe, version 1 (eugr)"
    if version not in VERSIONS:
        reason = f"read as version {VERSIONS[-1]}, the newest supported version"
        report.add("note", f"recipe_version {one_line(version, max_chars=40)}", reason)
    if data.get("include"):
        fix = "Import the included recipe, or replace `include` with its content."
        raise Refused("the recipe extends another one (`include`), which is not in the file.", fix=fix)
    for name, effect in HOOK_EFFECTS.items():
        if data.get(name):
            _refuse_hook(name, effect, data[name], report)
    refuse_mods(data.get("mods"), path, report)
    data = apply_overrides(data, _launch_values(data), report)
    values = {key: as_text(value) for key, value in as_mapping(data.get("defaults")).items()}
    model = as_text(data.get("model"))
    values = {"model": model, **values}
    metadata = as_mapping(data.get("metadata"))
    foreign = ForeignRecipe(
        kind,
        path.stem,
        description=as_text(data.get("description") or metadata.get("description") or data.get("name")),
        engine=as_text(data.get("runtime")) or "vllm",
        model=model.removesuffix(":"),
        revision=as_text(data.get("model_revision")),
        hosts=_host_count(data),
    )
    image = as_text(data.get("container")) or _select_image(data, report)
    env = {name: as_text(value) for name, value in as_mapping(data.get("env")).items()}
    command = as_text(data.get("command"))
    if command:
        words = split_command(fill_placeholders(command, values, report))
    else:
        words = _build_flags(foreign, values, report)
    foreign = parse_arguments(
        build_arguments(image, words, network=[HOST_NETWORK], env=format_pairs(env)), foreign, report
    )
    for key in (
        key for key in data if key not in READ_KEYS | HOOK_EFFECTS.keys() and data[key] not in (None, "", [], {})
    ):
        report.add("dropped", key, DROPPED_KEYS.get(key, "unknown key"))
    report.add("dropped", "privileged, --rm", "sparkrun starts containers with them, sparkwright does not")
    return foreign


def _select_image(data: dict[str, Any], report: ImportReport) -> str:
    """Return the image from `containers`; ask the user if there are several."""
    images = {key: as_text(value) for key, value in as_mapping(data.get("containers")).items()}
    if len(images) == 1:
        return next(iter(images.values()))
    choices = one_line("; ".join(f"{key}: {image}" for key, image in images.items()), max_chars=600)
    return images.get(report.ask("container", f"which image: {choices}", images), "") if images else ""


def _launch_values(data: dict[str, Any]) -> Launch:
    defaults = as_mapping(data.get("defaults"))
    return Launch(_host_count(data) or 1, max(_int_or_zero(defaults.get("tensor_parallel")), 1))


def _host_count(data: dict[str, Any]) -> int:
    """Return the number of hosts that the recipe requires; 0 if it can use one or several."""
    min_hosts, max_hosts = (_int_or_zero(data.get(key)) for key in ("min_nodes", "max_nodes"))
    if data.get("solo_only") is True or max_hosts == 1 or as_text(data.get("mode")) == "solo":
        return 1
    if min_hosts > 1:
        return min_hosts
    if data.get("cluster_only") is not True:
        return 0
    defaults = as_mapping(data.get("defaults"))
    if not defaults:
        return 2
    tensor, pipeline = (max(_int_or_zero(defaults.get(key)), 1) for key in ("tensor_parallel", "pipeline_parallel"))
    return tensor * pipeline


def _int_or_zero(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _refuse_hook(name: str, effect: str, commands: Any, report: ImportReport) -> None:
    shown_commands = one_line(format_value(commands), max_chars=200)
    if report.find_answer(name) != DROP_ANSWER:
        fix = f"Use an image with these changes, and `--answer {name}={DROP_ANSWER}`."
        raise Refused(f"`{name}` would run {effect}: {shown_commands}.", fix=fix)
    report.add("dropped", name, f"as answered; it would run {shown_commands}")


def _build_flags(foreign: ForeignRecipe, values: dict[str, str], report: ImportReport) -> list[str]:
    """Return the flags that sparkrun builds from `defaults` if there is no `command`, under the engine's names."""
    name = ENGINES_BY_RUNTIME.get(foreign.engine, "")
    if not name:
        return []
    target_engine = engine.get_engine(name)
    words = [] if target_engine.imports and target_engine.imports.repository_flag else [values["model"]]
    vllm_imports = engine.get_engine(engine.DEFAULT_ENGINE).imports
    assert vllm_imports is not None
    # keys of `defaults` whose names differ from vLLM's flags
    flag_names = {
        "tensor_parallel": vllm_imports.tensor_flag,
        "pipeline_parallel": vllm_imports.pipeline_flag,
        "data_parallel": vllm_imports.replica_flags[0],
    }
    for key, value in values.items():
        if key == "model":
            continue
        flag_name = flag_names.get(key, key.replace("_", "-"))
        concept = options.load_concepts().get(options.find_concept(flag_name), {})
        flag = next(iter(concept.get(name, ())), flag_name)
        if flag != flag_name:
            report.add("translated", key, f"--{flag}")
        words += [f"--{flag}"] if value == "true" else [] if value == "false" else [f"--{flag}", value]
    if target_engine.imports and target_engine.imports.repository_flag:
        words += [f"--{target_engine.imports.repository_flag}", values["model"]]
    elif target_engine.flags.RESERVED_FLAGS and name == "sglang":
        words = [f"--{next(iter(target_engine.flags.RESERVED_FLAGS))}", *words]
    return words


# sparkrun's `overrides`: conditional replacements of values. Source: sparkrun 0.4.2 core/recipe.py.


@dataclass(frozen=True, slots=True)
class Launch:
    """Values that conditions of overrides refer to."""

    #: number of hosts
    hosts: int
    #: number of hosts over which each layer is split
    tensor: int


def apply_overrides(data: dict[str, Any], launch: Launch, report: ImportReport) -> dict[str, Any]:
    """Return the recipe with its applicable overrides applied. The user is asked about unknown conditions."""
    recipe = dict(data)
    for n, override in enumerate(data.get("overrides") or (), 1):
        conditions = as_mapping(override.get("when"))
        condition = one_line(", ".join(f"{key}: {as_text(value)}" for key, value in conditions.items()), max_chars=120)
        if _should_apply(conditions, condition, n, launch, report):
            for key in ("defaults", "env"):
                if override.get(key):
                    recipe[key] = as_mapping(recipe.get(key)) | as_mapping(override[key])
            if override.get("container"):
                recipe["container"] = override["container"]
            report.add("translated", f"override {n}", f"applied: its condition is true ({condition or 'always'})")
        else:
            report.add("dropped", f"override {n}", f"its condition is false ({condition})")
    return recipe


def _should_apply(conditions: dict[str, Any], condition: str, n: int, launch: Launch, report: ImportReport) -> bool:
    facts = {"nodes": [str(launch.hosts)], "tp": [str(launch.tensor)], "arch": list(ARM_NAMES)}
    if any(key in facts and as_text(value) not in facts[key] for key, value in conditions.items()):
        return False
    if conditions.keys() <= facts.keys():
        return True
    question = (
        f"override {n} has the condition '{condition}': `{TAKE_ANSWER}` if it is true for you, else `{DROP_ANSWER}`"
    )
    return report.ask(f"override-{n}", question, (TAKE_ANSWER, DROP_ANSWER)) == TAKE_ANSWER


# The `{placeholders}` of a command template, replaced by the recipe's defaults or the user's answers.
#
# Source: sparkrun 0.4.2 core/recipe.py: `{{` and `}}` are escapes only if the template contains `{{`.


def fill_placeholders(template: str, values: Mapping[str, str], report: ImportReport) -> str:
    """Return the template with its placeholders replaced. The user is asked for a missing value as `placeholder.NAME`."""

    def substitute(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name in values:
            return values[name]
        question = f"the command has a placeholder {{{name}}} without a value in the recipe: its value"
        return report.ask(f"placeholder.{name}", question) or "0"

    pattern = _ESCAPED_PLACEHOLDER_PATTERN if "{{" in template else _PLACEHOLDER_PATTERN
    replace: Callable[[re.Match[str]], str] = substitute
    return pattern.sub(replace, template)


# Mods: folders of scripts that sparkrun copies into a running container before the server starts. An import never runs
# them. Their effects are guessed from the words in run.sh, if it is found near the recipe.


def refuse_mods(mods: Any, recipe: Path, report: ImportReport) -> None:
    """Raise Refused, listing their effects, for mods without an answer. recipe: path of the recipe's file."""
    names = as_texts(mods)
    if not names:
        return
    remainder = f"; {len(names) - MAX_SHOWN_MODS} more" if len(names) > MAX_SHOWN_MODS else ""
    descriptions = "; ".join(_describe_mod(name, recipe.parent) for name in names[:MAX_SHOWN_MODS]) + remainder
    if report.find_answer("mods") != DROP_ANSWER:
        fix = (
            f"Import without them: `--answer mods={DROP_ANSWER}`. If the server needs them, also name an image that "
            "includes them: `--answer image=REPOSITORY:TAG`."
        )
        raise Refused(f"its mods would change the container before the server starts: {descriptions}.", fix=fix)
    report.add("dropped", f"mods {join_first(names, MAX_SHOWN_MODS)}", "as answered: they are not run")


def _describe_mod(name: str, folder: Path) -> str:
    label = one_line(name, max_chars=80)
    script = _read_script(name, folder)
    if script is None:
        return f"{label} (script not found)"
    lines = (line for line in script.splitlines() if not line.lstrip().startswith("#"))
    words = set(re.findall(r"[a-z][a-z0-9_-]{1,20}", "\n".join(lines)))
    effects = list(dict.fromkeys(effect for word, effect in SCRIPT_EFFECTS.items() if word in words))
    return f"{label} ({', '.join(effects) or 'runs a script'})"


def _read_script(name: str, folder: Path) -> str | None:
    """Return a mod's script, from the recipe's folder or a parent; None if it is missing or not readable."""
    if check_file_name(name.replace("/", "-")) or ".." in name.split("/") or name.startswith("/"):
        return None
    base_name = name.rpartition("/")[2]
    for parent in (folder, *list(folder.parents)[:MAX_PARENT_FOLDERS]):
        mods_folders = sorted(parent.glob("*-mods"))
        scripts = [parent / name / MOD_SCRIPT, *(path / base_name / MOD_SCRIPT for path in mods_folders)]
        for path in filter(document.is_file, scripts):
            try:
                return document.read_text(path)
            except Refused:
                return None
    return None
