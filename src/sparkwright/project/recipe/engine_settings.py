"""A recipe as its engine will run it: the flags, adjusted to the expectations, and the findings about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from sparkwright.engines import budget, container_rules, recipe_rules
from sparkwright.engines.advice import Kind, ServerRequest, Wanted
from sparkwright.engines.engine import Engine
from sparkwright.engines.findings import SEVERITIES, Finding
from sparkwright.engines.http import GENERATE
from sparkwright.engines.memory import Memory
from sparkwright.engines.model import chat_template
from sparkwright.project.recipe.recipe import Recipe
from sparkwright.trust.container_words import mount_point


@dataclass(frozen=True)
class Serving:
    """A recipe's settings as its engine will run them, with the findings about them."""

    engine: Engine
    #: flags as they are rendered
    flags: Mapping[str, Any]
    #: chunked prefill that the log must report
    expected: Wanted
    #: why that differs from the recipe
    note: str
    findings: tuple[Finding, ...]
    architecture: Kind
    #: version of the engine; None when neither lock nor caller knows it
    version: Version | None

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as playbooks see them, under the name `engine`."""
        return {
            "name": self.engine.name,
            "flags": dict(self.flags),
            "chunked_prefill": self.expected,
            "note": self.note,
            "model_by_flag": True,  # for playbooks that were ejected from an earlier release
            "key": {"mount": key.mount, "suffix": key.suffix} if (key := self.engine.key) else None,
            "version": str(self.version) if self.version else None,
        }


def serving(
    recipe: Recipe, pinned: Mapping[str, Any], *, model: Mapping[str, Any] | None = None, version: Version | None = None
) -> Serving:
    """Return the engine settings that follow from a recipe and the lock's entries.

    Args:
        pinned: the lock's entries, {"image": ..., "model": ..., "models": {role: ...}}.
        model: a model's config.json to use instead of the lock's.
        version: an engine's version to use instead of the lock's.
    """
    image_entry, model_entry = pinned.get("image") or {}, pinned.get("model") or {}
    engine, expect = recipe.engine, recipe.file.expect
    own_version = engine.advice.version(image_entry.get("engine_version"))
    version = version or own_version
    config = model if model is not None else model_entry.get("config") or {}
    wanted = expect.chunked_prefill, expect.when_impossible
    second = pinned.get("models") or {}
    flags = recipe.with_models({**recipe.file_flags(model_entry), **recipe.file.flags}, second)
    decided = engine.advice.decide(_asked(recipe, flags, pinned), config, version, *wanted)
    options = image_entry.get("options") if own_version == version else None
    listed = engine.image.applied(options) if engine.image else {}
    request = _asked(recipe, decided.flags, pinned)
    found = [*engine.advice.check(request, config, version, listed), *container_rules.RULES.check(request)]
    memory = engine.advice.memory(decided.flags, model_entry)
    if memory.flag in ("", *engine.flags.named(decided.flags)):
        found += budget.RULES.check(budget.Case(memory, request.container, request.platform))
    chat = chat_template.of_server(pinned) if model is None else {}
    if recipe.file.task == GENERATE:
        case = recipe_rules.TemplateCase(engine.flags.named(decided.flags), chat, engine.name)
        found += recipe_rules.TEMPLATE_RULES.check(case)
    if recipe.file.adapters and engine.flags.ADAPTERS is not None:
        found += recipe_rules.ADAPTER_RULES.check(_adapters(recipe, engine.flags.named(decided.flags), config, second))
    if recipe.split is not None and engine.parallel is not None:
        found += engine.parallel.check(recipe.split, decided.flags, config, version)
    found += [decided.finding] if decided.finding is not None else []
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    kind = engine.advice.kind(config)
    return Serving(engine, decided.flags, decided.expected, decided.note, tuple(found), kind, version)


def served_memory(recipe: Recipe, pinned: Mapping[str, Any]) -> Memory:
    """Return what a recipe's server takes of a host's memory, with the flags that it is started with.

    Args:
        recipe: The recipe.
        pinned: The lock's entries, as for `serving`.
    """
    return recipe.memory(pinned.get("model") or {}, serving(recipe, pinned).flags, pinned.get("models"))


def _adapters(
    recipe: Recipe, flags: Mapping[str, Any], config: Mapping[str, Any], second: Mapping[str, Any]
) -> recipe_rules.AdapterCase:
    entries = {adapter.name: (second.get(adapter.role) or {}) for adapter in recipe.file.adapters}
    about = {name: {**(entry.get("adapter") or {}), "config": entry.get("config")} for name, entry in entries.items()}
    return recipe_rules.AdapterCase(flags, recipe.file.model.id, config, about, recipe.engine.name)


def _asked(recipe: Recipe, flags: Mapping[str, Any], pinned: Mapping[str, Any]) -> ServerRequest:
    second = pinned.get("models") or {}
    models = [(recipe.file.model.mount, pinned.get("model"))]
    models += [(model.mount, second.get(role)) for role, model in recipe.file.further.items()]
    return ServerRequest(
        flags,
        recipe.image,
        recipe.file.platform,
        recipe.file.container.env,
        server_key=recipe.file.server_key is not None,
        open_to_network=recipe.open_to_network,
        published=recipe.published,
        ascend=recipe.file.ascend.model_dump() if recipe.file.ascend else None,
        container=recipe.file.container.model_dump(),
        pinned={
            mount_point(mount): [str(row["path"]) for row in (entry or {}).get("files") or ()]
            for mount, entry in models
        },
    )
