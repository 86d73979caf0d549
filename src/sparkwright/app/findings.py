"""Check recipes: print the findings, explain the rules, and refuse a deploy whose recipe has errors."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from sparkwright.app.plans.pins import load_sandbox_lock, lock_entries
from sparkwright.app.queries import client_formats
from sparkwright.app.queries.client_formats import MIN_AGENT_CONTEXT, ClientFormat
from sparkwright.console.command_output import print_json_line, print_prose, print_text
from sparkwright.engines import dialects, engine, recipe_rules
from sparkwright.engines.advice import EXPECTED_PREFILL_RULE, EffectiveSettings, ServerRequest
from sparkwright.engines.findings import Finding, Fix, RuleExplanation, Rules, Severity
from sparkwright.engines.http import GENERATE
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.project import lockfile, recipe, shipped_files
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.folder import Project
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.engine_settings import ServerSettings, resolve_settings
from sparkwright.units import today
from sparkwright.visible import format_count

SEVERITY_WIDTH = 9
#: recipe key of a finding that is not about a flag, by the finding's `flag`
RECIPE_KEYS: dict[str, tuple[str, ...]] = {
    "": ("image",),
    "publish": ("container", "ports"),
    "server_key": ("server_key",),
    "model": ("model",),
    recipe_rules.ADAPTERS_KEY: (recipe_rules.ADAPTERS_KEY,),
    "probes": ("expect", "probes"),
    recipe_rules.DATE_KEY: (recipe_rules.DATE_KEY,),
}
TEXT_WIDTH = 100
SCHEMA_LINE_PREFIX = "# yaml-language-server:"
#: source of findings about a client's requirements
CLIENT_DOCS = "docs/gateway.md, Clients"
#: number of requests that an agent sends at a time
MIN_AGENT_REQUESTS = 4


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe with its findings."""

    recipe: Recipe
    settings: ServerSettings
    #: the recipe's entries in the lock
    pins: Mapping[str, Any]
    #: True if the pins come from the sandbox's lock because spark.lock has none
    simulated: bool

    @property
    def engine(self) -> str:
        """The engine with its version, or the reason why the version is unknown."""
        title = self.recipe.engine.title
        if self.settings.version:
            return f"{title} {self.settings.version}"
        reason = "the first deploy reads it from the image" if self.pins["image"] else "not pinned yet"
        return f"engine version unknown ({reason})"

    @property
    def is_unremarkable(self) -> bool:
        """True if the recipe is unchanged from the shipped one and has no errors or warnings."""
        shipped_path = shipped_files.shipped_folder() / "recipes" / f"{self.recipe.name}.yml"
        recipe_path = self.recipe.source.path
        is_unchanged = shipped_path.is_file() and _lines_without_schema(shipped_path) == _lines_without_schema(
            recipe_path
        )
        return is_unchanged and all(finding.severity == "info" for finding in self.settings.findings)


def _lines_without_schema(path: Path) -> list[str]:
    """Return a recipe's lines without the schema comment for editors."""
    return [line for line in path.read_text().splitlines() if not line.startswith(SCHEMA_LINE_PREFIX)]


def check_recipes(name: str, engine_version: str, model: str) -> tuple[list[CheckedRecipe], list[Refused]]:
    """Check one recipe or all recipes of the project. Return the checked recipes and the errors of unreadable ones.

    Recipes in folders of recipes/, such as examples/, are checked if a host serves them.

    Args:
        name: empty to check all recipes.
        engine_version: replaces the version in the lock unless empty; for all recipes, only that of the default engine.
        model: replaces the model in the lock unless empty.

    Raises:
        Refused: the named recipe can't be read.
    """
    from sparkwright.app.stores import model_config

    project = Project.here()
    lock, sandbox_lock = lockfile.load(project.root), load_sandbox_lock()
    config = model_config.load_config(model) if model else None
    errors: list[Refused] = []
    if name:
        recipes = [recipe.load(project.root, name)]
        version_engine = recipes[0].engine
    else:
        recipes, errors = recipe.load_valid(project.root, _nested_recipes_of_hosts(project))
        version_engine = engine.get_engine(engine.DEFAULT_ENGINE)
    named_version = _parse_version(version_engine, engine_version)
    checked_recipes = []
    for candidate in recipes:
        version = named_version if candidate.engine.name == version_engine.name else None
        locked_pins, sandbox_pins = lock_entries(lock, candidate), lock_entries(sandbox_lock, candidate)
        pins = _merge_pins(locked_pins, sandbox_pins)
        settings = resolve_settings(candidate, pins, model=config, version=version)
        age_findings = recipe_rules.AGE_RULES.check(recipe_rules.AgeCase(candidate.file.date, today()))
        settings = replace(settings, findings=(*settings.findings, *age_findings))
        checked_recipes.append(CheckedRecipe(candidate, settings, pins, simulated=pins != locked_pins))
    return checked_recipes, errors


