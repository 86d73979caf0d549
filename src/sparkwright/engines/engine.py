"""What an engine must answer, so that everything else is written once.

An engine is a folder here with four files: http.py (how its server is asked and what it answers), flags.py (its command line),
log.py (what its log tells) and advice.py (what is wrong with a recipe, and what it needs of the host). Each holds one value of
the type that is named below; a part is imported when it is asked for, for a health check needs http.py alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.engines.http import Http

#: as recipes name them, and as people do
TITLES = {"vllm": "vLLM", "llama_cpp": "llama.cpp", "sglang": "SGLang", "openai": "OpenAI-compatible server"}
USUAL = "vllm"
#: tells the engine of a container; one without it runs vLLM, as all did before there were others
LABEL = "sparkwright.engine"


@dataclass(frozen=True)
class Engine:
    """One engine. name: of its folder, as recipes write it. title: as people write it."""

    name: str
    title: str

    @cached_property
    def http(self) -> Http:
        """How its server is asked, and what it answers."""
        found: Http = self._part("http").HTTP
        return found

    def _part(self, name: str) -> Any:
        return import_module(f"sparkwright.engines.{self.name}.{name}")


@lru_cache
def of(name: str) -> Engine:
    """The engine of this name. Raises KeyError for none of TITLES."""
    return Engine(name, TITLES[name])


def labels(name: str) -> dict[str, str]:
    """The labels with which a container says its engine; vLLM needs none."""
    return {} if name == USUAL else {LABEL: name}


def of_labels(labels: Mapping[str, Any] | None) -> Engine:
    """The engine of a container or of a spec, by its labels; a name that is none of ours is taken for the usual one."""
    name = str((labels or {}).get(LABEL, USUAL))
    return of(name if name in TITLES else USUAL)
