"""A recipe as one engine will run it: its flags after what is expected of them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from sparkwright.engines.vllm import expectation, rules, versions
from sparkwright.engines.vllm.architecture.architecture import Architecture, classify
from sparkwright.engines.vllm.flags import flag_shapes
from sparkwright.engines.vllm.flags import flags as flag_words
from sparkwright.engines.vllm.prediction import ascend
from sparkwright.engines.vllm.rules import Finding
from sparkwright.project.recipe.recipe import Recipe


@dataclass(frozen=True)
class Serving:
    """flags: as they are rendered. expected: what the log must say of chunked prefill. note: why that differs from the recipe.

    version: of the engine, None when neither lock nor caller knows it.
    """

    flags: Mapping[str, Any]
    expected: expectation.Wanted
    note: str
    findings: tuple[Finding, ...]
    architecture: Architecture
    version: Version | None

    @property
    def errors(self) -> list[Finding]:
        return [one for one in self.findings if one.severity == "error"]

    @property
    def model_by_flag(self) -> bool:
        """See `flags.takes_model_by_flag`."""
        return flag_words.takes_model_by_flag(self.version)

    def to_json(self) -> dict[str, Any]:
        """As playbooks see it, under the name `engine`."""
        return {
            "flags": dict(self.flags),
            "chunked_prefill": self.expected,
            "note": self.note,
            "model_by_flag": self.model_by_flag,
            "version": str(self.version) if self.version else None,
        }


def serving(
    recipe: Recipe, pinned: Mapping[str, Any], *, model: Mapping[str, Any] | None = None, version: Version | None = None
) -> Serving:
    """What follows from a recipe and the lock's entries, {"image": ..., "model": ...}.

    model, version: a model's config.json and an engine's version to take instead of the lock's.
    """
    image_entry, model_entry = pinned.get("image") or {}, pinned.get("model") or {}
    own_version = versions.parse(image_entry.get("engine_version"))
    version = version or own_version
    architecture = classify(model if model is not None else model_entry.get("config") or {})
    expect = recipe.file.expect
    asked = _asked(recipe, _flags(recipe))
    decided = expectation.decide(asked, architecture, version, expect.chunked_prefill, expect.when_impossible)
    listed = flag_shapes.applied(image_entry.get("options")) if own_version == version else {}
    found = rules.check(_asked(recipe, decided.flags), architecture, version, listed)
    found += [decided.finding] if decided.finding is not None else []
    found.sort(key=lambda finding: rules.SEVERITIES.index(finding.severity))
    return Serving(decided.flags, decided.expected, decided.note, tuple(found), architecture, version)


def _flags(recipe: Recipe) -> Mapping[str, Any]:
    flags, own = recipe.file.vllm, recipe.file.ascend
    return ascend.with_scheduler(flags, enabled=own.scheduler, chunked=own.chunked_prefill) if own else flags


def _asked(recipe: Recipe, flags: Mapping[str, Any]) -> rules.Asked:
    return rules.Asked(
        flags,
        recipe.image,
        recipe.file.platform,
        recipe.file.container.env,
        server_key=recipe.file.server_key is not None,
        open_to_network=recipe.open_to_network,
        published=recipe.published,
        container=recipe.file.container.model_dump(),
    )
