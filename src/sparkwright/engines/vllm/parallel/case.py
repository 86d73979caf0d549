"""The input of the rules about a split, and their registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from sparkwright.engines.findings import Rules, Way
from sparkwright.engines.model.architecture import Architecture, classify
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm import versions
from sparkwright.engines.vllm.flags import flags as own
from sparkwright.engines.vllm.parallel import split_limits

SOURCE = "vLLM's ModelConfig.verify_with_parallel_config"


@dataclass(frozen=True)
class SplitCase:
    """A split of a model, with its recipe and engine."""

    split: Split
    #: of the recipe, under their own names
    flags: Mapping[str, Any]
    architecture: Architecture
    #: of the engine; None if not known
    version: Version | None

    def flag(self, name: str) -> Any:
        """Return the value of a flag; None if it is not set."""
        return own.value(self.flags, name)

    def within(self, since: str = "", until: str = "") -> bool | None:
        """See `versions.within`."""
        return versions.within(self.version, since, until)

    @property
    def model(self) -> str:
        return self.architecture.name or "the model"

    @property
    def engine(self) -> str:
        return f"vLLM {self.version}" if self.version else "this engine"

    def ways(self) -> tuple[Way, ...]:
        """Return the valid splits over as many hosts, else the advice to use fewer or more hosts."""
        hosts = self.split.hosts
        fitting = [split for split in _splits(hosts) if split != self.split and self._fits(split)]
        if fitting:
            return tuple(Way(f"write `parallel: {written(split)}`") for split in fitting[:2])
        return (Way("serve it from another number of hosts, or from each host alone"),)

    def _fits(self, split: Split) -> bool:
        refused = split_limits.tensor(self.architecture, split.tensor)
        refused = refused or split_limits.pipeline(self.architecture, split.pipeline)
        return not refused and not (split.pipeline > 1 and split_limits.old_pipeline(self.version))


@dataclass(frozen=True)
class SplitExample:
    """A split for which the rule has a finding; a test checks that."""

    split: Split
    flags: Mapping[str, Any] = field(default_factory=dict)
    #: the keys of a config.json that matter
    model: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = "0.32.0"

    def case(self) -> SplitCase:
        """Return the example as a SplitCase."""
        return SplitCase(self.split, own.named(self.flags), classify(self.model), versions.parse(self.version))


SPLITS: Rules[SplitCase, SplitExample] = Rules()
rule = SPLITS.rule


def as_keys(split: Split) -> dict[str, int]:
    """Return a split as a recipe writes it, without sizes of 1."""
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline}
    return {name: size for name, size in sizes.items() if size > 1}


def written(split: Split) -> str:
    """Return a split as a recipe's text: `{tensor: 2}`."""
    return "{" + ", ".join(f"{name}: {size}" for name, size in as_keys(split).items()) + "}"


def _splits(hosts: int) -> list[Split]:
    """Return all splits over these hosts, the most tensor parallel first, since it speeds up one stream."""
    return [Split(hosts // index, index) for index in range(1, hosts + 1) if hosts % index == 0]
