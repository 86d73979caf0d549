"""Records which architectures in the registry of a real vLLM are hybrids; run by the engine's own Python, takes some minutes.

    ENGINE/bin/python tests/real_engine/ask_registry.py tests/data/vllm-0.32.0/registry.json

The classes import packages for images and sound that are missing here. Stubs replace them, because only attributes of
the classes are read. Classes that still cannot be imported are left out, and so are the Transformers fallbacks.
"""

from __future__ import annotations

import json
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from vllm.model_executor.models.registry import ModelRegistry, _ModelInfo

MISSING = {"torchvision", "torchaudio", "torchcodec"}


class Anything:
    """A stub for any attribute of a missing module."""

    def __init__(self, *args: Any, **more: Any) -> None: ...

    def __call__(self, *args: Any, **more: Any) -> Anything:
        return Anything()

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __or__(self, other: Any) -> type:
        return object

    __ror__ = __or__

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class StubModule(types.ModuleType):
    """A stub for a missing module."""

    __path__: list[str] = []  # noqa: RUF012

    __getattr__ = Anything.__getattr__


class StubFinder(MetaPathFinder, Loader):
    """Finds the missing packages and their submodules."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in MISSING else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def find_kind(model: Any) -> str | None:
    """Return "hybrid", "attention_free" or "attention"; None if the class cannot be imported here."""
    while True:
        try:
            info = _ModelInfo.from_model_cls(model.load_model_cls())
        except ModuleNotFoundError as error:
            name = (error.name or "vllm").partition(".")[0]
            if name in MISSING or name == "vllm" or not any(isinstance(item, StubFinder) for item in sys.meta_path):
                return None
            MISSING.add(name)
        except Exception:
            return None
        else:
            return "hybrid" if info.is_hybrid else "attention_free" if info.is_attention_free else "attention"


if __name__ == "__main__":
    served = {name: model for name, model in ModelRegistry.models.items() if not name.startswith("Transformers")}
    kinds = {name: kind for name, model in served.items() if (kind := find_kind(model))}
    sys.meta_path.insert(0, StubFinder())  # some classes can only be imported without stubs
    kinds |= {name: kind for name, model in served.items() if name not in kinds and (kind := find_kind(model))}
    Path(sys.argv[1]).write_text(json.dumps(kinds, indent=0, sort_keys=True) + "\n")
