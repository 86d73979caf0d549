"""Write the generated pages, schemas and tables: docs/commands.md, docs/modules/*.md, schemas/*.json, docs/files/*.md and others.

.venv/bin/python docs/generate.py         (`make docs`; a test fails if a page is stale)
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sparkwright import defaults
from sparkwright.app import json_output, manual, recipe_exchange
from sparkwright.app.findings import find_rules, format_rule, rule_titles
from sparkwright.app.queries import client_formats
from sparkwright.cli import namespace
from sparkwright.cli.framework import help
from sparkwright.cli.framework.help import format_option
from sparkwright.cli.help_groups import GROUPS
from sparkwright.engines import api_paths, engine
from sparkwright.health import textfile
from sparkwright.measure import throughput
from sparkwright.modules import registry
from sparkwright.monitoring import alerts
from sparkwright.project import catalogue, recipe
from sparkwright.project.importing import format_detection
from sparkwright.project.inventory.models import (
    ClientFile,
    ClusterFile,
    FabricFile,
    GatewayFile,
    GatewayLimits,
    GroupFile,
    HostFile,
    SecretSource,
    ServedFile,
    TlsFile,
)
from sparkwright.project.lockfile import FileEntry, ImageEntry, LockFile, ManifestEntry, ModelEntry
from sparkwright.project.playbook.playbook import BlockFile, IncludeFile, PlayFile, TaskFile
from sparkwright.project.recipe.models import Adapter, Container, Expect, Model, ParallelFile, RecipeFile
from sparkwright.version import __version__

HERE = Path(__file__).parent
MODELS = (
    *(HostFile, ServedFile, FabricFile, GroupFile, ClusterFile, SecretSource),
    *(GatewayFile, TlsFile, GatewayLimits, ClientFile),
    *(RecipeFile, Model, Adapter, Container, Expect, ParallelFile),
    *(PlayFile, TaskFile, BlockFile, IncludeFile),
    *(LockFile, ImageEntry, ManifestEntry, ModelEntry, FileEntry),
)
SECTIONS = re.compile(r"<!-- sections -->.*?<!-- end -->", re.S)
RECIPES = re.compile(r"<!-- recipes -->.*?<!-- end -->", re.S)
ENGINES = re.compile(r"<!-- engines -->.*?<!-- end -->", re.S)
CODE = re.compile(r"<!-- code -->.*?<!-- end -->", re.S)
#: the line below the title of a decision that a later one changed
SUPERSEDED = re.compile(r"^\*Superseded (in part )?by (\[decisions? .*?\)(?:, \[.*?\)| and \[.*?\))*)", re.M)
PATHS = re.compile(r"<!-- paths -->.*?<!-- end -->", re.S)
TABLE = re.compile(r"<!-- table (\w+) -->.*?<!-- end -->", re.S)
#: a number in a sentence: a constant of defaults.py by its name, others as MODULE.NAME
VALUE = re.compile(r"<!-- value ([\w.]+) -->.*?<!-- end -->")
VALUES = {name: value for name, value in vars(defaults).items() if isinstance(value, int | float)}
PERCENTAGES = {"MIN_TOLERANCE": throughput.MIN_TOLERANCE, "MAX_TOLERANCE": throughput.MAX_TOLERANCE}


def pages() -> dict[Path, str]:
    """Return every generated file with its text."""
    tables = {model.__name__: keys_table(model) for model in MODELS}
    found = {HERE / "modules" / f"{name}.md": manual.module_page(name) for name in registry.NAMES}
    for kind in json_output.FILE_KINDS:
        found[HERE.parent / "schemas" / f"{kind}.json"] = json.dumps(json_output.schema(kind), indent=1) + "\n"
    found[HERE / "schemas" / "events.json"] = json.dumps(json_output.events_schema(), indent=1) + "\n"
    for command in json_output.COMMANDS:
        found[HERE / "schemas" / "json" / f"{command}.json"] = (
            json.dumps(json_output.command_schema(command), indent=1) + "\n"
        )
    for page in sorted((HERE / "files").glob("*.md")):
        text = page.read_text()
        text = SECTIONS.sub(f"<!-- sections -->\n{_sections()}\n<!-- end -->", text)
        found[page] = TABLE.sub(lambda m: f"<!-- table {m[1]} -->\n{tables[m[1]]}\n<!-- end -->", text)
    engines = HERE / "engines.md"
    found[engines] = ENGINES.sub(f"<!-- engines -->\n{_engines()}\n<!-- end -->", engines.read_text())
    book = HERE / "recipes.md"
    found[book] = RECIPES.sub(lambda _: f"<!-- recipes -->\n{_recipes()}\n<!-- end -->", book.read_text())
    comparison = HERE / "comparison.md"
    found[comparison] = CODE.sub(f"<!-- code -->\n{_code()}\n<!-- end -->", comparison.read_text())
    gateway = HERE / "gateway.md"
    found[gateway] = PATHS.sub(f"<!-- paths -->\n{_paths()}\n<!-- end -->", gateway.read_text())
    index = [
        f"# Modules\n\nGenerated from their docstrings; `invoke docs.module NAME` shows the same.\n\n```\n{manual.module_index()}\n```\n"
    ]
    for page in sorted(HERE.glob("*.md")):
        text = found.get(page) or page.read_text()
        if VALUE.search(text):
            found[page] = VALUE.sub(lambda m: f"<!-- value {m[1]} -->{_format_value(m[1])}<!-- end -->", text)
    return {
        **found,
        HERE / "commands.md": "\n".join(_commands()) + "\n",
        HERE / "modules" / "README.md": "".join(index),
        HERE / "decisions" / "README.md": _decisions(),
        HERE / "man" / "sparkwright.1": "\n".join(_man()) + "\n",
        HERE / "rules.md": _rules(),
        HERE / "metrics.md": _metrics(),
    }


def _format_value(name: str) -> str:
    module, _, constant = name.rpartition(".")
    if module:
        return f"{getattr(importlib.import_module(f'sparkwright.{module}'), constant):,g}"
    return f"{100 * PERCENTAGES[name]:g} %" if name in PERCENTAGES else f"{VALUES[name]:,g}"


def keys_table(model: type[BaseModel]) -> str:
    """Return a model's keys as a markdown table."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "required"
        if not field.is_required():
            default = f"`{_format_default(field.get_default(call_default_factory=True))}`"
        rows.append(f"| `{field.alias or name}` | {default} | {field.description or ''} |")
    return "\n".join(rows)