def _nested_recipes_of_hosts(project: Project) -> list[str]:
    """Return the recipes in folders of recipes/ that hosts serve; empty if the hosts' files are invalid, which `plan` reports."""
    try:
        hosts = Inventory.load(project.root).hosts.values()
    except Refused:
        return []
    return sorted({host.recipe for host in hosts if host.recipe and "/" in host.recipe})


def _merge_pins(locked_pins: Mapping[str, Any], sandbox_pins: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lock's entries, with missing ones taken from the sandbox's lock."""
    pins = {kind: locked_pins[kind] or sandbox_pins[kind] for kind in ("image", "model")}
    further_models = {
        role: entry or sandbox_pins["models"][role] for role, entry in (locked_pins.get("models") or {}).items()
    }
    return {**pins, **({"models": further_models} if further_models else {})}


def _parse_version(engine_type: engine.Engine, text: str) -> Version | None:
    version = engine_type.advice.version(text)
    if text and version is None:
        fix = (
            "For example 0.32.0, 0.29.0+nv26.09 or 0.16.1rc1.dev42."
            if engine_type.name == engine.DEFAULT_ENGINE
            else ""
        )
        raise Refused(f"{text!r} is not a version of {engine_type.title}.", fix=fix)
    return version


def print_findings_text(
    checked_recipes: list[CheckedRecipe],
    unreadable_count: int = 0,
    other_error_count: int = 0,
    *,
    include_unremarkable: bool = True,
) -> None:
    """Print a paragraph for each recipe, with file and line of each finding, errors first, and then the totals.

    Args:
        unreadable_count: number of recipes that could not be read.
        other_error_count: number of errors in the project's other files.
        include_unremarkable: list recipes that are as shipped and have no errors or warnings, not only count them.
    """
    unremarkable_recipes = (
        []
        if include_unremarkable
        else [checked_recipe for checked_recipe in checked_recipes if checked_recipe.is_unremarkable]
    )
    for checked_recipe in checked_recipes:
        if checked_recipe not in unremarkable_recipes:
            _print_recipe(checked_recipe)
    severities = [
        finding.severity for checked_recipe in checked_recipes for finding in checked_recipe.settings.findings
    ]
    counts = ", ".join(format_count(severities.count(kind), kind) for kind in ("error", "warning"))
    unreadable_note = f", {unreadable_count} not readable" if unreadable_count else ""
    hidden_note = (
        f"; {len(unremarkable_recipes)} as shipped and fine (`--verbose` lists them)" if unremarkable_recipes else ""
    )
    print_prose(
        f"{format_count(len(checked_recipes) + unreadable_count, 'recipe')}: {counts}{unreadable_note}{hidden_note}"
    )
    if other_error_count:
        print_prose(f"Other files of the project: {format_count(other_error_count, 'error')}")


def _print_recipe(checked_recipe: CheckedRecipe) -> None:
    settings, recipe = checked_recipe.settings, checked_recipe.recipe
    pin_note = "; pinned by the sandbox" if checked_recipe.simulated else ""
    print_prose(f"{recipe.name}: {settings.architecture.description}, {checked_recipe.engine}{pin_note}")
    for finding in settings.findings:
        print_prose(f"  {finding.severity:<{SEVERITY_WIDTH}}{finding_location(recipe, finding)}: {finding.sentence}")
        print_prose(f"  {'':<{SEVERITY_WIDTH}}{format_advice(finding)}")
    if settings.note:
        print_prose(f"  {'note':<{SEVERITY_WIDTH}}chunked prefill: {settings.note}")


def print_json(checked_recipes: list[CheckedRecipe], playbooks: list[dict[str, Any]]) -> None:
    """Print one JSON object: the recipes with their findings, and the project's playbooks whose originals have changed."""
    rows = [
        {
            "recipe": checked_recipe.recipe.name,
            "engine_version": str(checked_recipe.settings.version) if checked_recipe.settings.version else None,
            "kind": checked_recipe.settings.architecture.kind,
            "simulated": checked_recipe.simulated,
            "note": checked_recipe.settings.note or None,
            "findings": [
                {**finding.to_json(), "where": finding_location(checked_recipe.recipe, finding)}
                for finding in checked_recipe.settings.findings
            ],
        }
        for checked_recipe in checked_recipes
    ]
    print_json_line({"recipes": rows, "playbooks": playbooks})


def explain(name: str | None, *, as_json: bool) -> None:
    """Print a rule, or the names and titles of all rules if `name` is None. Raises Refused for an unknown rule."""
    titles = rule_titles()
    if name is None:
        lines = (f"{rule:<40} {title}" for rule, title in sorted(titles.items()))
        print_text(json.dumps(titles) if as_json else "\n".join(lines))
        return
    matches = _sort_by_relevance(find_rules(name))
    if not matches:
        raise Refused(f"no rule {name!r}.", fix=suggest_name(name, titles))
    print_text(
        json.dumps(_rule_json(matches[0]), ensure_ascii=False) if as_json else "\n\n".join(map(format_rule, matches))
    )


def find_rules(name: str) -> list[RuleExplanation]:
    """Return the rules with this name, those for all engines first; several engines may use one name."""
    return [rule for rules in _all_rules() if (rule := rules.explain_rule(name)) is not None]


def _all_rules() -> Iterator[Rules[Any, Any]]:
    """Yield the rules for all engines, then those of each engine."""
    yield from recipe_rules.RULES
    for served_engine in engine.list_supported():
        yield from served_engine.advice.RULES


def _sort_by_relevance(matches: list[RuleExplanation]) -> list[RuleExplanation]:
    """Sort rules of the same name: engines with findings in the project's recipes first, then other engines in use."""
    if len(matches) < 2:
        return matches
    try:
        checked_recipes, _ = check_recipes("", "", "")
    except SparkwrightError:
        return matches
    used_engines = {checked_recipe.recipe.engine.name for checked_recipe in checked_recipes}
    engines_with_findings = {
        checked_recipe.recipe.engine.name
        for checked_recipe in checked_recipes
        for finding in checked_recipe.settings.findings
        if finding.rule == matches[0].name
    }
    return sorted(matches, key=lambda rule: (rule.engine not in engines_with_findings, rule.engine not in used_engines))


def rule_titles() -> dict[str, str]:
    """Return the titles of all rules, by name; of rules with the same name, the first title."""
    titles = [rules.titles() for rules in _all_rules()]
    return {name: title for rules_titles in reversed(titles) for name, title in rules_titles.items()}


def finding_location(recipe: Recipe, finding: Finding) -> str:
    """Return "file:line" of the flag or key that a finding is about."""
    if finding.flag in recipe.file.flags:
        return recipe.where(finding.flag)
    if finding.flag.startswith(("container.", "expect.")):
        return recipe.source.where(*finding.flag.split("."))
    if finding.rule == EXPECTED_PREFILL_RULE or finding.flag == (recipe.engine.advice.CHUNKED_PREFILL_FLAG or None):
        return recipe.source.where("expect", "chunked_prefill")
    return recipe.source.where(*RECIPE_KEYS.get(finding.flag, (recipe.file.engine,)))


def format_advice(finding: Finding) -> str:
    """Return the ways to resolve a finding, and where the reason is explained."""
    advice = "; or ".join(way.text for way in finding.ways_out)
    reason = f"`invoke explain {finding.rule}`" if finding.rule else finding.source
    return f"{advice[:1].upper()}{advice[1:]}{'. ' if advice else ''}Why: {reason}."


def refuse_errors(recipe: Recipe, settings: ServerSettings) -> None:
    """Raise Refused with the first error and the number of further errors."""
    errors = settings.errors
    if not errors:
        return
    more_errors = f" ({len(errors) - 1} more: `invoke lint --recipe {recipe.name}`)" if len(errors) > 1 else ""
    raise Refused(
        f"{errors[0].sentence}{more_errors}", where=finding_location(recipe, errors[0]), fix=format_advice(errors[0])
    )


def plan_warnings(recipe: Recipe, settings: ServerSettings) -> list[str]:
    """Return the warnings about a recipe that a plan prints.

    They concern unsafe container options, and flag values that the engine may reject: which values its release allows may
    be unknown until the image has been pulled.
    """
    return [
        f"{finding_location(recipe, finding)}: {finding.sentence}"
        for finding in settings.findings
        if finding.severity == "warning"
        and (finding.rule == "flag-value" or finding.flag.startswith(("container.", "expect.")))
    ]


def plan_notices(settings: ServerSettings) -> list[str]:
    """Return the notices that a plan prints once for all hosts with a recipe: that the engine is newer than the flag tables."""
    return [finding.sentence for finding in settings.findings if finding.rule == "newer-release"]


def format_rule(rule: RuleExplanation) -> str:
    """Return a rule as text: reason, sources, and an example with its finding."""
    sections = {"parallel": dict(rule.parallel), rule.engine: dict(rule.flags), "container": dict(rule.container)}
    example = {name: section for name, section in sections.items() if section}
    example_yaml = yaml.safe_dump(example, sort_keys=False).rstrip() if example else ""
    engine_title = engine.TITLES.get(rule.engine, "every engine")
    engine_release = f"{engine_title} {rule.version}" if rule.version else ""
    lines = [f"{rule.name}: {rule.title}", ""]
    for paragraph in rule.reason.split("\n\n"):
        lines += [*textwrap.wrap(paragraph, TEXT_WIDTH), ""]
    lines += ["Sources:", *(f"  * {source}" for source in rule.sources), ""]
    example_title = ", ".join(filter(None, (engine_release, rule.image))) or engine_title
    lines += [f"Example ({example_title}):"]
    lines += [f"  {line}" for line in example_yaml.splitlines()]
    finding = rule.finding
    lines += [f"  -> {finding.severity}: {finding.sentence}", *(f"     fix: {way.text}" for way in finding.ways_out)]
    return "\n".join(lines)


def _rule_json(rule: RuleExplanation) -> dict[str, Any]:
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


def add_client_findings(checked_recipes: list[CheckedRecipe], client: str) -> list[CheckedRecipe]:
    """Return the recipes with findings about a client's requirements added. Raises Refused for an unknown client."""
    client_format = client_formats.get_format(client)
    extended_recipes = []
    for checked_recipe in checked_recipes:
        findings = (*checked_recipe.settings.findings, *_check_client(client, client_format, checked_recipe))
        extended_recipes.append(replace(checked_recipe, settings=replace(checked_recipe.settings, findings=findings)))
    return extended_recipes


def _check_client(client: str, client_format: ClientFormat, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    """Yield a finding for each unmet requirement of a client. Only recipes that generate text are checked."""
    if checked_recipe.recipe.file.task != GENERATE:
        return
    recipe_engine, version = checked_recipe.recipe.engine, checked_recipe.settings.version
    for path, clause in client_formats.find_missing_paths(client_format, recipe_engine, version).items():
        severity: Severity = "error" if path == client_format.path else "warning"
        fix = Fix("use a release or an engine that serves this path")
        yield Finding(severity, f"{client} calls {path}, {clause}.", (fix,), CLIENT_DOCS)
    if client_format.is_agent:
        yield from _check_agent(client, client_format, checked_recipe)


def _check_agent(client: str, client_format: ClientFormat, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    recipe_engine, flags = checked_recipe.recipe.engine, dict(checked_recipe.settings.flags)
    request = ServerRequest(flags, checked_recipe.recipe.image)
    effective_settings: EffectiveSettings = recipe_engine.advice.effective_settings(
        request, (checked_recipe.pins["model"] or {}).get("config") or {}, checked_recipe.settings.version
    )
    context = recipe_engine.flags.context(flags) or effective_settings.max_model_len
    if context is not None and context < MIN_AGENT_CONTEXT:
        message = f"{client} needs a context of at least {MIN_AGENT_CONTEXT} tokens, but this recipe has {context}."
        yield Finding("error", message, (Fix("raise the context length"),), CLIENT_DOCS)
    named_flags = {} if recipe_engine.needs_description else recipe_engine.flags.normalize(flags)
    missing_flags = recipe_engine.probe_flags.missing_flags("tool_call", named_flags)
    if missing_flags:
        flags_text = " and ".join(f"`{flag}`" for flag in missing_flags)
        message = f"{client} calls tools, but this server is started without {flags_text}."
        yield Finding("error", message, (Fix("set the flags that this model's tool calls need"),), CLIENT_DOCS)
    if effective_settings.prefix_caching is False:
        message = f"{client} sends its long instructions with each request, but prefix caching is off."
        yield Finding("warning", message, (Fix("turn on prefix caching"),), CLIENT_DOCS)
    if 0 < effective_settings.max_num_seqs < MIN_AGENT_REQUESTS:
        limit = effective_settings.max_num_seqs
        message = f"{client} sends several requests at once, but this server handles {limit} at a time."
        yield Finding("warning", message, (Fix("allow more concurrent requests"),), CLIENT_DOCS)
    dialect = dialects.DIALECTS_BY_PATH[client_format.path]
    probe = dialect.name if dialect.name in dialects.OTHER_DIALECTS else "tool_call"
    if probe not in checked_recipe.recipe.file.expect.probes:
        message = f"no probe checks that this server answers as {client} expects."
        yield Finding("info", message, (Fix(f"add `{probe}` to `expect.probes`"),), CLIENT_DOCS, "probes")
