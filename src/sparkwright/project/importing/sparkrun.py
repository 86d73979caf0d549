"""Recipes of sparkrun, version 2 and 1, and those of eugr/spark-vllm-docker, which are version 1.

Sources: sparkrun 0.4.2 core/recipe.py (keys, order of values, placeholders) and runtimes/*.py (flags made from defaults);
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
from sparkwright.trust.process_option_rules import HOST
from sparkwright.visible import join_first, one_line

#: known values of `recipe_version`
VERSIONS = ("1", "2")

#: keys that run something, each with its effect
HOOKS = {
    "pre_exec": "commands in the container before the server starts",
    "post_exec": "commands in the container after it started",
    "post_commands": "commands on the machine that started it",
}
#: keys that are about sparkrun itself
DROPPED_KEYS = {
    "benchmark": "`bench.serve` measures",
    "readiness": "sparkwright proves that it generates, which is stricter",
    "builder": "nothing is built; the image is pulled",
    "builder_config": "nothing is built; the image is pulled",
    "build_args": "nothing is built; the image is pulled",
    "distribution_config": "the host downloads the model, members copy it over the fabric",
    "executor": "Docker runs it",
    "executor_config": "Docker runs it",
    "scheduler": "there is none",
    "min_sparkrun_version": "sparkwright reads it",
    "runtime_version": "the image says which version it holds",
    "runtime_config": "settings of sparkrun's runtime; the flags are what counts",
    "stop_after_post": "nothing is run after the start",
    "layout": "`parallel` says how it is split",
    "cluster_config": "a group's `cluster` says which hosts, and over which link",
    "runtime_cache": "compile caches are kept on the host",
    "capabilities": "`expect.probes` proves what it can do",
    "unsupported_capabilities": "`expect.probes` proves what it can do",
}
#: keys that are read, or do not affect the server
READ_KEYS = {
    *("recipe_version", "sparkrun_version", "name", "description", "metadata", "model", "model_revision", "runtime"),
    *("mode", "solo_only", "cluster_only", "min_nodes", "max_nodes", "container", "containers", "defaults", "env"),
    *("command", "mods", "overrides", "include"),
}
_TEXTS = ("name", "description", "model", "model_revision", "runtime", "mode", "container", "command")
_OVERRIDE = partial_mapping(when=VARIABLES_SHAPE, defaults=VARIABLES_SHAPE, env=VARIABLES_SHAPE, container=scalar)
#: shape of a file, checked before it is read
SHAPE = {
    **partial_mapping(**dict.fromkeys((*_TEXTS, "recipe_version", "sparkrun_version"), scalar)),
    **partial_mapping(
        metadata=partial_mapping(description=scalar),
        defaults=VARIABLES_SHAPE,
        env=VARIABLES_SHAPE,
        containers=VARIABLES_SHAPE,
    ),
    **partial_mapping(overrides=[_OVERRIDE], mods=word_list),
}


def matches(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    has_version = any(key in data for key in ("recipe_version", "sparkrun_version"))
    return has_version or (isinstance(data.get("model"), str) and ("container" in data or "command" in data))


def convert(data: dict[str, Any], path: Path, report: ImportReport) -> ForeignRecipe:
    """Return the recipe. Raises Refused for mods and hooks, with their effects and the ways out."""
    version = as_text(data.get("recipe_version")) or "1"
    kind = f"a sparkrun recipe, version {version}" if version != "1" else "a sparkrun recipe, version 1 (eugr)"
    if version not in VERSIONS:
        report.add(
            "note",
            f"recipe_version {one_line(version, max_chars=40)}",
            f"read as version {VERSIONS[-1]}, the newest known",
        )
    if data.get("include"):
        fix = "Import the recipe that it includes, or write out what `include` brings."
        raise Refused("it is a change to another recipe (`include`), which is not in the file.", fix=fix)
    for name, what in HOOKS.items():
        if data.get(name):
            _refuse_hook(name, what, data[name], report)
    refuse_mods(data.get("mods"), path, report)
    data = apply_overrides(data, _launch_values(data), report)
    values = {key: as_text(value) for key, value in as_mapping(data.get("defaults")).items()}
    model, _, quantisation = as_text(data.get("model")).partition(":")
    values = {"model": as_text(data.get("model")), **values}
    metadata = as_mapping(data.get("metadata"))
    foreign = ForeignRecipe(
        kind,
        path.stem,
        description=as_text(data.get("description") or metadata.get("description") or data.get("name")),
        engine=as_text(data.get("runtime")) or "vllm",
        model=f"{model}:{quantisation}" if quantisation else model,
        revision=as_text(data.get("model_revision")),
        hosts=_host_count(data),
        folder=path.parent,
    )
    image = as_text(data.get("container")) or _select_image(data, report)
    env = {name: as_text(value) for name, value in as_mapping(data.get("env")).items()}
    command = as_text(data.get("command"))
    words = (
        split_command(fill_placeholders(command, values, report))
        if command
        else _flags_from_defaults(foreign, values, report)
    )
    foreign = parse_arguments(build_arguments(image, words, network=[HOST], env=format_pairs(env)), foreign, report)
    for key in (key for key in data if key not in READ_KEYS | HOOKS.keys() and data[key] not in (None, "", [], {})):
        report.add("dropped", key, DROPPED_KEYS.get(key, "sparkwright does not know this key"))
    report.add("dropped", "privileged, --rm", "how sparkrun starts a container; a recipe's is started without them")
    return foreign


def _select_image(data: dict[str, Any], report: ImportReport) -> str:
    """Return the image of a recipe that names several, by purpose; the user chooses one."""
    images = {key: as_text(value) for key, value in as_mapping(data.get("containers")).items()}
    if len(images) == 1:
        return next(iter(images.values()))
    choices = one_line("; ".join(f"{key}: {image}" for key, image in images.items()), max_chars=600)
    return images.get(report.ask("container", f"which image: {choices}", images), "") if images else ""


def _launch_values(data: dict[str, Any]) -> Launch:
    defaults = as_mapping(data.get("defaults"))
    return Launch(_host_count(data) or 1, max(_int_or_zero(defaults.get("tensor_parallel")), 1))


def _host_count(data: dict[str, Any]) -> int:
    """Return the number of hosts that the recipe is for; 0 if it can use one or several."""
    minimum, maximum = (_int_or_zero(data.get(key)) for key in ("min_nodes", "max_nodes"))
    if data.get("solo_only") is True or maximum == 1 or as_text(data.get("mode")) == "solo":
        return 1
    if minimum > 1:
        return minimum
    return (
        2
        if data.get("cluster_only") is True and not _split_size(data)
        else _split_size(data)
        if data.get("cluster_only") is True
        else 0
    )


def _split_size(data: dict[str, Any]) -> int:
    defaults = as_mapping(data.get("defaults"))
    return (
        max(_int_or_zero(defaults.get("tensor_parallel")), 1) * max(_int_or_zero(defaults.get("pipeline_parallel")), 1)
        if defaults
        else 0
    )


def _int_or_zero(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _refuse_hook(name: str, effect: str, commands: Any, report: ImportReport) -> None:
    would_run = one_line(format_value(commands), max_chars=200)
    if report.answers.get(name) != DROP_ANSWER:
        report.used_keys.add(name)
        fix = f"Give an image in which that is done, and `--answer {name}={DROP_ANSWER}`."
        raise Refused(f"`{name}` would run {effect}: {would_run}.", fix=fix)
    report.used_keys.add(name)
    report.add("dropped", name, f"as answered; it would run {would_run}")


def _flags_from_defaults(foreign: ForeignRecipe, values: dict[str, str], report: ImportReport) -> list[str]:
    """Return the flags that sparkrun makes of defaults if there is no command, under the engine's names."""
    name = ENGINES_BY_RUNTIME.get(foreign.engine, "")
    if not name:
        return []
    target = engine.get_engine(name)
    words = [] if target.imports and target.imports.repository else [values["model"]]
    vllm_imports = engine.get_engine(engine.DEFAULT_ENGINE).imports
    assert vllm_imports is not None
    # defaults whose names differ from vLLM's flags
    flag_names = {
        "tensor_parallel": vllm_imports.tensor,
        "pipeline_parallel": vllm_imports.pipeline,
        "data_parallel": vllm_imports.replicas[0],
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
    if target.imports and target.imports.repository:
        words += [f"--{target.imports.repository}", values["model"]]
    elif target.flags.SET_BY and name == "sglang":
        words = [f"--{next(iter(target.flags.SET_BY))}", *words]
    return words


# sparkrun's `overrides`: values that replace others where a condition holds. Source: sparkrun 0.4.2 core/recipe.py.

#: names of a Spark's architecture
ARM_NAMES = ("arm64", "aarch64")
TAKE_ANSWER = "take"


@dataclass(frozen=True, slots=True)
class Launch:
    """The values that the conditions of overrides refer to."""

    #: number of hosts
    hosts: int
    #: number of hosts over which each layer is split
    tensor: int


def apply_overrides(data: dict[str, Any], launch: Launch, report: ImportReport) -> dict[str, Any]:
    """Return the recipe with the values whose condition holds; the user is asked about conditions that are unknown here."""
    recipe = dict(data)
    for n, override in enumerate(data.get("overrides") or (), 1):
        when = as_mapping(override.get("when"))
        condition = one_line(", ".join(f"{key}: {as_text(value)}" for key, value in when.items()), max_chars=120)
        if _is_applied(when, condition, n, launch, report):
            recipe |= {
                key: _merge_override(recipe, override, key)
                for key in ("defaults", "env", "container")
                if override.get(key)
            }
            report.add("translated", f"override {n}", f"taken in, as it holds here ({condition or 'always'})")
        else:
            report.add("dropped", f"override {n}", f"it does not hold here ({condition})")
    return recipe


def _is_applied(when: dict[str, Any], condition: str, n: int, launch: Launch, report: ImportReport) -> bool:
    facts = {"nodes": [str(launch.hosts)], "tp": [str(launch.tensor)], "arch": list(ARM_NAMES)}
    if any(key in facts and as_text(value) not in facts[key] for key, value in when.items()):
        return False
    if when.keys() <= facts.keys():
        return True
    sentence = f"override {n} is for '{condition}', which only you know: take it in, or drop it"
    return report.ask(f"override-{n}", sentence, (TAKE_ANSWER, DROP_ANSWER)) == TAKE_ANSWER


def _merge_override(data: dict[str, Any], override: dict[str, Any], key: str) -> Any:
    if key == "container":
        return override[key]
    return {**as_mapping(data.get(key)), **as_mapping(override[key])}


# The `{placeholders}` of a command template, filled from the recipe's defaults or the user's answers.
#
# Source: sparkrun 0.4.2 core/recipe.py: `{{` and `}}` are escapes only where the template has a `{{`.

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w{0,60})\}")
_ESCAPED_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w{0,60})\}")


