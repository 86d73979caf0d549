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
    from sparkwright.engines.log.book import LogBook

#: as recipes name them, and as people do
TITLES = {"vllm": "vLLM", "llama_cpp": "llama.cpp", "sglang": "SGLang", "openai": "OpenAI-compatible server"}
USUAL = "vllm"
#: how their servers sign the models that they list
OWNERS = {"vllm": "vllm", "llamacpp": "llama_cpp", "sglang": "sglang"}
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

    @cached_property
    def log(self) -> LogBook:
        """What its log tells."""
        found: LogBook = self._part("log").LOG
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


def of_name(name: object) -> Engine:
    """The engine of a name that a file or a label gives; one that is none of ours is taken for the usual one."""
    return of(name if isinstance(name, str) and name in TITLES else USUAL)


def of_models(answer: Any) -> Engine:
    """The engine of a server that nobody described, by who owns the models that it lists."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    owners = [row.get("owned_by") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return of(next((OWNERS[one] for one in owners if isinstance(one, str) and one in OWNERS), USUAL))


def of_labels(labels: Mapping[str, Any] | None) -> Engine:
    """The engine of a container or of a spec, by its labels; a name that is none of ours is taken for the usual one."""
    return of_name((labels or {}).get(LABEL))
