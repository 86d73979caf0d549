"""Findings about a recipe, as text on the screen and as errors that refuse a deploy before it begins."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from sparkwright.app.plans.pins import entries, simulated
from sparkwright.app.questions import client_formats
from sparkwright.app.questions.client_formats import AGENT_CONTEXT, Format
from sparkwright.console.out import say, say_json, say_prose
from sparkwright.engines import api_paths, dialects, engine, recipe_rules
from sparkwright.engines.advice import EXPECTED, Effective, ServerRequest
from sparkwright.engines.findings import Explained, Finding, Rules, Way
from sparkwright.engines.http import GENERATE
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.project import lockfile, recipe, shipped_files
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.engine_settings import Serving, serving
from sparkwright.units import today
from sparkwright.visible import count

WIDTH = 8
#: key of the recipe that a finding refers to if it is not about a flag
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "": ("image",),
    "publish": ("container", "ports"),
    "server_key": ("server_key",),
    "model": ("model",),
    recipe_rules.ADAPTERS: (recipe_rules.ADAPTERS,),
    "probes": ("expect", "probes"),
    recipe_rules.DATE: (recipe_rules.DATE,),
}
PAGE = 100
SCHEMA_LINE = "# yaml-language-server:"


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe with its findings."""

    recipe: Recipe
    served: Serving
    #: the recipe's entries in the lock
    pins: Mapping[str, Any]
    #: True if the pins come from the sandbox's lock because spark.lock has none
    simulated: bool

    @property
    def engine(self) -> str:
        """The engine with its version, or the reason why the version is unknown."""
        title = self.recipe.engine.title
        if self.served.version:
            return f"{title} {self.served.version}"
        why = "the first deploy reads it from the image" if self.pins["image"] else "not pinned yet"
        return f"engine version unknown ({why})"

    @property
    def is_plain(self) -> bool:
        """True if the recipe is unchanged since it was shipped and has no error or warning."""
        shipped = shipped_files.source() / "recipes" / f"{self.recipe.name}.yml"
        unchanged = shipped.is_file() and _body(shipped) == _body(self.recipe.source.path)
        return unchanged and all(finding.severity == "info" for finding in self.served.findings)


def _body(path: Path) -> list[str]:
    """Return the lines of a recipe, except the one that names its schema for editors."""
    return [line for line in path.read_text().splitlines() if not line.startswith(SCHEMA_LINE)]


def check(name: str, engine_version: str, model: str) -> tuple[list[CheckedRecipe], list[Refused]]:
    """Check one recipe or all recipes of the project. Return the checked recipes and the errors of unreadable ones.

    Args:
        engine_version: overrides the version in the lock; empty to use the lock's.
        model: overrides the model in the lock; empty to use the lock's.

    Raises:
        Refused: the named recipe can't be read.
    """
    from sparkwright.app.stores import model_config

    project = Project.here()
    lock, pretended = lockfile.load(project.root), simulated()
    config = model_config.read(model) if model else None
    recipes, refused = ([recipe.load(project.root, name)], []) if name else recipe.readable(project.root)
    checked = []
    for wanted in recipes:
        version = _version(wanted.engine, engine_version)
        known, of_sandbox = entries(lock, wanted), entries(pretended, wanted)
        pins = _or_simulated(known, of_sandbox)
        served = serving(wanted, pins, model=config, version=version)
        aged = recipe_rules.AGE_RULES.check(recipe_rules.AgeCase(wanted.file.date, today()))
        served = replace(served, findings=(*served.findings, *aged))
        checked.append(CheckedRecipe(wanted, served, pins, simulated=pins != known))
    return checked, refused