def fill_placeholders(template: str, values: Mapping[str, str], report: ImportReport) -> str:
    """Return the template with its values; the user is asked for a missing one as `placeholder.NAME`."""

    def substitute(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name in values:
            return values[name]
        sentence = f"the command has a placeholder {{{name}}} that the recipe gives no value"
        return report.ask(f"placeholder.{name}", sentence) or "0"

    pattern = _ESCAPED_PLACEHOLDER if "{{" in template else _PLACEHOLDER
    replace: Callable[[re.Match[str]], str] = substitute
    return pattern.sub(replace, template)


# Mods: folders of scripts that sparkrun copies into a running container before the server starts. They are never run
# here.
#
# Their effect is described from the words of run.sh, if it is beside the recipe.

MOD_SCRIPT = "run.sh"
#: the effect of a script, by its words
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


def refuse_mods(mods: Any, recipe: Path, report: ImportReport) -> None:
    """Raise Refused for mods without an answer, with their effects and the ways out."""
    names = as_texts(mods)
    if not names:
        return
    report.used_keys.add("mods")
    remainder = f"; {len(names) - MAX_SHOWN_MODS} more" if len(names) > MAX_SHOWN_MODS else ""
    descriptions = "; ".join(_describe_mod(name, recipe.parent) for name in names[:MAX_SHOWN_MODS]) + remainder
    if report.answers.get("mods") != DROP_ANSWER:
        fix = (
            "Ways out: an image in which they are built in (`--answer image=REPOSITORY:TAG`), or without them; both with "
            f"`--answer mods={DROP_ANSWER}`."
        )
        raise Refused(f"its mods would change the container before the server starts: {descriptions}.", fix=fix)
    report.add("dropped", f"mods {join_first(names, MAX_SHOWN_MODS)}", "as answered: nothing of them is run")


def _describe_mod(name: str, folder: Path) -> str:
    label = one_line(name, max_chars=80)
    script = _read_script(name, folder)
    if script is None:
        return f"{label} (its script is not here)"
    lines = (line for line in script.splitlines() if not line.lstrip().startswith("#"))
    words = set(re.findall(r"[a-z][a-z0-9_-]{1,20}", "\n".join(lines)))
    effects = list(dict.fromkeys(what for word, what in SCRIPT_EFFECTS.items() if word in words))
    return f"{label} ({', '.join(effects) or 'runs a script'})"


def _read_script(name: str, folder: Path) -> str | None:
    """Return the mod's script, from the recipe's folder or a parent; None if it is missing or not readable."""
    if check_file_name(name.replace("/", "-")) or ".." in name.split("/") or name.startswith("/"):
        return None
    last = name.rpartition("/")[2]
    for above in (folder, *list(folder.parents)[:MAX_PARENT_FOLDERS]):
        siblings = [above / name / MOD_SCRIPT, *(path / last / MOD_SCRIPT for path in sorted(above.glob("*-mods")))]
        for path in filter(document.is_file, siblings):
            try:
                return document.read_text(path)
            except Refused:
                return None
    return None
