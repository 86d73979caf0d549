"""Rules about recipes for vLLM: errors that the engine reports late or not at all."""

from __future__ import annotations

from collections.abc import Collection

from packaging.version import Version

from sparkwright.engines.findings import SEVERITIES, Finding, Fix
from sparkwright.engines.model.architecture import Architecture
from sparkwright.engines.vllm.prediction import VllmRequest

# importing a file registers its rules
from sparkwright.engines.vllm.rules import access, image_and_model, options, scheduler, speculation  # noqa: F401
from sparkwright.engines.vllm.rules.rule import RULES, Case

__all__ = ["RULES", "SEVERITIES", "Case", "Finding", "Fix", "VllmRequest", "check"]


def check(
    request: VllmRequest, architecture: Architecture, version: Version | None, listed_options: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first.

    Args:
        request: the settings of the recipe.
        version: the engine's version; None if unknown.
        listed_options: the options in the engine's own help. If given, all others count as unknown, and values are checked against their shapes.
    """
    return RULES.check(Case(request, architecture, version, listed_options))