def _format_default(value: Any) -> str:
    if value in (None, "") or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, tuple):
        value = list(value)
    return str(value.model_dump() if isinstance(value, BaseModel) else value)


def _code() -> str:
    """Return the comparison's rows about this version, which come from tables in the code."""
    served = engine.list_supported()
    split = (item.title for item in served if item.parallel)
    rows = {
        "engines": ", ".join(item.title for item in served),
        "one model over several hosts": ", ".join(split),
        "recipes that ship": f"{len(recipe.names(HERE.parent))} ([the book](recipes.md))",
        "recipes are taken from": f"{format_detection.SUPPORTED_FORMATS_TEXT} ([how](recipes-in.md))",
        "recipes are written as": ", ".join(f"`{name}`" for name in recipe_exchange.EXPORT_FORMATS),
        "settings are written for": ", ".join(f"`{name}`" for name in client_formats.FORMATS),
        "a secret comes from": ", ".join(f"`{name}`" for name in SecretSource.model_fields),
        "commands": f"{sum(map(len, GROUPS.values()))} ([all](commands.md))",
    }
    return "| | |\n|---|---|\n" + "\n".join(f"| {title} | {text} |" for title, text in rows.items())


def _decisions() -> str:
    rows = ["| decision | in force |", "|---|---|"]
    for path in sorted((HERE / "decisions").glob("0*.md")):
        text = path.read_text()
        superseded = SUPERSEDED.search(text)
        state = "yes" if superseded is None else f"{'in part' if superseded[1] else 'no'}, see {superseded[2]}"
        rows.append(f"| [{text.splitlines()[0].removeprefix('# ')}]({path.name}) | {state} |")
    return f"{DECISIONS}\n" + "\n".join(rows) + "\n"


DECISIONS = """# Decisions

Why things are the way they are, and what else was considered. A decision that a later one changed says so below its title; its figures are
those of the day on which it was made.
"""


#: where a request names its model
NAMED = {"json": "JSON body", "form": "form", "response": "by the response"}


def _paths() -> str:
    """Return the paths that a gateway routes, and the releases from which each engine serves them."""
    engines = {name: engine.get_engine(name) for name in engine.TITLES}
    titles = [item.title for item in engines.values()]
    rows = [f"| path | `model` | {' | '.join(titles)} |", f"|---|---|{'---|' * len(titles)}"]
    for path in api_paths.merge_paths(item.http.paths for item in engines.values()):
        served = [_format_support(item.http.paths, path.path) for item in engines.values()]
        method = f"{path.method} " if path.method != "POST" else ""
        rows.append(f"| {method}`{path.path}` | {NAMED[path.model_location]} | {' | '.join(served)} |")
    return "\n".join(rows)


