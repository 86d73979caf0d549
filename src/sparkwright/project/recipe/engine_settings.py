"""Resolves a recipe's settings: the flags with which the engine will run, and the findings about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from sparkwright.engines import budget, container_rules, recipe_rules
from sparkwright.engines.advice import Kind, PrefillExpectation, ServerRequest
from sparkwright.engines.engine import Engine
from sparkwright.engines.findings import SEVERITIES, Finding
from sparkwright.engines.http import GENERATE
from sparkwright.engines.memory import Memory
from sparkwright.engines.model import chat_template, roofline
from sparkwright.project import catalogue
from sparkwright.project.recipe.recipe import Recipe
from sparkwright.trust.container_option_rules import normalize_mount_point


@dataclass(frozen=True)
class ServerSettings:
    """The settings with which a recipe's engine will run, with the findings about them."""

    engine: Engine
    #: command-line flags
    flags: Mapping[str, Any]
    #: state of chunked prefill that the engine log must show
    expected: PrefillExpectation
    #: reason why `expected` differs from the recipe; empty if it does not
    note: str
    findings: tuple[Finding, ...]
    architecture: Kind
    #: version of the engine; None if unknown
    version: Version | None

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as playbooks see them in `engine`."""
        return {
            "name": self.engine.name,
            "flags": dict(self.flags),
            "chunked_prefill": self.expected,
            "note": self.note,
            "model_by_flag": True,  # for playbooks ejected from an earlier release
            "key": {"mount": key.mount, "suffix": key.suffix} if (key := self.engine.key) else None,
            "version": str(self.version) if self.version else None,
        }


def resolve_settings(
    recipe: Recipe, pinned: Mapping[str, Any], *, model: Mapping[str, Any] | None = None, version: Version | None = None
) -> ServerSettings:
    """Return the engine settings of a recipe.

    Args:
        pinned: the lock's entries, {"image": ..., "model": ..., "models": {role: ...}}.
        model: content of config.json to use instead of the lock's.
        version: engine version to use instead of the lock's.
    """
    image_entry, model_entry = pinned.get("image") or {}, pinned.get("model") or {}
    engine, expect = recipe.engine, recipe.file.expect
    locked_version = engine.advice.version(image_entry.get("engine_version"))
    version = version or locked_version
    config = model if model is not None else model_entry.get("config") or {}
    further_entries = pinned.get("models") or {}
    flags = recipe.with_models({**recipe.file_flags(model_entry), **recipe.file.flags}, further_entries)
    request = _build_request(recipe, flags, pinned)
    decision = engine.advice.decide_chunked_prefill(
        request, config, version, expect.chunked_prefill, expect.when_impossible
    )
    options = image_entry.get("options") if locked_version == version else None
    image_options = engine.image.restore_options(options) if engine.image else {}
    request = _build_request(recipe, decision.flags, pinned)
    findings = [*engine.advice.check(request, config, version, image_options), *container_rules.RULES.check(request)]
    memory = engine.advice.memory(decision.flags, model_entry)
    if memory.flag in ("", *engine.flags.normalize(decision.flags)):
        findings += budget.RULES.check(budget.BudgetCase(memory, request.container, request.platform))
    if recipe.file.task == GENERATE:
        chat = chat_template.select_server_chat(pinned) if model is None else {}
        template_case = recipe_rules.TemplateCase(engine.flags.normalize(decision.flags), chat, engine.name)
        findings += recipe_rules.TEMPLATE_RULES.check(template_case)
    findings += recipe_rules.RECIPE_RULES.check(_build_recipe_case(recipe, request, config, version))
    if recipe.file.adapters and engine.flags.ADAPTER_FLAGS is not None:
        adapter_case = _build_adapter_case(recipe, engine.flags.normalize(decision.flags), config, further_entries)
        findings += recipe_rules.ADAPTER_RULES.check(adapter_case)
    if recipe.split is not None and engine.parallel is not None:
        findings += engine.parallel.check(recipe.split, decision.flags, config, version)
    findings += [decision.finding] if decision.finding is not None else []
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    architecture = engine.advice.kind(config)
    return ServerSettings(
        engine, decision.flags, decision.expected, decision.note, tuple(findings), architecture, version
    )


def compute_memory(recipe: Recipe, pinned: Mapping[str, Any]) -> Memory:
    """Return the host memory that a recipe's server uses with its resolved flags. pinned: see `resolve_settings`."""
    return recipe.memory(pinned.get("model") or {}, resolve_settings(recipe, pinned).flags, pinned.get("models"))


def _build_adapter_case(
    recipe: Recipe, flags: Mapping[str, Any], config: Mapping[str, Any], further_entries: Mapping[str, Any]
) -> recipe_rules.AdapterCase:
    adapters = {}
    for adapter in recipe.file.adapters:
        entry = further_entries.get(adapter.role) or {}
        adapters[adapter.name] = {**(entry.get("adapter") or {}), "config": entry.get("config")}
    return recipe_rules.AdapterCase(flags, recipe.file.model.id, config, adapters, recipe.engine.name)


def _build_recipe_case(
    recipe: Recipe, request: ServerRequest, config: Mapping[str, Any], version: Version | None
) -> recipe_rules.RecipeCase:
    expect, token_bytes = recipe.file.expect, catalogue.find_bytes_per_token(recipe.file.model.id)
    max_rate = roofline.ceiling(roofline.GB10 if recipe.file.platform == "gb10" else None, token_bytes) or 0.0
    return recipe_rules.RecipeCase(
        recipe.engine.flags.normalize(request.flags),
        recipe.engine.name,
        tok_per_s=expect.tok_per_s or 0.0,
        max_tok_per_s=max_rate * (recipe.split.tensor if recipe.split else 1),
        streams=expect.load.streams if expect.load else 0,
        max_requests=recipe.engine.advice.effective_settings(request, config, version).max_num_seqs,
        speculates=recipe.engine.http.speculates(recipe.engine.flags.command(recipe.file.model.mount, request.flags)),
    )


def _build_request(recipe: Recipe, flags: Mapping[str, Any], pinned: Mapping[str, Any]) -> ServerRequest:
    further_entries = pinned.get("models") or {}
    models = [(recipe.file.model.mount, pinned.get("model"))]
    models += [(model.mount, further_entries.get(role)) for role, model in recipe.file.further_models.items()]
    return ServerRequest(
        flags,
        recipe.image,
        recipe.file.platform,
        recipe.file.container.env,
        has_server_key=recipe.file.server_key is not None,
        open_to_network=recipe.open_to_network,
        published_port=recipe.published_container_port,
        ascend=recipe.file.ascend.model_dump() if recipe.file.ascend else None,
        container=recipe.file.container.model_dump(),
        pinned_files={
            normalize_mount_point(mount): [str(row["path"]) for row in (entry or {}).get("files") or ()]
            for mount, entry in models
        },
    )