def _or_simulated(known: Mapping[str, Any], of_sandbox: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lock's entries, with missing ones taken from the sandbox's lock."""
    pins = {kind: known[kind] or of_sandbox[kind] for kind in ("image", "model")}
    second = {role: entry or of_sandbox["models"][role] for role, entry in (known.get("models") or {}).items()}
    return {**pins, **({"models": second} if second else {})}


def _version(of: engine.Engine, text: str) -> Version | None:
    version = of.advice.version(text)
    if text and version is None:
        fix = "As 0.32.0, 0.29.0+nv26.09 or 0.16.1rc1.dev42." if of.name == engine.USUAL else ""
        raise Refused(f"{text!r} is not a version of {of.title}.", fix=fix)
    return version


def print_lines(checked: list[CheckedRecipe], unreadable: int = 0, *, every: bool = True) -> None:
    """Print a paragraph for each recipe, with file and line of each finding, errors first, and then the totals.

    Args:
        unreadable: number of recipes that could not be read.
        every: include recipes that are as shipped and have no error or warning, which are otherwise summed up in one line.
    """
    as_shipped = [] if every else [checked_recipe for checked_recipe in checked if checked_recipe.is_plain]
    for checked_recipe in checked:
        if checked_recipe not in as_shipped:
            _print_recipe(checked_recipe)
    found = [finding.severity for checked_recipe in checked for finding in checked_recipe.served.findings]
    counts = ", ".join(count(found.count(kind), kind) for kind in ("error", "warning"))
    missing = f", {unreadable} not readable" if unreadable else ""
    hidden = f"; {len(as_shipped)} as shipped and fine (`--verbose` lists them)" if as_shipped else ""
    say_prose(f"{count(len(checked) + unreadable, 'recipe')}: {counts}{missing}{hidden}")


def _print_recipe(checked_recipe: CheckedRecipe) -> None:
    served, wanted = checked_recipe.served, checked_recipe.recipe
    whose = "; as the sandbox pinned it" if checked_recipe.simulated else ""
    say_prose(f"{wanted.name}: {served.architecture.sentence}, {checked_recipe.engine}{whose}")
    for finding in served.findings:
        say_prose(f"  {finding.severity:<{WIDTH}}{where(wanted, finding)}: {finding.sentence}")
        say_prose(f"  {'':<{WIDTH}}{advice(finding)}")
    if served.note:
        say_prose(f"  {'note':<{WIDTH}}chunked prefill: {served.note}")


def print_json(checked: list[CheckedRecipe], playbooks: list[dict[str, Any]]) -> None:
    """Print one JSON object: the recipes with their findings, and the project's playbooks that are based on older ones."""
    rows = [
        {
            "recipe": checked_recipe.recipe.name,
            "engine_version": str(checked_recipe.served.version) if checked_recipe.served.version else None,
            "kind": checked_recipe.served.architecture.kind,
            "simulated": checked_recipe.simulated,
            "note": checked_recipe.served.note or None,
            "findings": [
                {**finding.to_json(), "where": where(checked_recipe.recipe, finding)}
                for finding in checked_recipe.served.findings
            ],
        }
        for checked_recipe in checked
    ]
    say_json({"recipes": rows, "playbooks": playbooks})


def explain(name: str | None, *, as_json: bool) -> None:
    """Print a rule, or the names of all rules. Raises Refused for an unknown rule."""
    titles = rules()
    if name is None:
        say(json.dumps(titles) if as_json else "\n".join(f"{key:<40} {title}" for key, title in sorted(titles.items())))
        return
    found = _nearest_first(explained(name))
    if not found:
        raise Refused(f"no rule {name!r}.", fix=nearest(name, titles))
    say(json.dumps(_rule_json(found[0]), ensure_ascii=False) if as_json else "\n\n".join(map(rule_text, found)))


def explained(name: str) -> list[Explained]:
    """Return the rules of this name: those of each engine, and those for all engines."""
    return [rule for rules in _rules() if (rule := rules.explained(name)) is not None]


def _rules() -> Iterator[Rules[Any, Any]]:
    """Yield the rules for all engines, then those of each engine."""
    yield from recipe_rules.RULES
    for served in engine.served():
        yield from served.advice.RULES


def _nearest_first(found: list[Explained]) -> list[Explained]:
    """Sort rules of the same name: those with findings in the project's recipes first, then those of its engines."""
    if len(found) < 2:
        return found
    try:
        checked, _ = check("", "", "")
    except SparkwrightError:
        return found
    used = {checked_recipe.recipe.engine.name for checked_recipe in checked}
    hit = {
        checked_recipe.recipe.engine.name
        for checked_recipe in checked
        for row in checked_recipe.served.findings
        if row.rule == found[0].name
    }
    return sorted(found, key=lambda rule: (rule.engine not in hit, rule.engine not in used))


def rules() -> dict[str, str]:
    """Return the titles of all engines' rules, by name."""
    titles = [rules.titles() for rules in _rules()]
    return {name: title for row in reversed(titles) for name, title in row.items()}


def where(wanted: Recipe, finding: Finding) -> str:
    """Return "file:line" of the flag or key that a finding is about."""
    if finding.flag in wanted.file.flags:
        return wanted.where(finding.flag)
    if finding.flag.startswith("container."):
        return wanted.source.where(*finding.flag.split("."))
    if finding.rule == EXPECTED or finding.flag == (wanted.engine.advice.CHUNKED_PREFILL or None):
        return wanted.source.where("expect", "chunked_prefill")
    return wanted.source.where(*ELSEWHERE.get(finding.flag, (wanted.file.engine,)))


def advice(finding: Finding) -> str:
    """Return the ways to resolve a finding, in one sentence, with a reference for the reason."""
    ways = "; or ".join(way.text for way in finding.ways_out)
    why = f"`invoke explain {finding.rule}`" if finding.rule else finding.source
    return f"{ways[:1].upper()}{ways[1:]}{'. ' if ways else ''}Why: {why}."


def refuse_errors(wanted: Recipe, served: Serving) -> None:
    """Raise Refused for the first error, with the number of further errors."""
    errors = served.errors
    if not errors:
        return
    more = f" ({len(errors) - 1} more: `invoke lint --recipe {wanted.name}`)" if len(errors) > 1 else ""
    raise Refused(f"{errors[0].sentence}{more}", where=where(wanted, errors[0]), fix=advice(errors[0]))


def doubts(wanted: Recipe, served: Serving) -> list[str]:
    """Return the warnings that a plan prints about a recipe in advance.

    They concern unsafe container options, and values that the engine may refuse, because the choices of its release may be
    unknown until the image has been pulled.
    """
    warnings = [finding for finding in served.findings if finding.severity == "warning"]
    shown = [warning for warning in warnings if warning.rule == "flag-value" or warning.flag.startswith("container.")]
    return [f"{where(wanted, finding)}: {finding.sentence}" for finding in shown]


def notices(served: Serving) -> list[str]:
    """Return the notices that a plan prints once for all hosts of a recipe, such as an engine newer than the tables."""
    return [finding.sentence for finding in served.findings if finding.rule == "newer-release"]


def rule_text(rule: Explained) -> str:
    """Return the text of a rule: its reason, its sources, and its findings about an example."""
    parts = {"parallel": dict(rule.parallel), rule.engine: dict(rule.flags), "container": dict(rule.container)}
    shown = {name: part for name, part in parts.items() if part}
    flags = yaml.safe_dump(shown, sort_keys=False).rstrip() if shown else ""
    title = engine.TITLES.get(rule.engine, "every engine")
    serves = f"{title} {rule.version}" if rule.version else ""
    lines = [f"{rule.name}: {rule.title}", ""]
    for paragraph in rule.reason.split("\n\n"):
        lines += [*textwrap.wrap(paragraph, PAGE), ""]
    lines += ["Sources:", *(f"  * {source}" for source in rule.sources), ""]
    about = ", ".join(filter(None, (serves, rule.image))) or title
    lines += [f"Example ({about}):"]
    lines += [f"  {line}" for line in flags.splitlines()]
    found = rule.finding
    lines += [f"  -> {found.severity}: {found.sentence}", *(f"     fix: {way.text}" for way in found.ways_out)]
    return "\n".join(lines)


def _rule_json(rule: Explained) -> dict[str, Any]:
    return {
        "rule": rule.name,
        "title": rule.title,
        "reason": rule.reason,
        "sources": list(rule.sources),
        "example": {
            "flags": dict(rule.flags),
            "parallel": dict(rule.parallel),
            "version": rule.version,
            "finding": rule.finding.to_json(),
        },
    }


# Requirements that a server has to meet for a client: path, context, tools, prefix cache.
#
# Sources: docs/gateway.md, Clients.

SOURCE = "docs/gateway.md, Clients"
#: an agent sends several requests at once
LEAST_REQUESTS = 4


def with_client_needs(checked: list[CheckedRecipe], client: str) -> list[CheckedRecipe]:
    """Return the recipes with findings about a client's requirements added. Raises Refused for an unknown client."""
    form = client_formats.named(client)
    return [
        replace(
            checked_recipe,
            served=replace(
                checked_recipe.served,
                findings=(*checked_recipe.served.findings, *_lacking(client, form, checked_recipe)),
            ),
        )
        for checked_recipe in checked
    ]


def _lacking(client: str, form: Format, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    """Yield a finding for each requirement of a client that a recipe does not meet.

    There are none for a recipe that does not generate text.
    """
    if checked_recipe.recipe.file.task != GENERATE:
        return
    own = checked_recipe.recipe.engine
    if form.path not in api_paths.names(own.http.paths):
        sentence = f"{client} calls {form.path}, which {own.title} is not known to serve."
        yield Finding("error", sentence, (Way("serve it with an engine that does"),), SOURCE)
    if form.agent:
        yield from _of_agent(client, form, checked_recipe)


def _of_agent(client: str, form: Format, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    own, flags = checked_recipe.recipe.engine, dict(checked_recipe.served.flags)
    request = ServerRequest(flags, checked_recipe.recipe.image)
    effective: Effective = own.advice.effective(
        request, (checked_recipe.pins["model"] or {}).get("config") or {}, checked_recipe.served.version
    )
    context = own.flags.context(flags) or effective.max_model_len
    if context is not None and context < AGENT_CONTEXT:
        sentence = f"{client} needs a context of {AGENT_CONTEXT} tokens or more, and this one has {context}."
        yield Finding("error", sentence, (Way("raise it"),), SOURCE)
    named = {} if own.needs_description else own.flags.named(flags)
    missing = [flag for flag in own.probe_flags.needs.get("tool_call", ()) if named.get(flag) in (None, False)]
    if missing:
        sentence = (
            f"{client} calls tools, but this server is started without {' and '.join(f'`{flag}`' for flag in missing)}."
        )
        yield Finding("error", sentence, (Way("add what this model's parser needs"),), SOURCE)
    if effective.prefix_caching is False:
        sentence = f"{client} sends its long instructions with each request, but prefix caching is off."
        yield Finding("warning", sentence, (Way("turn it on"),), SOURCE)
    if 0 < effective.max_num_seqs < LEAST_REQUESTS:
        sentence = (
            f"{client} sends several requests at once, but this server handles {effective.max_num_seqs} at a time."
        )
        yield Finding("warning", sentence, (Way("allow more"),), SOURCE)
    yield from _unproved(client, form, checked_recipe)


def _unproved(client: str, form: Format, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    """Yield a finding if the recipe lacks the probe that would prove a requirement."""
    dialect = dialects.BY_PATH[form.path]
    probe = dialect.name if dialect.name in dialects.OTHERS else "tool_call"
    if probe not in checked_recipe.recipe.file.expect.probes:
        sentence = f"nothing proves that this server answers as {client} expects."
        yield Finding("info", sentence, (Way(f"add `{probe}` to `expect.probes`"),), SOURCE, "probes")