def _format_support(paths: tuple[api_paths.ApiPath, ...], path: str) -> str:
    found = next((item for item in paths if item.path == path), None)
    return "" if found is None else f"from {found.since}" if found.since else "yes"


def _commands() -> Iterator[str]:
    yield COMMANDS
    contexts = {context.name: context for context in namespace.to_contexts()}
    for title, commands in GROUPS.items():
        yield f"## {title}\n"
        for name, examples in commands.items():
            command = help.display_name(namespace, name)
            yield f"### {command}\n\n{inspect.getdoc(namespace[name])}\n"
            yield "```\n" + "\n".join(f"sparkwright {command} {words}".rstrip() for words in examples) + "\n```\n"
            yield "| option | meaning |\n|---|---|"
            yield from (_option(namespace[name], option) for option in contexts[name].args.values())
            yield ""


def _option(task: Any, option: Any) -> str:
    is_positional = option.positional or option.name == task.word
    name = option.name.upper() if is_positional else format_option(option).strip()
    return f"| `{name}` | {option.help.replace('|', chr(92) + '|')} |"


COMMANDS = """# Commands

Generated from the program's help: `sparkwright COMMAND --help` shows the same. In a project's folder, `invoke COMMAND` runs them too.

Six options have a short name, which is the same in every command: `-H` host, `-C` check, `-D` diff, `-v` verbose, `-j` json, `-d` debug.
Exit codes are in [exit-codes.md](exit-codes.md).

Tab completes commands, options, and the project's hosts, groups, recipes and playbooks:

```
eval "$(sparkwright completion bash)"        # in ~/.bashrc
eval "$(sparkwright completion zsh)"         # in ~/.zshrc
sparkwright completion fish | source         # in ~/.config/fish/config.fish
```
"""


def _man() -> Iterator[str]:
    """Yield the manual page, in troff's man macros."""
    released = re.search(r"^## (\S+) - (\S+)$", (HERE.parent / "CHANGELOG.md").read_text(), re.M)
    version, day = released.groups() if released else (__version__, "")
    yield f'.TH SPARKWRIGHT 1 "{day}" "sparkwright {version}" "User Commands"'
    yield from (".SH NAME", r"sparkwright \- provision and operate model servers on NVIDIA DGX Spark hosts")
    yield from (".SH SYNOPSIS", r".B sparkwright", r".I COMMAND", r"[\fIoptions\fR]", ".br", r".B sparkwright \-\-help")
    yield from (".SH DESCRIPTION", *_troff(MAN), ".SH COMMANDS")
    contexts = {context.name: context for context in namespace.to_contexts()}
    for title, commands in GROUPS.items():
        yield f".SS {title}"
        for name, examples in commands.items():
            command = help.display_name(namespace, name)
            yield from (
                ".TP",
                rf"\fB{_troff_word(command)}\fR",
                *_troff(inspect.getdoc(namespace[name]) or "", ".IP"),
                ".RS",
            )
            for option in contexts[name].args.values():
                yield from (
                    ".TP",
                    rf"\fB{_troff_word(format_option(option).strip())}\fR",
                    *_troff(option.help or "", ".IP"),
                )
            yield from (".RE", ".IP", ".nf")
            yield from (_troff_word(f"sparkwright {command} {words}".rstrip()) for words in examples)
            yield ".fi"
    yield ".SH EXIT STATUS"
    for code, name, meaning in re.findall(r"^\| (\d) \| (\w+) \| (.*) \|$", (HERE / "exit-codes.md").read_text(), re.M):
        yield from (".TP", rf"\fB{code}\fR {name}", *_troff(meaning, ".IP"))


def _troff(text: str, paragraph: str = ".PP") -> Iterator[str]:
    for number, part in enumerate(text.strip().split("\n\n")):
        if number:
            yield paragraph
        yield from (_troff_word(line.strip()) for line in part.splitlines())


def _troff_word(text: str) -> str:
    """Return text that troff prints literally: without backticks, commands and escapes, and with hyphens that can be copied."""
    text = text.replace("`", "").replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


MAN = """The laptop plans a run and follows it; the host does the work. A project is a folder with hosts/, recipes/ and spark.lock; sparkwright init
creates one. A deploy is done when the server has generated tokens at the expected rate; if anything fails, the previous server is restored.

sparkwright COMMAND --help shows the options of a command. sparkwright mcp offers the pages of the documentation to a model.
"""


