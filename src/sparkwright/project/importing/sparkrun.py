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
from sparkwright.project.importing.command import RUNTIMES
from sparkwright.project.importing.docker_words import of_words, pairs, split, words_of
from sparkwright.project.importing.foreign import (
    DROP,
    VARIABLES,
    Foreign,
    Report,
    mapping,
    partly,
    scalar,
    shown,
    text,
    texts,
    words,
)
from sparkwright.trust.names import why_not_a_file
from sparkwright.trust.process_words import HOST
from sparkwright.visible import first, one_line

#: known values of `recipe_version`
VERSIONS = ("1", "2")

#: keys that run something, each with its effect
HOOKS = {
    "pre_exec": "commands in the container before the server starts",
    "post_exec": "commands in the container after it started",
    "post_commands": "commands on the machine that started it",
}
#: keys that are about sparkrun itself
DROPPED = {
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
READ = {
    *("recipe_version", "sparkrun_version", "name", "description", "metadata", "model", "model_revision", "runtime"),
    *("mode", "solo_only", "cluster_only", "min_nodes", "max_nodes", "container", "containers", "defaults", "env"),
    *("command", "mods", "overrides", "include"),
}
_TEXTS = ("name", "description", "model", "model_revision", "runtime", "mode", "container", "command")
_OVERRIDE = partly(when=VARIABLES, defaults=VARIABLES, env=VARIABLES, container=scalar)
#: shape of a file, checked before it is read
SHAPE = {
    **partly(**dict.fromkeys((*_TEXTS, "recipe_version", "sparkrun_version"), scalar)),
    **partly(metadata=partly(description=scalar), defaults=VARIABLES, env=VARIABLES, containers=VARIABLES),
    **partly(overrides=[_OVERRIDE], mods=words),
}


def is_one(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    named = any(key in data for key in ("recipe_version", "sparkrun_version"))
    return named or (isinstance(data.get("model"), str) and ("container" in data or "command" in data))


def read(data: dict[str, Any], path: Path, report: Report) -> Foreign:
    """Return the recipe. Raises Refused for mods and hooks, with their effects and the ways out."""
    version = text(data.get("recipe_version")) or "1"
    kind = f"a sparkrun recipe, version {version}" if version != "1" else "a sparkrun recipe, version 1 (eugr)"
    if version not in VERSIONS:
        report.add(
            "note",
            f"recipe_version {one_line(version, at_most=40)}",
            f"read as version {VERSIONS[-1]}, the newest known",
        )
    if data.get("include"):
        fix = "Import the recipe that it includes, or write out what `include` brings."
        raise Refused("it is a change to another recipe (`include`), which is not in the file.", fix=fix)
    for name, what in HOOKS.items():
        if data.get(name):
            _hook(name, what, data[name], report)
    refuse(data.get("mods"), path, report)
    data = applied(data, _launch(data), report)
    values = {key: text(value) for key, value in mapping(data.get("defaults")).items()}
    model, _, quantisation = text(data.get("model")).partition(":")
    values = {"model": text(data.get("model")), **values}
    about = mapping(data.get("metadata"))
    found = Foreign(
        kind,
        path.stem,
        description=text(data.get("description") or about.get("description") or data.get("name")),
        engine=text(data.get("runtime")) or "vllm",
        model=f"{model}:{quantisation}" if quantisation else model,
        revision=text(data.get("model_revision")),
        hosts=_hosts(data),
        folder=path.parent,
    )
    image = text(data.get("container")) or _of_several(data, report)
    env = {name: text(value) for name, value in mapping(data.get("env")).items()}
    command = text(data.get("command"))
    words = split(filled(command, values, report)) if command else _from_defaults(found, values, report)
    found = of_words(words_of(image, words, network=[HOST], env=pairs(env)), found, report)
    for key in (key for key in data if key not in READ | HOOKS.keys() and data[key] not in (None, "", [], {})):
        report.add("dropped", key, DROPPED.get(key, "sparkwright does not know this key"))
    report.add("dropped", "privileged, --rm", "how sparkrun starts a container; a recipe's is started without them")
    return found


def _of_several(data: dict[str, Any], report: Report) -> str:
    """Return the image of a recipe that names several, by purpose; the user chooses one."""
    named = {key: text(value) for key, value in mapping(data.get("containers")).items()}
    if len(named) == 1:
        return next(iter(named.values()))
    listed = one_line("; ".join(f"{key}: {image}" for key, image in named.items()), at_most=600)
    return named.get(report.ask("container", f"which image: {listed}", named), "") if named else ""


def _launch(data: dict[str, Any]) -> Launch:
    defaults = mapping(data.get("defaults"))
    return Launch(_hosts(data) or 1, max(_number(defaults.get("tensor_parallel")), 1))


def _hosts(data: dict[str, Any]) -> int:
    """Return the number of hosts that the recipe is for; 0 if it can use one or several."""
    least, most = (_number(data.get(key)) for key in ("min_nodes", "max_nodes"))
    if data.get("solo_only") is True or most == 1 or text(data.get("mode")) == "solo":
        return 1
    if least > 1:
        return least
    return (
        2
        if data.get("cluster_only") is True and not _split(data)
        else _split(data)
        if data.get("cluster_only") is True
        else 0
    )


def _split(data: dict[str, Any]) -> int:
    defaults = mapping(data.get("defaults"))
    return (
        max(_number(defaults.get("tensor_parallel")), 1) * max(_number(defaults.get("pipeline_parallel")), 1)
        if defaults
        else 0
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _hook(name: str, what: str, given: Any, report: Report) -> None:
    would_run = one_line(shown(given), at_most=200)
    if report.answers.get(name) != DROP:
        report.heard.add(name)
        fix = f"Give an image in which that is done, and `--answer {name}={DROP}`."
        raise Refused(f"`{name}` would run {what}: {would_run}.", fix=fix)
    report.heard.add(name)
    report.add("dropped", name, f"as answered; it would run {would_run}")


def _from_defaults(found: Foreign, values: dict[str, str], report: Report) -> list[str]:
    """Return the flags that sparkrun makes of defaults if there is no command, under the engine's names."""
    name = RUNTIMES.get(found.engine, "")
    if not name:
        return []
    own = engine.of(name)
    words = [] if own.imports and own.imports.repository else [values["model"]]
    usual = engine.of(engine.USUAL).imports
    assert usual is not None
    # defaults whose names differ from vLLM's flags
    called = {"tensor_parallel": usual.tensor, "pipeline_parallel": usual.pipeline, "data_parallel": usual.replicas[0]}
    for key, value in values.items():
        if key == "model":
            continue
        written = called.get(key, key.replace("_", "-"))
        concept = options.concepts().get(options.of(written), {})
        flag = next(iter(concept.get(name, ())), written)
        if flag != written:
            report.add("translated", key, f"--{flag}")
        words += [f"--{flag}"] if value == "true" else [] if value == "false" else [f"--{flag}", value]
    if own.imports and own.imports.repository:
        words += [f"--{own.imports.repository}", values["model"]]
    elif own.flags.SET_BY and name == "sglang":
        words = [f"--{next(iter(own.flags.SET_BY))}", *words]
    return words


# sparkrun's `overrides`: values that replace others where a condition holds. Source: sparkrun 0.4.2 core/recipe.py.

#: names of a Spark's architecture
ARM = ("arm64", "aarch64")
TAKE = "take"


@dataclass(frozen=True, slots=True)
class Launch:
    """The values that the conditions of overrides refer to."""

    #: number of hosts
    hosts: int
    #: number of hosts over which each layer is split
    tensor: int


def applied(data: dict[str, Any], launch: Launch, report: Report) -> dict[str, Any]:
    """Return the recipe with the values whose condition holds; the user is asked about conditions that are unknown here."""
    found = dict(data)
    for n, override in enumerate(data.get("overrides") or (), 1):
        when = mapping(override.get("when"))
        condition = one_line(", ".join(f"{key}: {text(value)}" for key, value in when.items()), at_most=120)
        if _taken(when, condition, n, launch, report):
            found |= {
                key: _merged(found, override, key) for key in ("defaults", "env", "container") if override.get(key)
            }
            report.add("translated", f"override {n}", f"taken in, as it holds here ({condition or 'always'})")
        else:
            report.add("dropped", f"override {n}", f"it does not hold here ({condition})")
    return found


def _taken(when: dict[str, Any], condition: str, n: int, launch: Launch, report: Report) -> bool:
    facts = {"nodes": [str(launch.hosts)], "tp": [str(launch.tensor)], "arch": list(ARM)}
    if any(key in facts and text(value) not in facts[key] for key, value in when.items()):
        return False
    if when.keys() <= facts.keys():
        return True
    sentence = f"override {n} is for '{condition}', which only you know: take it in, or drop it"
    return report.ask(f"override-{n}", sentence, (TAKE, DROP)) == TAKE


def _merged(data: dict[str, Any], override: dict[str, Any], key: str) -> Any:
    if key == "container":
        return override[key]
    return {**mapping(data.get(key)), **mapping(override[key])}


# The `{placeholders}` of a command template, filled from the recipe's defaults or the user's answers.
#
# Source: sparkrun 0.4.2 core/recipe.py: `{{` and `}}` are escapes only where the template has a `{{`.

_PLAIN = re.compile(r"\{([A-Za-z_]\w{0,60})\}")
_ESCAPED = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w{0,60})\}")


def filled(template: str, values: Mapping[str, str], report: Report) -> str:
    """Return the template with its values; the user is asked for a missing one as `placeholder.NAME`."""

    def one(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name in values:
            return values[name]
        sentence = f"the command has a placeholder {{{name}}} that the recipe gives no value"
        return report.ask(f"placeholder.{name}", sentence) or "0"

    pattern = _ESCAPED if "{{" in template else _PLAIN
    replace: Callable[[re.Match[str]], str] = one
    return pattern.sub(replace, template)


# Mods: folders of scripts that sparkrun copies into a running container before the server starts. They are never run
# here.
#
# Their effect is described from the words of run.sh, if it is beside the recipe.

SCRIPT = "run.sh"
#: the effect of a script, by its words
DOES = {
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
MOST_SHOWN, UP = 8, 4


def refuse(given: Any, recipe: Path, report: Report) -> None:
    """Raise Refused for mods without an answer, with their effects and the ways out."""
    names = texts(given)
    if not names:
        return
    report.heard.add("mods")
    more = f"; {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    listed = "; ".join(_about(name, recipe.parent) for name in names[:MOST_SHOWN]) + more
    if report.answers.get("mods") != DROP:
        fix = (
            "Ways out: an image in which they are built in (`--answer image=REPOSITORY:TAG`), or without them; both with "
            f"`--answer mods={DROP}`."
        )
        raise Refused(f"its mods would change the container before the server starts: {listed}.", fix=fix)
    report.add("dropped", f"mods {first(names, MOST_SHOWN)}", "as answered: nothing of them is run")


def _about(name: str, folder: Path) -> str:
    shown = one_line(name, at_most=80)
    script = _script(name, folder)
    if script is None:
        return f"{shown} (its script is not here)"
    words = set(re.findall(r"[a-z][a-z0-9_-]{1,20}", "\n".join(_commands(script))))
    does = list(dict.fromkeys(what for word, what in DOES.items() if word in words))
    return f"{shown} ({', '.join(does) or 'runs a script'})"


def _commands(script: str) -> list[str]:
    return [line for line in script.splitlines() if not line.lstrip().startswith("#")]


def _script(name: str, folder: Path) -> str | None:
    """Return the mod's script, from the recipe's folder or a parent; None if it is missing or not readable."""
    if why_not_a_file(name.replace("/", "-")) or ".." in name.split("/") or name.startswith("/"):
        return None
    last = name.rpartition("/")[2]
    for above in (folder, *list(folder.parents)[:UP]):
        siblings = [above / name / SCRIPT, *(path / last / SCRIPT for path in sorted(above.glob("*-mods")))]
        for path in filter(document.is_file, siblings):
            try:
                return document.text_of(path)
            except Refused:
                return None
    return None