def _sections() -> str:
    """Return one row for each supported engine, about the flags in its section."""
    rows = ["| section | known flags | set by another key | server's key | memory |", "|---|---|---|---|---|"]
    for item in engine.list_supported():
        reserved = ", ".join(f"`{name}`: `{key}`" for name, key in item.flags.RESERVED_FLAGS.items()) or "none"
        share = f"`{item.flags.MEMORY}`" if item.flags.MEMORY else "bytes, from its files and flags"
        key = f"read from a file (`{item.key.option}`)" if item.key else "none"
        key = "as `key` says" if item.needs_description else key
        rows.append(f"| `{item.name}` | {len(item.flags.properties())} | {reserved} | {key} | {share} |")
    return "\n".join(rows)


def _recipes() -> str:
    """Return one row for each shipped recipe: what it serves, and the best rate that others report."""
    head = "| recipe | model | engine | hosts | context | drafts | reported by others, tok/s of one stream | date of the recipe |"
    rows = [head, "|---|---|---|---|---|---|---|---|"]
    for name in recipe.names(HERE.parent):
        wanted = recipe.load(HERE.parent, name)
        model, flags = wanted.file.model.id, wanted.file.flags
        hosts = wanted.split.hosts if wanted.split else 1
        context = wanted.engine.flags.context(flags) or ""
        cells = (
            f"`{name}`",
            model,
            wanted.engine.title,
            hosts,
            context,
            _drafts(flags),
            _figure(catalogue.find_entry(name, model)),
        )
        rows.append(f"| {' | '.join(map(str, cells))} | {wanted.file.date or 'undated'} |")
    return "\n".join(rows)


def _figure(known: catalogue.CatalogueEntry) -> str:
    """Return the reported rate of a recipe, with source and date."""
    if known.reported_rate is None:
        return str(known.vendor_run or "none found")
    return f"{known.reported_rate.tok_per_s:g}: {known.reported_rate.source}, {known.reported_rate.date or 'no date'}"


def _drafts(flags: dict[str, object]) -> str:
    """Return the number of tokens that a recipe's engine drafts and the method; empty if it drafts none."""
    given = flags.get("speculative-config")
    if isinstance(given, dict):
        return f"{given['num_speculative_tokens']}, {given['method']}"
    method = flags.get("speculative-algorithm") or flags.get("spec-type")
    tokens = flags.get("speculative-num-draft-tokens") or flags.get("spec-draft-n-max")
    return f"{tokens}, {method}" if method else ""


def _engines() -> str:
    rows = (
        (name, title, "served" if engine.get_engine(name).is_supported else "not yet")
        for name, title in engine.TITLES.items()
    )
    return "\n".join(f"| `{name}` | {title} | {state} |" for name, title, state in rows)


def _metrics() -> str:
    labels = {
        textfile.STATE_METRIC.name: "`state`",
        textfile.INFO_METRIC.name: "`model`, `commit`, `image`, `container`",
    }
    rows = [
        f"| `{textfile.PREFIX}{metric.name}` | {labels.get(metric.name, '')} | {metric.description} |"
        for metric in (textfile.STATE_METRIC, textfile.INFO_METRIC, textfile.HEALS_METRIC, *textfile.METRICS)
    ]
    metrics = METRICS.replace("MAX_CHECK_AGE_S", str(alerts.MAX_CHECK_AGE_S))
    return f"{metrics}\n| metric | labels | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


METRICS = """# Metrics

Every health check writes its record as Prometheus text too. `invoke health.install --host HOST --textfile DIR` makes the checks
write it where node_exporter reads it ([alerts](alerts.md)): as `sparkwright.prom` in DIR, or on a host with several servers as
`sparkwright-CONTAINER.prom` for each, with the label `server`. Without `--textfile` the file is `health.prom` in the host's state folder.

All metrics are gauges in Prometheus's base units: seconds (timestamps end in `_timestamp_seconds`), bytes, hertz, watts, celsius, ratios
from 0 to 1. Unknown values have no sample. `monitoring.install --to DIR` writes alert rules. To write your own, alert on two conditions, a
bad state and checks that no longer run:

```
sparkwright_health_state{state=~"down|wedged|stalled|crash-looping"} == 1
time() - sparkwright_health_check_timestamp_seconds > MAX_CHECK_AGE_S
```
"""


def _rules() -> str:
    parts = [
        "# Rules\n\nWhat `invoke lint` checks, and a deploy before it touches a host. `invoke explain RULE` shows the same.\n"
    ]
    for name in sorted(rule_titles()):
        text = "\n\n".join(map(format_rule, find_rules(name)))
        parts.append(f"\n## {name}\n\n```\n{text}\n```\n")
    return "".join(parts)


def left_over() -> list[Path]:
    """Return the pages of modules that no longer exist."""
    current = pages()
    return [path for path in (HERE / "modules").glob("*.md") if path not in current]


if __name__ == "__main__":
    for path in left_over():
        path.unlink()
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
